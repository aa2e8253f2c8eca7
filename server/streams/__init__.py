"""The server's streams of events to clients.

Each stream remembers how far in the conversation's event log it has sent; a publisher of events wakes it for new ones.
"""
