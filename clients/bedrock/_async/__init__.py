"""The asyncio client.

Except for a few modules, `bedrock._sync`, the blocking client, is generated from this package.
"""
