"""Pluggable authentication and authorization: a class of the operator's own, which the settings name."""
