"""Images: stored by content hash and decoded in separate processes, with scaled views for models."""
