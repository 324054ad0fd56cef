"""HTML pages of a run or of a record."""
