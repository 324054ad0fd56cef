"""Configs: files, fields, and what a config describes."""
