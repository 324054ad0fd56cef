"""Synthetic ECG, whose true beats, heart vector and conditions are known."""
