"""Stores images by content hash, decodes them in separate processes, makes scaled-down copies (views) for models."""
