"""A conversation as the contract shows it, and its parts: state, approvals, rules, sub-agents and MCP servers."""
