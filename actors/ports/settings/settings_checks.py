"""Checks of an operator's settings that both the server and several adapters need."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MAX_PORT = 65_535


def check_keys(where: str, table: Mapping[str, Any], keys: Collection[str]) -> None:
    """Check that the settings table at the path `where` has only these keys. Raises ValueError naming a wrong key."""
    if unknown := table.keys() - set(keys):
        raise ValueError(f"{where}.{min(unknown)}: unknown; there are: {', '.join(keys)}")


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address (without brackets) means this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_and_port(text: str) -> tuple[str, int] | None:
    """Return the host, without brackets, and the port of "host:port"; None if the text has another form."""
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and int(port) <= MAX_PORT):
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def absolute_path_of(value: object) -> Path:
    """Return an absolute path with `~` expanded. Raises ValueError if the value is no path or names an unknown user."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a path")
    return expanded(value).absolute()


def expanded(text: str) -> Path:
    """Return a path with `~` expanded. Raises ValueError if it names an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"there is no user {text.partition('/')[0]!r}") from None
