"""Quotas of principals, and fair turns among them."""
