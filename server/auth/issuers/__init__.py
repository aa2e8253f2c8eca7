"""Issuers of JSON Web Tokens: their settings, their keys, and the callers by their tokens."""
