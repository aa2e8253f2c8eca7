"""The operator's logins at MCP servers: a file that `bedrock mcp login` and the server write (ports.McpLogins)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from actors.ports.mcp import McpLogin, McpLoginsError
from server.auth.local_token import TokenUnusableError
from server.auth.private_file import PrivateFile

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

FILE = "mcp-logins.json"


class McpLoginFile:
    """Implements McpLogins."""

    def __init__(self, path: Path) -> None:
        self._file = PrivateFile(path)

    def read(self) -> dict[str, McpLogin]:
        """Return the logins by the names of their servers; {} if there is no file."""
        try:
            content = self._file.read()
            return {} if content is None else msgspec.json.decode(content, type=dict[str, McpLogin])
        except TokenUnusableError as error:
            raise McpLoginsError(str(error)) from None
        except msgspec.DecodeError:
            raise McpLoginsError(f"{self._file.path} holds no logins: restore it, or remove it") from None

    def version(self) -> tuple[int, ...]:
        """Return what changes with each change of the file."""
        return self._file.version()

    def put(self, name: str, login: McpLogin) -> None:
        """Store a login, instead of one that is there."""
        with self._changing() as logins:
            logins[name] = login

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

    @contextmanager
    def _changing(self) -> Generator[dict[str, McpLogin]]:
        """Yield the logins for a change that is written at the end, while no other program makes one."""
        try:
            with self._file.changing():
                logins = self.read()
                before = dict(logins)
                yield logins
                if logins != before:
                    self._file.write(msgspec.json.encode(logins))
        except TokenUnusableError as error:
            raise McpLoginsError(str(error)) from None
