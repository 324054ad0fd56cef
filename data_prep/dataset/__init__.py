"""Shards of beats: planned, built, checked and looked at."""
