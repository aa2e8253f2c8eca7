"""Principals: the users and services in the operator's settings. Each has its own conversations.

Also contains the settings tables that refer to principals: issuers of JSON Web Tokens, client certificates, and quotas.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from actors.common.settings_checks import Text, is_loopback
from actors.core.context import Mode
from actors.ports.sandbox import ALL_PERMISSIONS, Permissions
from actors.runtime.quotas import COSTS, Limits, Quota, QuotaSettings, fair_share

# The principal of the operating system user that runs the server. It holds the local token and may do everything.
LOCAL = "local"

CERTIFICATE_NAME = re.compile(r"(uri|dns|email|cn):.+")
SYSTEM = ("/proc/", "/sys/", "/dev/")


class Role(StrEnum):
    """A caller's rights in the conversations of its principal. Each role includes the roles before it."""

    READER = "reader"
    """May read and watch conversations."""
    USER = "user"
    """May use conversations: create, send, cancel, approve and delete."""
    OPERATOR = "operator"

    def includes(self, other: Role) -> bool:
        order = tuple(Role)
        return order.index(self) >= order.index(other)


class Principal(Struct, frozen=True):
    """A user or service that calls the server, from [principals.NAME] or the template in [issuers.NAME.template]."""

    name: str
    permissions: Permissions
    role: Role = Role.USER
    """The highest role that a token of this principal can have."""
    quotas: Limits = {}


class Caller(Struct, frozen=True):
    """The authenticated caller of a gRPC call."""

    principal: str
    role: Role
    token: str = ""
    issuer: str = ""
    """The name of the issuer of the token; "" if no issuer's token was used."""
    expires_at: float = 0.0
    secret: str = ""
    """The beginning of the hash of the token's secret, to detect a rotation. Not secret."""
    certificate_ends: float = 0.0
    """When the caller's client certificate expires, in seconds since 1970; 0 without a certificate."""


OWNER = Principal(LOCAL, ALL_PERMISSIONS, Role.OPERATOR)
"""The operating system user that runs the server. It has no restrictions: it can read the server's files anyway."""


Count = Annotated[int, Meta(ge=0, le=2**53, description="must be a whole number, 0 for no limit")] | UnsetType
Dollars = Annotated[float, Meta(ge=0, le=2**53, description="must be an amount in dollars, 0 for no limit")] | UnsetType


class Quotas(Struct, frozen=True, forbid_unknown_fields=True):
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
        given = {quota: value for quota in Quota if (value := getattr(self, quota)) is not UNSET}
        return {quota: round(value * 1_000_000) if quota in COSTS else value for quota, value in given.items()}


class PrincipalDefaults(Struct, frozen=True, forbid_unknown_fields=True):
    quotas: Quotas = Quotas()


class PrincipalTable(Struct, frozen=True, forbid_unknown_fields=True):
    roots: Annotated[tuple[Text, ...], Meta(description="must be a list of the directories that the principal uses")]
    modes: tuple[Mode, ...] = (Mode.RESTRICTED,)
    models: tuple[Text, ...] | None = None
    mcp_servers: tuple[Text, ...] = ()
    role: Role = Role.USER
    quotas: Quotas = Quotas()


def principals_from_tables(tables: Mapping[str, PrincipalTable]) -> dict[str, Principal]:
    """The principals, by name. Raises ValueError with a message such as "principals.NAME.roots: why"."""
    if LOCAL in tables:
        raise ValueError(f"principals.{LOCAL}: this is the server's own user; choose another name")
    return {name: principal_of(f"principals.{name}", name, table) for name, table in tables.items()}


def principal_of(where: str, name: str, table: PrincipalTable) -> Principal:
    """The principal described by the table `where`. Raises ValueError with a message such as "WHERE.roots: why"."""
    permissions = Permissions(
        modes=frozenset(table.modes),
        roots=tuple(_root(f"{where}.roots", root) for root in table.roots),
        models=table.models,
        mcp_servers=table.mcp_servers,
    )
    return Principal(name, permissions, table.role, table.quotas.limits)


