"""Conversations with LLM agents: a pure core, the actors that run it, and adapters to the outside."""
