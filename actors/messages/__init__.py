"""The messages between actors."""
