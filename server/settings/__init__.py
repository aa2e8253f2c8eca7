"""Checks and parses the values of the operator's settings."""
