"""The table [cluster] of the settings file: how the servers that share a database reach each other."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from actors.ports.cluster import directories_above
from actors.ports.settings.settings_checks import host_and_port

MAX_PATH_CHARS = 1_024
_Path = Annotated[str, Meta(description="must be an absolute path")]
ADDRESS = "must be host:port, with the port that others reach"


class ClusterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings in the table [cluster]."""

    address: Annotated[str, Meta(description=ADDRESS)]
    """The address, host:port, at which other nodes call this one."""
    token_file: Annotated[Path, Meta(description="must be a file with the token that all servers share")]
    """The file with the secret token that all nodes share."""
    name: Annotated[str, Meta(min_length=1, max_length=100, description="must be a text of 1 to 100 characters")] = (
        field(default_factory=socket.gethostname)
    )
    """The node's name in lists and logs; by default the name of the machine."""
    ca: Path | None = None
    """The PEM file with the certificate authorities of the nodes; None if nodes connect without TLS."""
    lease_seconds: Annotated[float, Meta(ge=1, le=60, description="must be between 1 and 60")] = 10.0
    """Seconds without a heartbeat after which other nodes take over a node's conversations; equal on all nodes."""
    workspaces: Annotated[
        tuple[_Path, ...],
        Meta(max_length=100, description="must be a list of 100 directories at most"),
    ] = ()
    """Directories that this server has, but not every other node.

    Conversations in these directories are served here.
    """

    def __post_init__(self) -> None:
        host, port = host_and_port(self.address) or ("", 0)
        if not port or any(each.isspace() for each in host):
            raise ValueError(f".address: {ADDRESS}")
        if not self.name.isprintable():
            raise ValueError(".name: must be a text of printable characters")
        force_setattr(self, "workspaces", tuple(map(_workspace, self.workspaces)))


def _workspace(path: str) -> str:
    above = directories_above(path) if path.isprintable() and len(path) <= MAX_PATH_CHARS else ()
    if not above or above[0] == "/":
        raise ValueError(
            f".workspaces: {path!r} must be an absolute path of {MAX_PATH_CHARS} characters at most, beneath the root"
        )
    return above[0]
