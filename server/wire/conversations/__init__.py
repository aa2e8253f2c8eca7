"""Conversion of a conversation to an API message, and of its parts: state, approvals, rules, sub-agents and MCP servers."""
