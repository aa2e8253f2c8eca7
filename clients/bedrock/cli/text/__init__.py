"""Text output to a terminal or a pipe: sanitizing, layout and printing."""
