"""What a conversation looks like in the terminal."""
