"""The store on one SQLite file: opening, files, backups."""
