"""Approval rules, and the code that matches tool calls with them."""
