"""What is published to watchers."""
