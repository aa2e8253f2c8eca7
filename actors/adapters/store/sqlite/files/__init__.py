"""Modules for the files of the data directory: locks, backups, the disk reserve, the write-ahead log."""
