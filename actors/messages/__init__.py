"""The messages that actors send to each other."""