def principals_of(where: str, names: Mapping[str, str], principals: Mapping[str, Principal]) -> dict[str, Principal]:
    """The principals for the names in a table, keyed by claim or certificate. Raises ValueError ("WHERE: why")."""
    for said, name in names.items():
        if name not in principals:
            known = ", ".join(sorted(principals)) or "none"
            raise ValueError(f"{where}: {said!r} is mapped to {name!r}, which is not a principal; principals: {known}")
    return {said: principals[name] for said, name in names.items()}


def _root(where: str, root: str) -> str:
    """A principal's directory with symbolic links resolved, so that no link can be redirected later."""
    real = os.path.realpath(root.replace("\0", ""))
    if not root.startswith("/") or "\0" in root or real == "/":
        raise ValueError(f"{where}: {root!r} must be an absolute path other than /")
    if f"{real}/".startswith(SYSTEM):
        raise ValueError(f"{where}: {root!r} must not be a system directory that shows all processes")
    return real


# The supported signature algorithms, all with public keys, each with the type or the elliptic curve of its keys.
ALGORITHMS = {
    "RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
    "ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519",
}  # fmt: skip
USUAL_ALGORITHMS = ("RS256", "ES256")
USUAL_ROLES = {role.value: role for role in Role}
MAX_VALUE_CHARS = 255
PLACEHOLDER = "{principal}"
"""The placeholder in a template's directories for the value of the claim that names the principal."""
# How many principals created from a template are cached, so that their directories are resolved only once.
KNOWN_PRINCIPALS = 4_096


class Template:
    """Creates principals for users whom the settings do not name, with the rights of one table. Thread-safe."""

    def __init__(self, issuer: str, table: PrincipalTable) -> None:
        """Raises ValueError with a message such as "issuers.NAME.template.roots: why"."""
        self._prefix, self._table = f"{issuer}:", table
        self._where = f"issuers.{issuer}.template"
        self.quotas = table.quotas.limits
        for root in table.roots:
            if "{" in root.replace(PLACEHOLDER, ""):
                raise ValueError(f"{self._where}.roots: {root!r} has a brace outside {PLACEHOLDER}")
        self._personal = any(PLACEHOLDER in root for root in table.roots)
        principal_of(self._where, self._where, self._table_of("example"))
        self.principal = functools.lru_cache(KNOWN_PRINCIPALS)(self._principal)

    def _principal(self, value: str) -> Principal | None:
        if not _names_somebody(value) or (self._personal and ("/" in value or value.startswith("."))):
            return None
        try:
            return principal_of(self._where, self._prefix + value, self._table_of(value))
        except ValueError:  # with this value, one of the template's roots is not allowed for any principal
            return None

    def _table_of(self, value: str) -> PrincipalTable:
        return replace(self._table, roots=tuple(root.replace(PLACEHOLDER, value) for root in self._table.roots))


class Texts(tuple[str, ...]):
    __slots__ = ()

    @classmethod
    def of(cls, value: object) -> Texts:
        found = [value] if isinstance(value, str) else value
        if not (isinstance(found, list) and found and all(isinstance(each, str) and each for each in found)):
            raise ValueError("required, as a string or a list of strings")
        return cls(found)


class IssuerTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Text = field(name="issuer")
    """The exact value of the claim `iss` in the issuer's tokens."""
    audiences: Texts = field(name="audience")
    jwks_url: str = ""
    """The URL of the issuer's keys; "" if they are in a file."""
    jwks_file: Path | None = None
    ca_bundle: Path | None = None
    """A PEM file with the certificate authorities to trust for `jwks_url`; None for those of the package certifi."""
    algorithms: Texts = Texts(USUAL_ALGORITHMS)
    leeway_seconds: Annotated[float, Meta(ge=0, le=300, description="must be between 0 and 300 seconds")] = 30.0
    """How far the issuer's clock and this machine's may differ, in seconds."""
    principal_claim: Text = "sub"
    principals: dict[str, str] = {}
    role_claim: Text = ""
    roles: dict[str, Role] = field(default_factory=USUAL_ROLES.copy)
    """The roles that the values of `role_claim` stand for."""
    template: PrincipalTable | None = None

    def __post_init__(self) -> None:
        if self.jwks_url and self.jwks_file is not None:
            raise ValueError(".jwks_url: set either jwks_url or jwks_file, not both")
        if not self.jwks_url and self.jwks_file is None:
            raise ValueError(".jwks_url: either this or jwks_file is required, for the issuer's keys")
        if self.jwks_url and (fault := _url_fault(self.jwks_url)):
            raise ValueError(f".jwks_url: {fault}")
        for name in self.algorithms:
            if name not in ALGORITHMS:
                raise ValueError(f".algorithms: {name!r} is not one of {', '.join(ALGORITHMS)}")
        if self.roles != USUAL_ROLES and not self.role_claim:
            raise ValueError(".role_claim: required with roles, which maps the values of this claim")
        if self.template is None and not self.principals:
            raise ValueError(f".principals: map each {self.principal_claim} to a principal, or set a template for all")


class Issuer(Struct, frozen=True):
    name: str
    table: IssuerTable
    principals: Mapping[str, Principal]
    """The principals named in the settings, keyed by value of `principal_claim`."""
    template: Template | None = None

    def principal(self, value: str) -> Principal | None:
        """The principal that a value of `principal_claim` identifies; None if the value identifies none."""
        named = self.principals.get(value)
        return named if named is not None or self.template is None else self.template.principal(value)


def issuers_from_tables(tables: Mapping[str, IssuerTable], principals: Mapping[str, Principal]) -> dict[str, Issuer]:
    """The issuers, by name. Raises ValueError with a message such as "issuers.NAME.issuer: why"."""
    urls = [each.url for each in tables.values()]
    found: dict[str, Issuer] = {}
    for name, table in tables.items():
        if urls.count(table.url) > 1:
            raise ValueError(f"issuers.{name}.issuer: another table has the same issuer; merge them")
        named = principals_of(f"issuers.{name}.principals", table.principals, principals)
        found[name] = Issuer(name, table, named, None if table.template is None else Template(name, table.template))
    return found


def client_certificates(names: Mapping[str, str], principals: Mapping[str, Principal]) -> dict[str, Principal]:
    """The principals, keyed by name in certificates. Raises ValueError ("client_certificates: why")."""
    for name in names:
        if not CERTIFICATE_NAME.fullmatch(name):
            raise ValueError(f"client_certificates: {name!r} must be uri:, dns:, email: or cn:, followed by a name")
    return principals_of("client_certificates", names, principals)


def _names_somebody(value: str) -> bool:
    return 0 < len(value) <= MAX_VALUE_CHARS and value.isprintable()


def _url_fault(text: str) -> str:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urlsplit("")
    if not host or parts.username or parts.fragment or not text.isascii() or not text.isprintable() or " " in text:
        return "must be an ASCII URL without credentials or a fragment, such as https://host/path"
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        return "must begin with https://, because keys changed in transit would admit anyone"
    return ""


def quota_settings(
    together: Quotas, defaults: PrincipalDefaults, principals: Mapping[str, Principal], issuers: Mapping[str, Issuer]
) -> QuotaSettings:
    """Combine the quotas from [quotas], the defaults, the principals and the templates.

    Each quota of a principal or its template overrides the default for that quota. Only [quotas] applies to the
    server's own user. Without a default for concurrent model requests, each principal gets a share of the number in
    [quotas].
    """
    of_all, each = together.limits, defaults.quotas.limits
    if principals or issuers:
        share = fair_share(of_all.get(Quota.CONCURRENT_MODEL_REQUESTS, 0))
        each = {Quota.CONCURRENT_MODEL_REQUESTS: share, **each}
    named = {name: {**each, **principal.quotas} for name, principal in principals.items() if principal.quotas}
    of_templates = {
        name: {**each, **issuer.template.quotas}
        for name, issuer in issuers.items()
        if issuer.template is not None and issuer.template.quotas
    }
    own_user: dict[str, Limits] = {LOCAL: {}} if each else {}
    return QuotaSettings(of_all, each, {**named, **own_user}, of_templates)
