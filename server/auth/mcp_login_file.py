"""Files with the operator's logins at MCP servers, which both `bedrock mcp login` and the server write.

A second file holds the OAuth client registrations. Only `bedrock mcp login` uses it.
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
    def __init__(self, path: Path, decoder: msgspec.json.Decoder[dict[str, Kept]], what: str) -> None:
        self._file = PrivateFile(path)
        self._decoder = decoder
        self._what = what
        """The word for the stored values in error messages, e.g. "logins"."""

    def read(self) -> dict[str, Kept]:
        """Return the values by server name; {} if there is no file.

        Raises McpLoginsError if the file cannot be used.
        """
        try:
            content = self._file.read()
            return {} if content is None else self._decoder.decode(content)
        except TokenUnusableError as error:
            raise McpLoginsError(str(error)) from None
        except (ValueError, RecursionError):  # ValueError includes msgspec.DecodeError
            raise McpLoginsError(f"{self._file.path} holds no {self._what}: restore it, or remove it") from None

    @contextmanager
    def _changing(self) -> Generator[dict[str, Kept]]:
        """Yield the values for the `with` block to change, and write them to the file when the block ends.

        Until then, other programs wait before they change the file. Raises McpLoginsError if the file cannot be used.
        """
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
        """Store a value for a server, replacing an existing one. Raises McpLoginsError if the file cannot be used."""
        with self._changing() as values:
            values[name] = value


class McpRegistrationFile(_Table[McpRegistration]):
    """The OAuth client registrations at MCP servers, in a file.

    A login takes its registration out of the file first, and stores it again only if the login succeeds.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, msgspec.json.Decoder(dict[str, McpRegistration]), "registrations")

    def take(self, name: str) -> McpRegistration | None:
        """Remove and return the registration for a server; None if there is none.

        Raises McpLoginsError if the file cannot be used.
        """
        with self._changing() as found:
            return found.pop(name, None)


class McpLoginFile(_Table[McpLogin]):
    """The logins at MCP servers, in a JSON file. Implements `McpLogins` of actors.ports."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, msgspec.json.Decoder(dict[str, McpLogin]), "logins")

    def version(self) -> tuple[int, ...]:
        """Return a value that changes whenever the file changes."""
        return self._file.version()

    def replace(self, name: str, before: McpLogin, after: McpLogin | None) -> bool:
        """Replace the stored login by `after` if it still equals `before`. Return whether it was replaced.

        If `after` is None, the login is removed. Raises McpLoginsError if the file cannot be used.
        """
        with self._changing() as logins:
            if logins.get(name) != before:
                return False
            if after is None:
                del logins[name]
            else:
                logins[name] = after
        return True
