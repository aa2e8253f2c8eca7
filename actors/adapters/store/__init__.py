"""Stores: SQLite behind one writing connection, and an equivalent store in memory for tests."""
