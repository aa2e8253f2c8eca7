"""Connections to MCP servers: programs and web services that offer tools to models (implements ports.McpServers)."""
