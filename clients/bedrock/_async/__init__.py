"""The asyncio client. `bedrock._sync` is generated from this package."""
