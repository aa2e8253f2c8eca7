"""MCP servers: programs and web services of others that offer tools (ports.McpServers)."""
