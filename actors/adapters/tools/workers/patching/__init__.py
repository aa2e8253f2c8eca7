"""Modules of the worker program patch, which changes a text file."""
