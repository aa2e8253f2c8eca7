"""The tables of the PostgreSQL database, and its migrations."""
