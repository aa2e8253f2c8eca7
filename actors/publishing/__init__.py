"""Publishes events to watchers, which are clients with open streams."""
