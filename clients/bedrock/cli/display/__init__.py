"""The presentation of a conversation in the terminal."""
