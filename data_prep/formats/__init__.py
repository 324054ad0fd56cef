"""One file -> one record, whatever the format; and CSV tables."""
