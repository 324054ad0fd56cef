"""A module per corpus, each with open(raw, **options) -> Corpus; use corpus.open_corpus."""
