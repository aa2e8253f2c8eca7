"""Pluggable authentication and authorization: the operator names a class of their own in the settings."""
