"""The tables on PostgreSQL."""
