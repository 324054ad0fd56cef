"""Embeddings of any ECG by a trained model."""
