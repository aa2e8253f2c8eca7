"""The client for asyncio: the source of `bedrock._sync`."""
