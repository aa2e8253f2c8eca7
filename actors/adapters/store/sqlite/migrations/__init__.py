"""Migrations, applied in the order of their names."""
