"""The handlers of a conversation's commands."""
