"""Publishing of events to watchers."""
