"""The server's streams of events to clients.

Each stream remembers the position in the conversation's event log up to which it has sent events. The stream is woken
when new events are published.
"""
