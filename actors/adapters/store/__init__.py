"""Durable memory: SQLite behind one writer thread, and its twin in memory."""
