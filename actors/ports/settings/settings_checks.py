"""Checks of an operator's settings that both the server and several adapters need."""

from __future__ import annotations

import ipaddress
import os
import stat
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
    return (address := _address(host)) is not None and address.is_loopback


def is_nearby(host: str) -> bool:
    """Return whether a host name or IP address (without brackets) means this machine, or is a private address."""
    return (address := _address(host)) is not None and address.is_private


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return an IP address, for localhost one of this machine; None for any other name."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None


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


def read_named(path: Path) -> bytes:
    """Return the content of a regular file that the settings name, which only root and this user can have written.

    Raises ValueError if others can have written it or the link that leads to it, and OSError if it cannot be read.
    """
    link = path.lstat()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is no regular file")
        if others := {link.st_uid, found.st_uid} - {0, os.geteuid()}:
            raise ValueError(f"belongs to user {min(others)}, and this is user {os.geteuid()}")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("can be changed by others: chmod go-w")
        return file.read()


def expanded(text: str) -> Path:
    """Return a path with `~` expanded. Raises ValueError if it names an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"there is no user {text.partition('/')[0]!r}") from None
