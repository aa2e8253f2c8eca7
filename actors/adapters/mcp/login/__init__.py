"""Logins of the operator at MCP servers: OAuth with an authorization code, in a browser, and its tokens afterwards."""
