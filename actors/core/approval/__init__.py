"""Approval rules, and how tool calls are held against them."""
