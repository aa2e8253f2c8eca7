"""Tables and migrations."""
