"""Reads the settings of issuers of JSON Web Tokens: their keys, and which principals their tokens identify."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from actors.ports.settings.settings_checks import check_keys, is_loopback
from server.auth.principals import KEYS as PRINCIPAL_KEYS
from server.auth.principals import NAME, Principal, Role, principal_from_table, principals_of

ALGORITHMS = {
    "RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
    "ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519",
}  # fmt: skip
"""The supported signature algorithms, all with public keys. The value is the type or the elliptic curve of the keys."""
USUAL_ALGORITHMS = ("RS256", "ES256")
KEYS = (
    "issuer", "audience", "jwks_url", "jwks_file", "ca_bundle", "algorithms", "leeway_seconds", "principal_claim",
    "principals", "role_claim", "roles", "template",
)  # fmt: skip
MAX_VALUE_CHARS = 255
"""Maximum length of the value of a claim that names a principal."""
PLACEHOLDER = "{principal}"
"""The placeholder in a template's directories for the value of the claim that names the principal."""
KNOWN_PRINCIPALS = 4_096
"""How many principals created from a template are cached, so that their directories are resolved only once."""


class Template:
    """Creates principals for users of an issuer whom the settings do not name, all with the rights in one table.

    Safe to use from any thread.
    """

    def __init__(self, issuer: str, table: Mapping[str, Any]) -> None:
        """Read the table [issuers.NAME.template].

        Raises ValueError with a text such as "issuers.NAME.template.roots: why".
        """
        self._prefix, self._table = f"{issuer}:", table
        self._where = f"issuers.{issuer}.template"
        self.quotas: Any = table.get("quotas", {})
        """The quotas of every principal that is created from the template, as written in the settings."""
        for root in table.get("roots", ()):
            if "{" in str(root).replace(PLACEHOLDER, ""):
                raise ValueError(f"{self._where}.roots: {root!r} has a brace that does not belong to {PLACEHOLDER}")
        self._personal = any(PLACEHOLDER in str(root) for root in table.get("roots", ()))
        principal_from_table(self._where, self._where, self._table_of("example"))
        self.principal = functools.lru_cache(KNOWN_PRINCIPALS)(self._principal)

    def _principal(self, value: str) -> Principal | None:
        """Return the principal for a value of the claim that names principals; None if the value cannot name one."""
        if not _names_somebody(value) or (self._personal and ("/" in value or value.startswith("."))):
            return None
        try:
            return principal_from_table(self._where, self._prefix + value, self._table_of(value))
        except ValueError:  # with this value, a directory of the template is one that no principal may use
            return None

    def _table_of(self, value: str) -> dict[str, Any]:
        roots = self._table.get("roots")
        if not isinstance(roots, list):
            return dict(self._table)
        personal = [root.replace(PLACEHOLDER, value) if isinstance(root, str) else root for root in roots]
        return {**self._table, "roots": personal}


class Issuer(Struct, frozen=True):
    """An issuer of JSON Web Tokens, as configured in a table [issuers.NAME]."""

    name: str
    url: str
    """The exact value of the claim `iss` in the issuer's tokens."""
    audiences: tuple[str, ...]
    """The accepted audiences. The claim `aud` must contain one of them."""
    jwks_url: str = ""
    """The URL of the issuer's keys; "" if they are in a file."""
    jwks_file: Path | None = None
    ca_bundle: Path | None = None
    """A PEM file with the certificate authorities to trust for `jwks_url`; None for those of the package certifi."""
    algorithms: tuple[str, ...] = USUAL_ALGORITHMS
    leeway_seconds: float = 30.0
    """How far the issuer's clock and this machine's may differ, in seconds."""
    principal_claim: str = "sub"
    principals: Mapping[str, Principal] = {}
    """The principals that the settings name. The keys are values of `principal_claim`."""
    role_claim: str = ""
    """The claim that limits the caller's role; "" if no claim does."""
    roles: Mapping[str, Role] = {}
    """The roles that the values of `role_claim` stand for."""
    template: Template | None = None

    def principal(self, value: str) -> Principal | None:
        """Return the principal that a value of `principal_claim` identifies; None if the value identifies none."""
        named = self.principals.get(value)
        return named if named is not None or self.template is None else self.template.principal(value)


