"""Code shared by the stores on SQLite and PostgreSQL: reads, lists, conditions, and how commits become rows."""
