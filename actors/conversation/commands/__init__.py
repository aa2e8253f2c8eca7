"""The commands of a conversation, each from request to answer."""
