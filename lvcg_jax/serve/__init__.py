"""Answers over HTTP: a file of any format in, numbers or a report out."""
