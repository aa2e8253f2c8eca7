"""The migrations of the PostgreSQL database; released ones are never edited."""
