"""Stores images by content hash, decodes them in separate processes, and makes scaled views for models."""
