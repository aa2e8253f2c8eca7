"""Parts of the search workers."""
