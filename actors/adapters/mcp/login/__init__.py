"""Logins of the operator at MCP servers (OAuth with an authorization code, in a browser), and renewal of the tokens."""
