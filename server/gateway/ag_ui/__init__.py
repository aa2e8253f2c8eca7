"""AG-UI over HTTP: AG-UI front ends can chat with a conversation, without code for this server."""
