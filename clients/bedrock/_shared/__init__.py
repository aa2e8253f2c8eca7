"""Code that the synchronous and the asyncio client share. None of it does network I/O."""
