"""Maintenance of stored data: retention, verification, replay."""
