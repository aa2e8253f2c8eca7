"""The tables of the SQLite database, and its migrations."""
