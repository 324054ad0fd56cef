"""Scores, their intervals, and the scaling of features."""
