"""Runners, which do the work that conversations request, on other threads: model requests, tools and sub-agents."""
