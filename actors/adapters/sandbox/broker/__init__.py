"""Workspace mode: decides which directories can be a workspace, and changes files there for programs (the broker)."""
