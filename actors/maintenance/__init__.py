"""Maintenance of stored data: deletion of old data, verification, and replay of logs."""
