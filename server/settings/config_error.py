"""The error for settings that cannot be used."""

from __future__ import annotations


class ConfigError(Exception):
    """A setting cannot be used. The text names the setting, where it comes from, and what it should be."""
