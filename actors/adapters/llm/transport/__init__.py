"""HTTP requests that can be aborted in every phase, and the parser of event streams."""
