"""Reads of the store for calls of the API. They run on a pool of threads."""
