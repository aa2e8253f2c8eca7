"""What the server is as a process: its settings, its memory, its service manager, its certificate."""
