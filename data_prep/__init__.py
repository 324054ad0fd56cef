"""From ECG records on disk to ArrayRecord shards of beats: readers, signal chain, segmentation,
builder."""
