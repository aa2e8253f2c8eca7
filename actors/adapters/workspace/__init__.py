"""Access to working directories: checks, listings, instruction files, and git state."""
