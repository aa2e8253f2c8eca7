"""Checks of an operator's settings that the server and several adapters make."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def check_keys(where: str, table: Mapping[str, Any], keys: Collection[str]) -> None:
    """Check that a table, which errors call `where`, has no other keys. Raises ValueError, "where.key: why"."""
    if unknown := table.keys() - set(keys):
        raise ValueError(f"{where}.{min(unknown)}: unknown; there are: {', '.join(keys)}")


def is_loopback(host: str) -> bool:
    """Return whether a host, a name or an address without brackets, is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
