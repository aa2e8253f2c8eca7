"""Pluggable authentication and authorization: a company's own rules, in a class that the settings name."""
