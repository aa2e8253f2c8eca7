"""Text on its way to a terminal or a pipe: what it may hold, and how it gets there."""
