"""Runners of effects: model requests, tools and sub-agents, each on separate threads."""
