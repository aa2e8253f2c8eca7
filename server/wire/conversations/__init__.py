"""Conversion of a conversation and its parts to API messages: state, approvals, rules, sub-agents, MCP servers."""
