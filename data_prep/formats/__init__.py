"""One file -> one record, whatever the format."""
