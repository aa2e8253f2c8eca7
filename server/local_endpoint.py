"""The local endpoint: a data directory for this user only, its Unix socket, and the file with the server's address.

Socket and file are restored if somebody removes them. No client can connect to a socket whose path was removed, and
gRPC cannot bind another socket at that path while the server runs. Therefore, a second hard link to the socket is kept
in a private directory, and the path is created again as a link to the same socket.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bedrock.local_server import (
    ADDRESS_FILE,
    GATEWAY_FILE,
    LONGEST_SOCKET_PATH,
    NotPrivateError,
    check_entries,
    check_owner,
    check_private,
    read_believed,
    xdg_directory,
)

from actors.common.machine import exhausted_resource
from server.auth.tokens import TokenUnusableError, write_private

SOCKET = "bedrock.sock"
# Paths that all gRPC libraries interpret alike: only some decode percent escapes.
_PLAIN = re.compile(r"[\w/.@+=,~-]+", re.ASCII)


def claim_directory(path: Path) -> None:
    """Create a directory that only this user can enter, or restrict an existing one.

    Raises NotPrivateError if the directory or a file in it belongs to another user or is writable by others; OSError if
    the directory cannot be used.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    close_to_others(path)


def close_to_others(directory: Path) -> None:
    """Restrict a directory to this user. Raises what `check_closable` raises."""
    check_closable(directory)
    directory.chmod(0o700)
    check_private(directory)


def check_closable(directory: Path) -> None:
    """Check that no other user can have written to a directory; change nothing.

    Raises NotPrivateError if the directory or a file in it belongs to another user or is writable by others; OSError if
    there is no such directory.
    """
    check_owner(directory)
    if directory.stat().st_mode & 0o022:
        check_private(directory)
    check_entries(directory)


def socket_path(data_dir: Path, environ: Mapping[str, str]) -> Path:
    """The path of the Unix socket for a data directory; creates its private directory if necessary.

    The socket is in the data directory, unless its path would be too long or contain special characters; in that case,
    it is in the directory `bedrock` in XDG_RUNTIME_DIR, or in a directory in /tmp. Raises NotPrivateError if that
    directory belongs to another user, OSError if it cannot be created.
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


log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
SPARE = "bedrock.sock.spare"


@contextmanager
def published(data_dir: Path, socket: Path, gateway: str = "") -> Generator[None]:
    """Publish the server's Unix socket for clients on this machine in the `with` block.

    A thread restores the socket and the address file if they are removed. `gateway` is the gateway's URL. Raises
    TokenUnusableError if a file cannot be written.
    """
    told = data_dir / GATEWAY_FILE
    if gateway:
        write_private(told, f"{gateway}\n")
    else:
        try:
            told.unlink(missing_ok=True)  # left by a killed server; another program may listen there by now
        except OSError as error:
            raise TokenUnusableError(f"{told} cannot be removed: {error.strerror}") from None
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
        with suppress(OSError):
            told.unlink(missing_ok=True)
        kept.withdraw()


class LocalSocket:
    """The socket of the running server, and the file that contains its address. Used by one thread at a time."""

    def __init__(self, data_dir: Path, socket: Path) -> None:
        """Write the address file, and keep a second hard link to the socket.

        Raises TokenUnusableError if that fails.
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
        """Remove the second link and the address file, unless another directory has replaced the data directory."""
        if self._spare is not None:
            with suppress(OSError):
                self._spare.unlink(missing_ok=True)
        if _inode(self._data_dir) == self._directory and os.path.lexists(self._address):
            try:
                self._address.unlink()
            except OSError as error:
                log.warning("%s cannot be removed: %s", self._address, error.strerror)

    def _keep(self) -> Path | None:
        # The second path is used if the socket and the data directory are on different file systems.
        beside = self._socket.with_name(f"{self._socket.name}.spare")
        for spare in (self._data_dir / SPARE, beside):
            with suppress(OSError):
                spare.unlink(missing_ok=True)  # a killed server may have left it
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
                    "%s was removed or replaced while in use, and cannot be restored (%s): new clients on this machine "
                    "cannot reach the server; restart it",
                    path,
                    cause,
                )
            self._told[path] = True
        else:
            self._told[path] = False
            log.warning("%s was removed or replaced while in use; it has been restored", path)

    def _link_back(self) -> None:
        """Create the socket's path again as a link to the same socket. Raises NotPrivateError or OSError."""
        if self._spare is None or _inode(self._spare) != self._inode:
            raise FileNotFoundError(0, "the spare link to the socket is missing")
        if self._socket.parent != self._data_dir:
            claim_directory(self._socket.parent)
        os.link(self._spare, self._socket, follow_symlinks=False)


def _inode(path: Path) -> tuple[int, int] | None:
    """The device and inode number of a path, or None. A symbolic link is followed only to a directory."""
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
