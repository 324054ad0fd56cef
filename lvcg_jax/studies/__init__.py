"""Studies that train or judge several models, and write a section of a page."""
