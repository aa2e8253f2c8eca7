"""HTTP requests that can be aborted in every phase."""
