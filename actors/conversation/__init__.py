"""The conversation actor, which owns one conversation, and the supervisor, which starts and finds these actors."""
