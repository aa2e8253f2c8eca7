"""Principals: people and services, named in the operator's settings, whose conversations are kept apart."""

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
"""The principal of the operating system user that runs the server. It holds the local token and may do everything."""

NAME = re.compile(r"[a-z0-9]([a-z0-9._@-]{0,62}[a-z0-9])?")
KEYS = ("roots", "modes", "models", "mcp_servers", "role", "quotas")
SYSTEM = ("/proc/", "/sys/", "/dev/")
"""A directory that a principal may use cannot be beneath one of these."""


class Role(StrEnum):
    """What a caller may do with the conversations of its principal. Each role includes the roles before it."""

    READER = "reader"
    """May read and watch conversations."""
    USER = "user"
    """May use conversations: create, send, cancel, approve and delete."""
    OPERATOR = "operator"
    """May use conversations, and read the audit trail of all principals."""

    def includes(self, other: Role) -> bool:
        """Return whether this role has all rights of another role."""
        order = tuple(Role)
        return order.index(self) >= order.index(other)


class Principal(Struct, frozen=True):
    """A person or service that calls the server, from [principals.NAME] or the template in [issuers.NAME.template]."""

    name: str
    permissions: Permissions
    role: Role = Role.USER
    """The highest role that a token of this principal can have."""
    quotas: Mapping[str, Any] = {}
    """The principal's own quotas, as written in the settings."""


class Caller(Struct, frozen=True):
    """The authenticated caller of a gRPC call."""

    principal: str
    role: Role
    token: str = ""
    """The id of the principal's token, or of the key that signed an issuer's token, or BY_AUTHORIZER.

    "" for the server's own user, and for a principal that is identified by its certificate alone.
    """
    issuer: str = ""
    """The name of the issuer of the token; "" if no issuer's token was used."""
    expires_at: float = 0.0
    """When the issuer's token or the authorizer's identity expires, in seconds since 1970; 0 for other callers."""
    secret: str = ""
    """The beginning of the hash of the token's secret, which changes when the token is rotated.

    It is not secret itself.
    """
    certificate_ends: float = 0.0
    """When the caller's client certificate expires, in seconds since 1970; 0 without a certificate."""

    @property
    def ends(self) -> bool:
        """Whether the caller's token, identity or certificate can become invalid while the call runs."""
        return bool(self.token or self.certificate_ends)


OWNER = Principal(LOCAL, EVERYTHING, Role.OPERATOR)
"""The operating system user that runs the server. It has no restrictions: it can read the server's files anyway."""


def principals_from_tables(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Principal]:
    """Read the tables [principals.NAME], and return the principals by name.

    Raises ValueError with a text such as "principals.NAME.roots: why".
    """
    for name in tables:
        if not NAME.fullmatch(name) or name == LOCAL:
            raise ValueError(
                f"principals.{name}: a name has up to 64 small letters, digits, dots, hyphens, underscores or @, "
                f"and is not {LOCAL}"
            )
    return {name: principal_from_table(f"principals.{name}", name, table) for name, table in tables.items()}


def principal_from_table(where: str, name: str, table: Mapping[str, Any]) -> Principal:
    """Return the principal that a table of the settings describes. `where` is the name of the table.

    Raises ValueError with a text such as "WHERE.roots: why".
    """
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
    """Replace the names of principals in a table by the principals themselves.

    The keys of `names` are kept: values of a claim in tokens, or names in certificates. Raises ValueError with the text
    "WHERE: why" if a principal does not exist.
    """
    for said, name in names.items():
        if name not in principals:
            known = ", ".join(sorted(principals)) or "none"
            raise ValueError(f"{where}: {said!r} stands for {name!r}, which is no principal; there are: {known}")
    return {said: principals[name] for said, name in names.items()}


def _roots(where: str, value: Any) -> tuple[str, ...]:
    """Return the principal's directories with symbolic links resolved, so that nobody can redirect one later.

    Raises ValueError for a relative path, for /, and for directories beneath those in SYSTEM.
    """
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
