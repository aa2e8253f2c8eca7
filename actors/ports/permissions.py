"""The permissions of principals: modes, directories, models and MCP servers."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Protocol

from msgspec import Struct

from actors.core.context import Mode


class Permissions(Struct, frozen=True):
    """The permissions of a principal (a person or service). By default, everything is allowed."""

    modes: frozenset[Mode] = frozenset(Mode)
    """The permission modes (what tools may do) that the principal's conversations may have."""
    roots: tuple[str, ...] | None = None
    """The real paths of the directories to which the principal's conversations are confined; None: no limit."""
    models: tuple[str, ...] | None = None
    """The models that the principal may use, as patterns such as `claude-*`; None: all."""
    mcp_servers: tuple[str, ...] | None = None
    """The operator's MCP servers whose tools the principal's conversations are offered; None: all."""

    def refusal(self, mode: Mode) -> str:
        """Return why the principal's conversations may not have this mode, as human-readable text; "" if they may."""
        if mode not in self.modes:
            return "this principal may not use it"
        if self.roots is not None and mode is not Mode.RESTRICTED:
            return "it cannot keep the files of one principal from another: only a server of its own can"
        return ""

    def allows_model(self, name: str) -> bool:
        """Return whether the principal may use this model."""
        return self.models is None or any(fnmatchcase(name, pattern) for pattern in self.models)

    def allows_mcp_server(self, name: str) -> bool:
        """Return whether the principal's conversations are offered the tools of this MCP server of the operator."""
        return self.mcp_servers is None or name in self.mcp_servers


EVERYTHING = Permissions()

NOTHING = Permissions(modes=frozenset(), roots=(), models=(), mcp_servers=())
"""The permissions of a principal that the settings no longer mention."""


def everything(principal: str) -> Permissions:  # noqa: ARG001 -- the port's signature
    """Return all permissions, because this principal is the only one of its server."""
    return EVERYTHING


class PermissionsOf(Protocol):
    """Returns the permissions of each principal. Safe to call from any thread; never blocks."""

    def __call__(self, principal: str) -> Permissions:
        """Return the permissions of this principal; NOTHING for an unknown principal."""
        ...
