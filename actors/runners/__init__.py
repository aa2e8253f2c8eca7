"""Runners, which perform the effects of conversations on separate threads: model requests, tools and sub-agents."""
