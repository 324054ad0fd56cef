"""Tables, pages and documents that commands write."""
