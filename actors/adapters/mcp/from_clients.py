"""MCP servers that clients choose for a conversation: the operator's rules for these servers, and their validation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

from actors.adapters.mcp.server_settings import HEADER, NAME, McpServer, url_fault, value_of
from actors.ports.mcp import McpNotAllowedError, McpServerInvalidError
from actors.ports.settings.settings_checks import check_keys

if TYPE_CHECKING:
    from actors.core.profile import ChosenMcpServer

SETTING = "mcp_from_clients"
REFERENCE = "secret:"
"""A header value that begins with this text refers to a secret of the operator; the secret's name follows."""

MAX_SERVERS = 8
MAX_TEXT = 4096
"""Maximum characters of an argument, an environment variable's value, a URL or a tool name."""
MAX_ENTRIES = 64
"""Maximum number of a server's arguments, of its environment variables, of its headers, and of its read-only tools."""

_SETTINGS = ("programs", "urls", "secrets")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_CONNECTION = frozenset({"connection", "content-length", "host", "transfer-encoding"})
_PORTS = {"http": 80, "https": 443}


class BoundSecret(Struct, frozen=True):
    """A secret of the operator that is sent to one origin (scheme, host and port) only."""

    value: str
    origin: str

    def __repr__(self) -> str:
        return f"BoundSecret(***, {self.origin!r})"


class FromClients(Struct, frozen=True):
    """The operator's rules for MCP servers that clients choose. By default clients may choose none."""

    programs: bool = False
    """Whether clients may choose programs.

    Such a program runs under the same limits as the tools of its conversation.
    """
    origins: frozenset[str] = frozenset()
    """The origins (scheme, host and port) of the server URLs that clients may choose."""
    secrets: Mapping[str, BoundSecret] = {}


def from_clients(table: Mapping[str, Any], environ: Mapping[str, str]) -> FromClients:
    """Read the table [mcp_from_clients] of the configuration.

    Values in the table may refer to environment variables, which are looked up in `environ`. Raises ValueError; its
    text begins with the setting's name and contains no secret.
    """
    check_keys(SETTING, table, _SETTINGS)
    programs, urls, secrets = table.get("programs", False), table.get("urls", []), table.get("secrets", {})
    if not isinstance(programs, bool):
        raise ValueError(f"{SETTING}.programs: must be true or false")
    if not (isinstance(urls, list) and all(isinstance(url, str) for url in urls)):
        raise ValueError(f"{SETTING}.urls: must be a list of texts")
    if not isinstance(secrets, dict):
        raise ValueError(f"{SETTING}.secrets: must be a table")
    origins = frozenset(_allowed(f"{SETTING}.urls", url) for url in urls)
    known = {name: _secret(f"{SETTING}.secrets.{name}", value, origins, environ) for name, value in secrets.items()}
    return FromClients(programs, origins, known)


def _allowed(where: str, url: str) -> str:
    fault = url_fault(url)
    if not fault and (urlsplit(url).path not in {"", "/"} or "?" in url or "#" in url):
        fault = "must end with the host or the port: all paths are allowed"
    if fault:
        raise ValueError(f"{where}: {fault}")
    return origin_of(url)


def _secret(where: str, given: Any, origins: frozenset[str], environ: Mapping[str, str]) -> BoundSecret:
    if not isinstance(given, dict) or given.keys() != {"value", "url"} or not isinstance(given["url"], str):
        raise ValueError(f'{where}: must be {{ value = "…", url = "https://…" }}')
    origin = _allowed(f"{where}.url", given["url"])
    if origin not in origins:
        raise ValueError(f"{where}.url: is not among {SETTING}.urls")
    return BoundSecret(value_of(f"{where}.value", given["value"], environ), origin)


def origin_of(url: str) -> str:
    """Return scheme, host and port of a valid http or https URL as text, such as "https://example.com:443"."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{parts.port or _PORTS[parts.scheme]}"


def servers_of(chosen: tuple[ChosenMcpServer, ...], rules: FromClients, taken: frozenset[str]) -> tuple[McpServer, ...]:
    """Validate the servers that a client chooses, and return their settings.

    `taken` are the names of the operator's servers. Raises McpNotAllowedError if the rules forbid a server,
    McpServerInvalidError if its settings are wrong.
    """
    if len(chosen) > MAX_SERVERS:
        raise McpServerInvalidError(MAX_SERVERS, "name", f"a conversation has at most {MAX_SERVERS} MCP servers")
    names: set[str] = set()
    found: list[McpServer] = []
    for position, each in enumerate(chosen):
        if not NAME.fullmatch(each.name):
            text = "must be 1 to 32 small letters, digits and -, and begin with no -"
            raise McpServerInvalidError(position, "name", text)
        if each.name in names or each.name in taken:
            raise McpServerInvalidError(position, "name", f"{each.name!r} is the name of another server")
        names.add(each.name)
        found.append(server_of(each, rules, position))
    return tuple(found)


def server_of(chosen: ChosenMcpServer, rules: FromClients, position: int = 0) -> McpServer:
    """Validate one server that a client chooses, and return its settings, including the secrets to which they refer.

    `position` is the server's position in the client's list, for errors. Raises the same errors as `servers_of`.
    """

    def invalid(field: str, text: str) -> McpServerInvalidError:
        return McpServerInvalidError(position, field, text)

    if bool(chosen.command) == bool(chosen.url):
        raise invalid("stdio", "give either stdio, for a program, or http, for a URL")
    texts = (*chosen.command, *chosen.environment.values(), chosen.url, *chosen.read_only)
    most = max(map(len, (chosen.command, chosen.environment, chosen.headers, chosen.read_only)))
    if most > MAX_ENTRIES or any(len(text) > MAX_TEXT or "\0" in text for text in texts):
        raise invalid("name", f"is a server with more than {MAX_ENTRIES} entries, a text that is too long, or a NUL")
    read_only = frozenset(chosen.read_only)
    if chosen.command:
        if not rules.programs:
            raise McpNotAllowedError(f"the operator does not allow programs that clients name ({SETTING}.programs)")
        if not chosen.command[0]:
            raise invalid("stdio.command", "must begin with a program")
        if any(not _VARIABLE.fullmatch(name) or name.startswith("BEDROCK_") for name in chosen.environment):
            raise invalid("stdio.environment", "has a name that no variable can have, or begins with BEDROCK_")
        return McpServer(name=chosen.name, command=chosen.command, environment=chosen.environment, read_only=read_only)
    if fault := url_fault(chosen.url):
        raise invalid("http.url", fault)
    origin = origin_of(chosen.url)
    if origin not in rules.origins:
        raise McpNotAllowedError(f"the operator does not allow URLs at {origin} ({SETTING}.urls)")
    headers: dict[str, str] = {}
    for name, value in chosen.headers.items():
        if not HEADER.fullmatch(name) or name.lower() in _OF_THE_CONNECTION:
            raise invalid("http.headers", f"{name!r} cannot be set")
        secret = rules.secrets.get(value.removeprefix(REFERENCE))
        if not value.startswith(REFERENCE) or secret is None or secret.origin != origin:
            raise invalid("http.headers", f"the value of {name!r} must be {REFERENCE}NAME, a secret for this URL")
        headers[name] = secret.value
    return McpServer(name=chosen.name, url=chosen.url, headers=headers, read_only=read_only)
