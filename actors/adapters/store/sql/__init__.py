"""What the stores on SQLite and PostgreSQL share: their reads, lists and conditions, and how a commit becomes rows."""
