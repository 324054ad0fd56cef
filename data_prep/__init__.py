"""ECG without JAX: from records on disk to ArrayRecord shards of beats."""
