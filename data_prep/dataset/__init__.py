"""Dataset directories of beat shards: planned, built, checked and shown."""
