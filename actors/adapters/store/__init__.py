"""Implementations of the store port: SQLite, PostgreSQL, and a store in memory for tests."""
