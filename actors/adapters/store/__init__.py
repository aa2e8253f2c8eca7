"""Stores: SQLite behind one writer thread, and an equivalent store in memory for tests."""
