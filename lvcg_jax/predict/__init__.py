"""Answers of heads for records: probabilities, decisions, and how far they can be trusted."""
