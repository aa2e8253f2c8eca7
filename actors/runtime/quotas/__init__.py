"""Quotas of principals, and fair scheduling between principals."""
