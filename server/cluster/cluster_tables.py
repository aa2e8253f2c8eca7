"""Reads the table [cluster] of the settings file: how the servers that share a database reach each other."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from actors.ports.cluster.placement import directories_above
from actors.ports.settings.settings_checks import absolute_path_of, check_keys, host_and_port

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = ("address", "token_file", "name", "ca", "lease_seconds", "workspaces")
MAX_NAME_CHARS = 100
MAX_WORKSPACES, MAX_PATH_CHARS = 100, 1_024
USUAL_LEASE, LEASE_SECONDS = 10.0, (1.0, 60.0)


class ClusterSettings(Struct, frozen=True):
    """The settings in the table [cluster]."""

    address: str
    """The address, host:port, at which other nodes call this one."""
    token_file: Path
    """The file with the secret token that all nodes share."""
    name: str
    """The node's name in lists and logs; by default the name of the machine."""
    ca: Path | None = None
    """The PEM file with the certificate authorities of the nodes; None if nodes connect without TLS."""
    lease_seconds: float = USUAL_LEASE
    """Seconds without a heartbeat after which other nodes take over a node's conversations; equal on all nodes."""
    workspaces: tuple[str, ...] = ()
    """Directories that this server has, but not every other node.

    Conversations in these directories are served here.
    """


def cluster_settings(table: Mapping[str, Any]) -> ClusterSettings:
    """Read the table [cluster]. Raises ValueError, whose text names the key, as in "cluster.address: needed: …"."""
    check_keys("cluster", table, KEYS)
    return ClusterSettings(
        _address(_given(table, "address", "where the other servers reach this one, host:port")),
        _path(_given(table, "token_file", "a file with the token that all servers share"), "token_file"),
        _name(table.get("name", socket.gethostname())),
        _path(table["ca"], "ca") if "ca" in table else None,
        _lease(table.get("lease_seconds", USUAL_LEASE)),
        _workspaces(table.get("workspaces", [])),
    )


def _given(table: Mapping[str, Any], key: str, what: str) -> object:
    if key not in table:
        raise ValueError(f"cluster.{key}: needed: {what}")
    return table[key]


def _address(value: object) -> str:
    found = host_and_port(value) if isinstance(value, str) else None
    if found is None or not found[1] or any(each.isspace() for each in found[0]):
        raise ValueError("cluster.address: must be host:port, with the port that others reach")
    return str(value)


def _path(value: object, key: str) -> Path:
    try:
        return absolute_path_of(value)
    except ValueError as error:
        raise ValueError(f"cluster.{key}: {error}") from None


def _lease(value: object) -> float:
    least, most = LEASE_SECONDS
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"cluster.lease_seconds: must be between {least:g} and {most:g}")
    return float(value)


def _workspaces(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_WORKSPACES:
        raise ValueError(f"cluster.workspaces: must be a list of {MAX_WORKSPACES} directories at most")
    return tuple(map(_workspace, value))


def _workspace(value: object) -> str:
    is_path = isinstance(value, str) and value.isprintable() and len(value) <= MAX_PATH_CHARS
    above = directories_above(str(value)) if is_path else ()
    if not above or above[0] == "/":
        raise ValueError(
            f"cluster.workspaces: {value!r} must be an absolute path of {MAX_PATH_CHARS} characters at most, "
            "beneath the root"
        )
    return above[0]


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= MAX_NAME_CHARS:
        raise ValueError(f"cluster.name: must be a text of 1 to {MAX_NAME_CHARS} characters")
    return value
