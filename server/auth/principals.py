"""Principals: people and services, named in the operator's settings, whose conversations are kept apart."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from actors.core.context import Mode
from actors.ports.sandbox import ALL_PERMISSIONS, Permissions
from actors.ports.settings.settings_checks import Text, read
from actors.runtime.quotas import COSTS, Limits, Quota

LOCAL = "local"
"""The principal of the operating system user that runs the server. It holds the local token and may do everything."""

NAME = re.compile(r"[a-z0-9]([a-z0-9._@-]{0,62}[a-z0-9])?")
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
    quotas: Limits = {}
    """The principal's own quotas."""


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


OWNER = Principal(LOCAL, ALL_PERMISSIONS, Role.OPERATOR)
"""The operating system user that runs the server. It has no restrictions: it can read the server's files anyway."""


Count = Annotated[int, Meta(ge=0, le=2**53, description="must be a whole number, 0 for no limit")] | UnsetType
Dollars = Annotated[float, Meta(ge=0, le=2**53, description="must be dollars, 0 for no limit")] | UnsetType


class Quotas(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of quotas, by the names in `Quota`."""

    concurrent_runs: Count = UNSET
    concurrent_model_requests: Count = UNSET
    streams: Count = UNSET
    calls_per_second: Count = UNSET
    stored_bytes: Count = UNSET
    tokens_per_day: Count = UNSET
    tokens_per_month: Count = UNSET
    cost_per_day: Dollars = UNSET
    cost_per_month: Dollars = UNSET

    @property
    def limits(self) -> Limits:
        """The quotas that the table sets."""
        given = {quota: value for quota in Quota if (value := getattr(self, quota)) is not UNSET}
        return {quota: round(value * 1_000_000) if quota in COSTS else value for quota, value in given.items()}


class PrincipalDefaults(Struct, frozen=True, forbid_unknown_fields=True):
    """The table [principal_defaults]."""

    quotas: Quotas = Quotas()


class PrincipalTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A table [principals.NAME], or the template in [issuers.NAME.template]."""

    roots: Annotated[tuple[Text, ...], Meta(description="must be a list of the directories that the principal uses")]
    modes: tuple[Mode, ...] = (Mode.RESTRICTED,)
    models: tuple[Text, ...] | None = None
    mcp_servers: tuple[Text, ...] = ()
    role: Role = Role.USER
    quotas: Quotas = Quotas()


def principals_from_tables(tables: Mapping[str, Any]) -> dict[str, Principal]:
    """Read the tables [principals.NAME], and return the principals by name.

    Raises ValueError with a text such as "principals.NAME.roots: why".
    """
    for name in tables:
        if not NAME.fullmatch(name) or name == LOCAL:
            raise ValueError(
                f"principals.{name}: a name has up to 64 small letters, digits, dots, hyphens, underscores or @, "
                f"and is not {LOCAL}"
            )
    wheres = {name: f"principals.{name}" for name in tables}
    return {
        name: principal_of(where, name, read(PrincipalTable, where, tables[name])) for name, where in wheres.items()
    }


def principal_of(where: str, name: str, table: PrincipalTable) -> Principal:
    """Return the principal that a table describes. `where` is the name of the table.

    Raises ValueError with a text such as "WHERE.roots: why".
    """
    permissions = Permissions(
        modes=frozenset(table.modes),
        roots=tuple(_root(f"{where}.roots", root) for root in table.roots),
        models=table.models,
        mcp_servers=table.mcp_servers,
    )
    return Principal(name, permissions, table.role, table.quotas.limits)


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


def _root(where: str, root: str) -> str:
    """Return a principal's directory with symbolic links resolved, so that none can be redirected later."""
    real = os.path.realpath(root.replace("\0", ""))
    if not root.startswith("/") or "\0" in root or real == "/":
        raise ValueError(f"{where}: {root!r} must be an absolute path, and not /")
    if f"{real}/".startswith(SYSTEM):
        raise ValueError(f"{where}: {root!r} must hold files of its own: there all processes can be seen")
    return real
