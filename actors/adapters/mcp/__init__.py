"""Connections to MCP servers: programs and web services of others that offer tools (implements ports.McpServers)."""