def issuers_from_tables(
    tables: Mapping[str, Mapping[str, Any]], principals: Mapping[str, Principal]
) -> dict[str, Issuer]:
    """Read the tables [issuers.NAME], and return the issuers by name.

    Raises ValueError with a text such as "issuers.NAME.audience: why".
    """
    found = {name: _issuer(name, table, principals) for name, table in tables.items()}
    urls = [each.url for each in found.values()]
    for name, each in found.items():
        if urls.count(each.url) > 1:
            raise ValueError(f"issuers.{name}.issuer: another table has this issuer, too; make one of both")
    return found


def _issuer(name: str, table: Mapping[str, Any], principals: Mapping[str, Principal]) -> Issuer:
    where = f"issuers.{name}"
    if not NAME.fullmatch(name):
        raise ValueError(f"{where}: a name has up to 64 small letters, digits, dots, hyphens, underscores or @")
    check_keys(where, table, KEYS)
    if "jwks_url" in table and "jwks_file" in table:
        raise ValueError(f"{where}.jwks_url: there is a jwks_file, too; give one of both")
    if "jwks_url" not in table and "jwks_file" not in table:
        raise ValueError(f"{where}.jwks_url: name where its keys are, here or as jwks_file")
    if "roles" in table and "role_claim" not in table:
        raise ValueError(f"{where}.role_claim: needed, since roles are given by the values of a claim")
    template = table.get("template")
    if template is not None and not isinstance(template, dict):
        raise ValueError(f"{where}.template: must be a table with the keys {', '.join(PRINCIPAL_KEYS)}")
    if template is None and not table.get("principals"):
        raise ValueError(f"{where}.principals: name a principal for each {_claim(table)}, or a template for all")
    return Issuer(
        name=name,
        url=_text(f"{where}.issuer", table.get("issuer")),
        audiences=_texts(f"{where}.audience", table.get("audience")),
        jwks_url=_url(f"{where}.jwks_url", table["jwks_url"]) if "jwks_url" in table else "",
        jwks_file=_file(f"{where}.jwks_file", table["jwks_file"]) if "jwks_file" in table else None,
        ca_bundle=_file(f"{where}.ca_bundle", table["ca_bundle"]) if "ca_bundle" in table else None,
        algorithms=_algorithms(f"{where}.algorithms", table.get("algorithms", list(USUAL_ALGORITHMS))),
        leeway_seconds=_leeway(f"{where}.leeway_seconds", table.get("leeway_seconds", 30)),
        principal_claim=_claim(table),
        principals=_named(f"{where}.principals", table.get("principals", {}), principals),
        role_claim=_text(f"{where}.role_claim", table["role_claim"]) if "role_claim" in table else "",
        roles=_roles(f"{where}.roles", table.get("roles", {role.value: role.value for role in Role})),
        template=None if template is None else Template(name, template),
    )


def _names_somebody(value: str) -> bool:
    return 0 < len(value) <= MAX_VALUE_CHARS and value.isprintable()


def _claim(table: Mapping[str, Any]) -> str:
    return str(table.get("principal_claim", "sub"))


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: needed, as a text")
    return value


def _texts(where: str, value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not (isinstance(found, list) and found and all(isinstance(each, str) and each for each in found)):
        raise ValueError(f"{where}: needed, as a text or a list of texts")
    return tuple(found)


def _file(where: str, value: Any) -> Path:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError(f"{where}: must be an absolute path")
    return Path(value)


def _url(where: str, value: Any) -> str:
    text = _text(where, value)
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urlsplit("")
    if not host or parts.username or parts.fragment or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(f"{where}: must be a URL without a user: https://host/path")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise ValueError(f"{where}: must begin with https://, since whoever changes the keys on the way gets in")
    return text


def _algorithms(where: str, value: Any) -> tuple[str, ...]:
    found = _texts(where, value)
    for name in found:
        if name not in ALGORITHMS:
            raise ValueError(f"{where}: {name!r} is none of {', '.join(ALGORITHMS)}")
    return found


def _leeway(where: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 300:
        raise ValueError(f"{where}: must be between 0 and 300 seconds")
    return float(value)


def _named(where: str, value: Any, principals: Mapping[str, Principal]) -> dict[str, Principal]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must be a table from values of the claim to names of principals")
    return principals_of(where, value, principals)


def _roles(where: str, value: Any) -> dict[str, Role]:
    known = ", ".join(Role)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must be a table from values of the claim to {known}")
    try:
        return {said: Role(role) for said, role in value.items()}
    except ValueError:
        raise ValueError(f"{where}: each value stands for one of {known}") from None
