"""Stores images by content hash, decodes them in separate processes, and makes scaled-down copies (views)."""
