"""AG-UI over HTTP: front ends that speak it chat with a conversation, without a line of code about this server."""
