"""The asyncio client.

The blocking client, `bedrock._sync`, is generated from this package, except for a few modules.
"""
