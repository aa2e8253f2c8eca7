"""Modules of the worker programs search and keyword_search, which search the files of a directory."""
