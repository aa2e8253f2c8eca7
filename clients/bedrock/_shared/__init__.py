"""Code that the synchronous and the asyncio client share: it does no I/O and never blocks."""
