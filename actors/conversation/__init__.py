"""The actor of a conversation, and the supervisor of all of them."""
