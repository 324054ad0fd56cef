"""One module a corpus; each has open(raw, **options) -> Corpus. Use
data_prep.corpora.corpus.open_corpus."""
