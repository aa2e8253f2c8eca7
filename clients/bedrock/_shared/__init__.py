"""What both clients use: no I/O, and nothing that waits."""
