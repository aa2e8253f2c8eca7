"""Functions that carry out the commands which clients send to a conversation."""
