"""Readers and mutations for fuzzing."""
