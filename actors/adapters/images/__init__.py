"""Images: originals by content hash, and what models see of them. Decoding happens in a process of its own."""
