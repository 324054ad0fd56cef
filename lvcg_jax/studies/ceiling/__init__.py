"""How well labels can be read from each form of a record: the ceiling of its embeddings."""
