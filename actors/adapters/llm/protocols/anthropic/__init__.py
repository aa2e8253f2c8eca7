"""The wire protocol Anthropic Messages."""
