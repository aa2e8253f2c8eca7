"""Reads of the store, which run on a separate pool of threads."""
