"""Principals: the people and services whose conversations are kept apart, as the operator's settings name them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from actors.core.context import Mode
from actors.ports.permissions import EVERYTHING, Permissions
from actors.ports.settings.settings_checks import check_keys

LOCAL = "local"
"""The principal of the server's own user, who has the token of the data directory and may do everything."""

NAME = re.compile(r"[a-z0-9]([a-z0-9._@-]{0,62}[a-z0-9])?")
KEYS = ("roots", "modes", "models", "mcp_servers", "role", "quotas")
SYSTEM = ("/proc/", "/sys/", "/dev/")
"""Where no principal can have a root."""


class Role(StrEnum):
    """What a caller may do with the conversations of its principal; each role may do what those before it may."""

    READER = "reader"
    """Look at conversations, and follow them."""
    USER = "user"
    """Use conversations: everything that a person at a terminal does."""
    OPERATOR = "operator"
    """Use conversations, and see the audit trail of all principals."""

    def includes(self, other: Role) -> bool:
        """Whether this role may do everything that another one may."""
        order = tuple(Role)
        return order.index(self) >= order.index(other)


class Principal(Struct, frozen=True):
    """A principal of the settings."""

    name: str
    permissions: Permissions
    role: Role = Role.USER
    """The most that a token of this principal may be given."""
    quotas: Mapping[str, Any] = {}
    """Its own quotas, as the settings have them."""


class Caller(Struct, frozen=True):
    """Who makes a call."""

    principal: str
    role: Role
    token: str = ""
    """The id of the token in the token file, or of its issuer's key, or BY_AUTHORIZER; "" for the server's own user."""
    issuer: str = ""
    """Who issued the token; "" for the server itself."""
    expires_at: float = 0.0
    """When a token of an issuer, or what the authorizer said, ends; in seconds since 1970."""
    secret: str = ""
    """What tells a token of the token file from those of the same id before it was rotated; no secret itself."""
    certificate_ends: float = 0.0
    """When the certificate that the call was made with expires, in seconds since 1970; 0: it was made with none."""

    @property
    def ends(self) -> bool:
        """Whether what the call was made with can end before the call does."""
        return bool(self.token or self.certificate_ends)


OWNER = Principal(LOCAL, EVERYTHING, Role.OPERATOR)
"""The server's own user. A tool of the same user could read everything that the server can, so nothing is gained by
keeping it from anything."""


def principals_from_tables(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Principal]:
    """Return the principals of the tables [principals.NAME]. Raises ValueError, "principals.NAME.key: why"."""
    for name in tables:
        if not NAME.fullmatch(name) or name == LOCAL:
            raise ValueError(
                f"principals.{name}: a name has up to 64 small letters, digits, dots, hyphens, underscores or @, "
                f"and is not {LOCAL}"
            )
    return {name: principal_from_table(f"principals.{name}", name, table) for name, table in tables.items()}


def principal_from_table(where: str, name: str, table: Mapping[str, Any]) -> Principal:
    """Return the principal of a table, which errors call `where`. Raises ValueError, "where.key: why"."""
    check_keys(where, table, KEYS)
    modes = _choices(f"{where}.modes", table.get("modes", [Mode.RESTRICTED]), Mode)
    role = _choices(f"{where}.role", [table.get("role", Role.USER)], Role)[0]
    if "roots" not in table:
        raise ValueError(f"{where}.roots: name the directories in which this principal works, and all that it reads")
    permissions = Permissions(
        modes=frozenset(modes),
        roots=_roots(f"{where}.roots", table["roots"]),
        models=_names(f"{where}.models", table["models"]) if "models" in table else None,
        mcp_servers=_names(f"{where}.mcp_servers", table.get("mcp_servers", [])),
    )
    return Principal(name, permissions, role, table.get("quotas", {}))


def principals_of(where: str, names: Mapping[str, Any], principals: Mapping[str, Principal]) -> dict[str, Principal]:
    """Return the principals that something stands for, by its name. Raises ValueError, "where: why"."""
    for said, name in names.items():
        if name not in principals:
            known = ", ".join(sorted(principals)) or "none"
            raise ValueError(f"{where}: {said!r} stands for {name!r}, which is no principal; there are: {known}")
    return {said: principals[name] for said, name in names.items()}


def _roots(where: str, value: Any) -> tuple[str, ...]:
    """Return the directories' real paths: links are followed now, so that nobody can choose others by a link later."""
    found: list[str] = []
    for root in _names(where, value):
        real = os.path.realpath(root.replace("\0", ""))
        if not root.startswith("/") or "\0" in root or real == "/":
            raise ValueError(f"{where}: {root!r} must be an absolute path, and not /")
        if f"{real}/".startswith(SYSTEM):
            raise ValueError(f"{where}: {root!r} must hold files of its own: there all processes can be seen")
        found.append(real)
    return tuple(found)


def _names(where: str, value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and all(isinstance(each, str) and each for each in value)):
        raise ValueError(f"{where}: must be a list of texts")
    return tuple(value)


def _choices(where: str, value: Any, kind: type[StrEnum]) -> list[Any]:
    known = ", ".join(kind)
    if not isinstance(value, list):
        raise ValueError(f"{where}: must be a list of {known}")
    try:
        return [kind(each) for each in value]
    except ValueError:
        raise ValueError(f"{where}: must be one of {known}") from None
