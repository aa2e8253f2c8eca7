"""Reads of the store, on threads of their own."""
