"""The operator's logins at MCP servers: a file that `bedrock mcp login` and the server write (ports.McpLogins).

What was registered for them is in another file, which only the command uses.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from actors.ports.mcp import McpLogin, McpLoginsError, McpRegistration
from server.auth.local_token import TokenUnusableError
from server.auth.private_file import PrivateFile

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

FILE = "mcp-logins.json"
CLIENTS = "mcp-clients.json"

Kept = TypeVar("Kept")


class _Table(Generic[Kept]):
    """A file of JSON with a value for each MCP server, by its name."""

    def __init__(self, path: Path, decoder: msgspec.json.Decoder[dict[str, Kept]], what: str) -> None:
        self._file = PrivateFile(path)
        self._decoder = decoder
        self._what = what
        """What people call the values."""

    def read(self) -> dict[str, Kept]:
        """Return the values by the names of their servers; {} if there is no file. Raises McpLoginsError."""
        try:
            content = self._file.read()
            return {} if content is None else self._decoder.decode(content)
        except TokenUnusableError as error:
            raise McpLoginsError(str(error)) from None
        except (ValueError, RecursionError):  # e.g. msgspec.DecodeError
            raise McpLoginsError(f"{self._file.path} holds no {self._what}: restore it, or remove it") from None

    @contextmanager
    def _changing(self) -> Generator[dict[str, Kept]]:
        """Yield the values for a change that is written at the end, while no other program makes one."""
        try:
            with self._file.changing():
                values = self.read()
                before = dict(values)
                yield values
                if values != before:
                    self._file.write(msgspec.json.encode(values))
        except TokenUnusableError as error:
            raise McpLoginsError(str(error)) from None

    def put(self, name: str, value: Kept) -> None:
        """Store a value, instead of one that is there. Raises McpLoginsError."""
        with self._changing() as values:
            values[name] = value


class McpRegistrationFile(_Table[McpRegistration]):
    """What was registered for logins. One is taken for a login, and put back if that succeeds."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, msgspec.json.Decoder(dict[str, McpRegistration]), "registrations")

    def take(self, name: str) -> McpRegistration | None:
        """Return the registration for a server, and remove it. Raises McpLoginsError."""
        with self._changing() as found:
            return found.pop(name, None)


class McpLoginFile(_Table[McpLogin]):
    """Implements McpLogins."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, msgspec.json.Decoder(dict[str, McpLogin]), "logins")

    def version(self) -> tuple[int, ...]:
        """Return what changes with each change of the file."""
        return self._file.version()

    def replace(self, name: str, before: McpLogin, after: McpLogin | None) -> bool:
        """Store `after`, or nothing, if `before` is what is stored; return whether it was."""
        with self._changing() as logins:
            if logins.get(name) != before:
                return False
            if after is None:
                del logins[name]
            else:
                logins[name] = after
        return True
