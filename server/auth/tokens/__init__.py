"""Stores the tokens of principals as hashes: in a file, or in the database that several servers share."""
