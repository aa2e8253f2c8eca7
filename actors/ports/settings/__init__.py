"""Helpers for settings that the server and its adapters share."""
