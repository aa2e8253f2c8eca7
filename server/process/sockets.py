"""Counts connections, and finds the process that listens on a port, in the kernel's tables of sockets."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from server.settings.setting_values import Listen

_CONNECTED = frozenset({("unix", "03"), ("tcp", "01"), ("tcp6", "01")})
"""The tables and states of sockets that are connected."""
_LISTENS = frozenset({("tcp", "0A"), ("tcp6", "0A")})
"""The tables and states of sockets that listen on a port."""


class _Socket(NamedTuple):
    kind: tuple[str, str]
    """The table, and the state as the kernel writes it."""
    where: str
    """The path of a Unix socket, or the port of a TCP socket in hexadecimal digits."""
    inode: str


def connections(addresses: Iterable[Listen]) -> int:
    """Return how many connections are open to the addresses of this process."""
    wanted = {each.path or f"{each.port:04X}" for each in addresses}
    return sum(each.where in wanted and each.kind in _CONNECTED for each in _sockets())


def listener(port: int) -> str:
    """Return the process that listens on a TCP port, as "process 17 (nginx)"; "" if it cannot be found out."""
    wanted = f"{port:04X}"
    links = {f"socket:[{each.inode}]" for each in _sockets() if each.where == wanted and each.kind in _LISTENS}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it belongs to another user, or has ended
            if any(os.readlink(file) in links for file in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


def _sockets() -> Iterator[_Socket]:
    for table in ("unix", "tcp", "tcp6"):
        with suppress(OSError), open(f"/proc/net/{table}", encoding="utf-8", errors="replace") as rows:  # no IPv6
            for row in rows:
                fields = row.split()
                if table != "unix":
                    yield _Socket((table, fields[3]), fields[1].rpartition(":")[2], fields[9])
                elif len(fields) > 7:
                    yield _Socket((table, fields[5]), fields[7], fields[6])
