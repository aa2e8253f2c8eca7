"""Keeps the server's Unix socket, and the file with its address, in place for clients on this machine.

Both are restored if somebody removes them. No client can connect to a socket whose path was removed, and gRPC cannot
bind another socket at that path while the server runs. So a second hard link to the socket is kept in a private
directory, and the path is created again as a link to the same socket.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from bedrock.local_server import ADDRESS_FILE, NotPrivateError, read_believed

from actors.ports.machine import exhausted_resource
from server.auth.local_token import TokenUnusableError, write_private
from server.local_access import claim_directory

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
SPARE = "bedrock.sock.spare"
"""The file name of the second hard link to the socket, in the data directory."""


@contextmanager
def published(data_dir: Path, socket: Path) -> Generator[None]:
    """Publish the address of the server's Unix socket for clients on this machine while the `with` block runs.

    A thread restores the socket and the address file if they are removed. Raises TokenUnusableError if the address file
    cannot be written.
    """
    kept = LocalSocket(data_dir, socket)
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(LOOK_SECONDS):
            kept.look()

    thread = threading.Thread(target=run, name="bedrock-published-socket", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        kept.withdraw()


class LocalSocket:
    """The socket of the running server, and the file that contains its address. Used by one thread at a time."""

    def __init__(self, data_dir: Path, socket: Path) -> None:
        """Write the address file, and keep a second hard link to the socket.

        Raises TokenUnusableError if the address file cannot be written.
        """
        self._data_dir, self._socket = data_dir, socket
        self._address = data_dir / ADDRESS_FILE
        self._directory = _inode(data_dir)
        self._inode = _inode(socket)
        self._spare = self._keep()
        self._told = {self._socket: False, self._address: False}
        write_private(self._address, self._line)

    @property
    def _line(self) -> str:
        return f"unix:{self._socket}\n"

    def look(self) -> None:
        """Restore missing files, with a warning in the log. A failure is logged only once per file."""
        if _inode(self._data_dir) != self._directory:
            return  # the data directory was replaced (the store reports that): its files are not those of this server
        self._look_at(self._socket, _inode(self._socket) == self._inode)
        self._look_at(self._address, _holds(self._address, self._line))

    def withdraw(self) -> None:
        """Remove the second link and the address file.

        If another directory has taken the place of the data directory, its address file is left alone.
        """
        if self._spare is not None:
            with suppress(OSError):
                self._spare.unlink(missing_ok=True)
        if _inode(self._data_dir) == self._directory and os.path.lexists(self._address):
            try:
                self._address.unlink()
            except OSError as error:
                log.warning("%s cannot be removed: %s", self._address, error.strerror)

    def _keep(self) -> Path | None:
        """Create the second hard link to the socket, and return its path; None if no hard link can be made."""
        # The second path is used if the socket and the data directory are on different file systems.
        beside = self._socket.with_name(f"{self._socket.name}.spare")
        for spare in (self._data_dir / SPARE, beside):
            with suppress(OSError):
                spare.unlink(missing_ok=True)  # a server that was killed may have left it
                os.link(self._socket, spare, follow_symlinks=False)
                return spare
        return None

    def _look_at(self, path: Path, is_there: bool) -> None:
        if is_there:
            self._told[path] = False
            return
        try:
            if path == self._socket:
                self._link_back()
            else:
                write_private(path, self._line)
        except (OSError, NotPrivateError, TokenUnusableError) as error:
            if not self._told[path]:
                cause = error.strerror if isinstance(error, OSError) else error
                log.critical(
                    "%s was removed or replaced while the server uses it, and cannot be made again (%s): no new client "
                    "of this machine reaches the server; restart it",
                    path,
                    cause,
                )
            self._told[path] = True
        else:
            self._told[path] = False
            log.warning("%s was removed or replaced while the server uses it: it was made again", path)

    def _link_back(self) -> None:
        """Create the socket's path again as a link to the same socket.

        Raises NotPrivateError or OSError if that fails.
        """
        if self._spare is None or _inode(self._spare) != self._inode:
            raise FileNotFoundError(0, "no second link to the socket is left")
        if self._socket.parent != self._data_dir:
            claim_directory(self._socket.parent)
        os.link(self._spare, self._socket, follow_symlinks=False)


def _inode(path: Path) -> tuple[int, int] | None:
    """Return the device and inode number of a path; None if nothing is there.

    A symbolic link is followed only if it leads to a directory.
    """
    try:
        found = path.stat() if path.is_dir() else path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _holds(path: Path, text: str) -> bool:
    try:
        return read_believed(path, most=4096) == text.encode()
    except NotPrivateError:
        return False
    except OSError as error:
        # If no file descriptor is free, the file cannot be read, but may still exist.
        return bool(exhausted_resource(error))
