"""Restricts the data directory to the server's user, and chooses the path of the Unix socket for local clients."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bedrock.local_server import (
    LONGEST_SOCKET_PATH,
    NotPrivateError,
    check_entries,
    check_owner,
    check_private,
    xdg_directory,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET = "bedrock.sock"
_PLAIN = re.compile(r"[\w/.@+=,~-]+", re.ASCII)
"""Matches paths that all gRPC libraries interpret alike.

Paths with a percent sign do not match, because only some libraries decode percent escapes.
"""


def claim_directory(path: Path) -> None:
    """Create a directory that only this user can enter, or restrict an existing directory to this user.

    Raises:
        NotPrivateError: The directory or a file in it belongs to another user, or others may have written to it.
        OSError: The directory cannot be created or used.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    close_to_others(path)


def close_to_others(directory: Path) -> None:
    """Restrict a directory to this user, provided that no other user can have written to it.

    Raises:
        NotPrivateError: The directory or a file in it belongs to another user, or others may have written to it.
        OSError: There is no such directory.
    """
    check_closable(directory)
    directory.chmod(0o700)
    check_private(directory)


def check_closable(directory: Path) -> None:
    """Check that a directory can be restricted to this user, because no other user can have written to it.

    Changes nothing.

    Raises:
        NotPrivateError: The directory or a file in it belongs to another user, or others may have written to it.
        OSError: There is no such directory.
    """
    check_owner(directory)
    if directory.stat().st_mode & 0o022:
        check_private(directory)
    check_entries(directory)


def socket_path(data_dir: Path, environ: Mapping[str, str]) -> Path:
    """Return the path of the Unix socket for a data directory, and create the socket's private directory if necessary.

    The socket is in the data directory, unless its path there would be too long for a socket or contain special
    characters. Then it is in a directory `bedrock` in XDG_RUNTIME_DIR, or in /tmp if that variable is not set or cannot
    be used.

    Raises:
        NotPrivateError: The directory in /tmp belongs to another user.
        OSError: The directory in /tmp cannot be created.
    """
    if _usable(path := data_dir / SOCKET):
        return path
    name = f"{hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]}.sock"
    if runtime := xdg_directory("XDG_RUNTIME_DIR", environ):
        path = runtime / "bedrock" / name
        with suppress(NotPrivateError, OSError):  # the directory may belong to another user, or be missing
            if _usable(path):
                claim_directory(path.parent)
                return path
    path = Path(f"/tmp/bedrock-{os.geteuid()}", name)  # noqa: S108 -- its owner is checked
    claim_directory(path.parent)
    return path


def _usable(path: Path) -> bool:
    return len(os.fsencode(path)) <= LONGEST_SOCKET_PATH and _PLAIN.fullmatch(str(path)) is not None
