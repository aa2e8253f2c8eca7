"""Logs the operator in at MCP servers (OAuth authorization code flow, in a browser), and renews the tokens."""
