"""What the principals of a server may do."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Protocol

from msgspec import Struct

from actors.core.context import Mode


class Permissions(Struct, frozen=True):
    """What a principal may do with its conversations; the defaults are those of the server's own user: everything."""

    modes: frozenset[Mode] = frozenset(Mode)
    """The modes that its conversations may have."""
    roots: tuple[str, ...] | None = None
    """The real paths of the directories in which it works, and the only ones that it reads; None: every one."""
    models: tuple[str, ...] | None = None
    """The models that it may use, by patterns such as `claude-*`; None: all."""
    mcp_servers: tuple[str, ...] | None = None
    """The MCP servers of the operator whose tools it is offered; None: all."""

    def refusal(self, mode: Mode) -> str:
        """Return why its conversations may not have a mode, as text for people; "" if they may."""
        if mode not in self.modes:
            return "this principal may not use it"
        if self.roots is not None and mode is not Mode.RESTRICTED:
            return "it cannot keep the files of one principal from another: only a server of its own can"
        return ""

    def allows_model(self, name: str) -> bool:
        """Whether it may use a model."""
        return self.models is None or any(fnmatchcase(name, pattern) for pattern in self.models)

    def allows_mcp_server(self, name: str) -> bool:
        """Whether its conversations are offered the tools of an MCP server of the operator."""
        return self.mcp_servers is None or name in self.mcp_servers


EVERYTHING = Permissions()

NOTHING = Permissions(modes=frozenset(), roots=(), models=(), mcp_servers=())
"""The permissions of a principal that the settings no longer name."""


def everything(principal: str) -> Permissions:  # noqa: ARG001 -- the port's signature
    """Return the permissions of a server's only principal."""
    return EVERYTHING


class PermissionsOf(Protocol):
    """The permissions of each principal. Any thread; never blocks."""

    def __call__(self, principal: str) -> Permissions:
        """Return the permissions of a principal; NOTHING for an unknown one."""
        ...
