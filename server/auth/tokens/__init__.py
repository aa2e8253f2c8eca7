"""The tokens of principals, and where they are kept."""
