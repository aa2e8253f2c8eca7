"""Reads the settings of MCP servers: those of the operator's servers, and of servers that clients may choose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from msgspec.structs import replace

from actors.common.settings_checks import Text, expanded, is_loopback, one_of, read, read_named
from actors.core.context import ChosenMcpServer
from actors.ports.tools import McpNotAllowedError, McpServerInvalidError

# The last version of the MCP protocol in which connections begin with a handshake and servers can send requests.
HANDSHAKE_PROTOCOL = "2025-11-25"

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*)|(\$))")
HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# The keys of those tables in a server's table in which values may refer to variables and files.
_REFERRING = ("environment", "headers", "oauth", "login")
_Seconds = Annotated[float, Meta(ge=1, le=86_400, description="must be between 1 and 86400 seconds")]


class OAuth(Struct, frozen=True, forbid_unknown_fields=True):
    """Bedrock's own credentials for an MCP server, not a user's (OAuth grant "client credentials")."""

    client_id: Text
    client_secret: Text
    issuer: Text
    """The authorization server that issued these credentials. They are sent to no other server."""
    scope: str = ""

    def __repr__(self) -> str:
        return f"OAuth({self.client_id!r}, ***)"


class Login(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings for a user's login to an MCP server.

    By default, the MCP server names the authorization server, and Bedrock registers there as an OAuth client.
    """

    client_id: str = ""
    client_secret: str = ""
    issuer: str = ""
    """The only authorization server to use; "" for the one that the MCP server names."""
    scope: str = ""

    def __repr__(self) -> str:
        return f"Login({self.client_id!r}, ***)"


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one MCP server: a program that communicates over stdin and stdout, or a URL."""

    name: str
    command: Annotated[tuple[str, ...], Meta(description="must be a list of strings")] = ()
    """The program and its arguments; () for a server with a URL. The program runs in the conversation's directory."""
    environment: Mapping[str, str] = {}
    """Environment variables for the program in addition to those that every tool gets. Values may be secret."""
    url: str = ""
    headers: Mapping[str, str] = {}
    oauth: OAuth | None = None
    login: Login | None = None
    read_only: Annotated[bool | frozenset[str], Meta(description="must be true, false or a list of strings")] = False
    """The names of tools that change nothing; True for all tools.
    Restricted mode runs only these tools; workspace mode does so, too, if the server has a URL."""
    enabled: bool = True
    connect_seconds: _Seconds = 60.0
    """Time limit in seconds for starting the program and for listing its tools."""
    call_seconds: _Seconds = 300.0
    """Time limit for a call in seconds; it is suspended while a person is asked."""
    question_seconds: Annotated[float, Meta(ge=0, le=86_400, description="must be between 0 and 86400 seconds")] = 300.0
    """How many seconds a person has to answer the server's question; 0 if the server may not ask."""
    protocol: Annotated[str, one_of(("auto", HANDSHAKE_PROTOCOL))] = "auto"
    """The newest protocol version that Bedrock offers; "auto" uses the newest version that both sides support."""

    def __repr__(self) -> str:
        return f"McpServer({self.name!r})"

    def changes_nothing(self, tool: str) -> bool:
        """Whether the operator has declared a tool of this server read-only."""
        return self.read_only if isinstance(self.read_only, bool) else tool in self.read_only

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values in these settings that must never be shown; values of up to 3 characters are left out."""
        clients = tuple(each.client_secret for each in (self.oauth, self.login) if each)
        return tuple(text for text in (*self.environment.values(), *self.headers.values(), *clients) if len(text) > 3)


def servers_from_tables(tables: Iterable[Mapping[str, Any]], environ: Mapping[str, str]) -> tuple[McpServer, ...]:
    """Read the enabled [[mcp_servers]] tables, whose values may refer to `environ` and to files.

    Raises a ValueError that names the setting but never contains the content of a variable or file.
    """
    found: list[McpServer] = []
    names: set[str] = set()
    for number, table in enumerate(tables, 1):
        name = table.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(
                f"mcp_servers[{number}].name: must be 1 to 32 lower-case letters, digits or -, and not begin with -"
            )
        if name in names:
            raise ValueError(f"mcp_servers.{name}.name: two servers have this name")
        names.add(name)
        if table.get("enabled", True) is not False:  # a disabled server can refer to missing files and variables
            found.append(_server(name, table, environ))
    return tuple(found)


def _server(name: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> McpServer:
    where, given = f"mcp_servers.{name}", dict(table)
    for key in _REFERRING:
        if isinstance(table.get(key), dict):
            given[key] = {each: value_of(f"{where}.{key}.{each}", value, environ) for each, value in table[key].items()}
    server = read(McpServer, where, given)
    _check_transport(where, server, given)
    return replace(server, login=_login(f"{where}.login", server))


def _check_transport(where: str, server: McpServer, given: Mapping[str, Any]) -> None:
    command, url = server.command, server.url
    if bool(command) == bool(url):
        raise ValueError(f"{where}.command: set either command (a program) or url")
    if command and not command[0]:
        raise ValueError(f"{where}.command: must begin with the program to run")
    for key in ("headers", "oauth", "login") if command else ("environment",):
        if key in given:
            raise ValueError(f"{where}.{key}: allowed only for servers with {'url' if command else 'command'}")
    if any(not HEADER.fullmatch(header) for header in server.headers):
        raise ValueError(f"{where}.headers: contains an invalid header name")
    if url and (fault := url_fault(url)):
        raise ValueError(f"{where}.url: {fault}")


def url_fault(url: str) -> str:
    """Why a URL cannot be used for a server; "" if it can."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        credentials = parts.username or parts.password
    except ValueError:
        valid, credentials = False, None
    if not valid:
        return "must be an http or https URL with a host"
    return "must not contain credentials; use headers or oauth" if credentials else ""


def _login(where: str, server: McpServer) -> Login | None:
    """The settings for a user's login to a server; None if it has other credentials, or if its URL is not private.

    Raises ValueError if the `login` table is wrong.
    """
    others = ["oauth"] if server.oauth else []
    others += ["headers"] if "authorization" in map(str.lower, server.headers) else []
    found = server.login
    if found is None:
        return Login() if server.url and not others and is_private(server.url) else None
    if others:
        raise ValueError(f"{where}: {others[0]} already sets the credentials; remove one of the two")
    if not is_private(server.url):
        raise ValueError(f"{where}: requires an https URL, or one on this machine")
    for key in ("client_id", "issuer") if found.client_secret else ():
        if not getattr(found, key):
            raise ValueError(f"{where}.{key}: required with a client_secret")
    if found.issuer and (url_fault(found.issuer) or not is_private(found.issuer)):
        raise ValueError(f"{where}.issuer: must be an https URL")
    return found


def is_private(url: str) -> bool:
    """Whether data sent to a URL is protected from others, because the URL uses https or leads to this machine."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        return False
    return scheme == "https" or (scheme == "http" and is_local(url))


def is_local(url: str) -> bool:
    """Whether the host of a URL is this machine."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def value_of(where: str, value: Any, environ: Mapping[str, str]) -> str:
    """The string for which a value stands: $NAME and ${NAME} are variables, $$ is $, {file = PATH} is a file's content.

    Raises a ValueError whose message begins with `where`, the setting's name.
    """
    if isinstance(value, str):
        text = _REFERENCE.sub(lambda found: _variable(where, found, environ), value)
    elif isinstance(value, dict) and value.keys() == {"file"} and isinstance(value["file"], str):
        try:
            text = read_named(expanded(value["file"])).decode().strip()
        except (OSError, UnicodeDecodeError):
            raise ValueError(f"{where}: the file cannot be read") from None
        except ValueError as error:
            raise ValueError(f"{where}: the file {error}") from None
    else:
        raise ValueError(f'{where}: must be a string or {{ file = "PATH" }}')
    if any(character in text for character in "\0\r\n"):
        raise ValueError(f"{where}: must be one line")
    return text


def _variable(where: str, found: re.Match[str], environ: Mapping[str, str]) -> str:
    if found[3]:
        return "$"
    name = found[1] or found[2]
    if name not in environ:
        raise ValueError(f"{where}: {name} is not set in the server's environment")
    return environ[name]


SETTING = "mcp_from_clients"
# A header value with this prefix refers to one of the operator's secrets; the secret's name follows.
REFERENCE = "secret:"

MAX_SERVERS = 8
MAX_TEXT = 4096
# Maximum number of arguments, and likewise of environment variables, headers and read-only tools, for one server.
MAX_ENTRIES = 64

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_THE_CONNECTION = frozenset({"connection", "content-length", "host", "transfer-encoding"})
_PORTS = {"http": 80, "https": 443}


class _FromClients(Struct, forbid_unknown_fields=True):
    """The [mcp_from_clients] table."""

    programs: bool = False
    urls: tuple[str, ...] = ()
    secrets: dict[str, Any] = {}


class _Secret(Struct, forbid_unknown_fields=True):
    """A [mcp_from_clients.secrets.NAME] table."""

    value: Any
    url: str


class BoundSecret(Struct, frozen=True):
    """A secret of the operator that is sent only to one origin (scheme, host and port)."""

    value: str
    origin: str

    def __repr__(self) -> str:
        return f"BoundSecret(***, {self.origin!r})"


class FromClients(Struct, frozen=True):
    """The operator's rules for MCP servers that clients choose. By default clients may choose none."""

    programs: bool = False
    """Whether clients may choose programs as servers; these run under the limits of the conversation's tools."""
    origins: frozenset[str] = frozenset()
    secrets: Mapping[str, BoundSecret] = {}


def from_clients(table: Mapping[str, Any], environ: Mapping[str, str]) -> FromClients:
    """Read the [mcp_from_clients] table, whose values may refer to `environ`.

    Raises a ValueError that names the setting but contains no secret.
    """
    given = read(_FromClients, SETTING, table)
    origins = frozenset(_allowed(f"{SETTING}.urls", url) for url in given.urls)
    known = {
        name: _secret(f"{SETTING}.secrets.{name}", value, origins, environ) for name, value in given.secrets.items()
    }
    return FromClients(given.programs, origins, known)


def _allowed(where: str, url: str) -> str:
    fault = url_fault(url)
    if not fault and (urlsplit(url).path not in {"", "/"} or "?" in url or "#" in url):
        fault = "must end with the host or port, because all its paths are allowed"
    if fault:
        raise ValueError(f"{where}: {fault}")
    return origin_of(url)


def _secret(where: str, given: Any, origins: frozenset[str], environ: Mapping[str, str]) -> BoundSecret:
    secret = read(_Secret, where, given)
    origin = _allowed(f"{where}.url", secret.url)
    if origin not in origins:
        raise ValueError(f"{where}.url: must be one of the URLs in {SETTING}.urls")
    return BoundSecret(value_of(f"{where}.value", secret.value, environ), origin)


def origin_of(url: str) -> str:
    """The scheme, host and port of a valid http or https URL, such as "https://example.com:443"."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{parts.port or _PORTS[parts.scheme]}"


def servers_of(chosen: tuple[ChosenMcpServer, ...], rules: FromClients, taken: frozenset[str]) -> tuple[McpServer, ...]:
    """Validate the servers that a client chooses; `taken` are the names of the operator's servers.

    Raises McpNotAllowedError if the rules forbid a server, or McpServerInvalidError if a server's settings are wrong.
    """
    if len(chosen) > MAX_SERVERS:
        raise McpServerInvalidError(MAX_SERVERS, "name", f"a conversation has at most {MAX_SERVERS} MCP servers")
    names: set[str] = set()
    found: list[McpServer] = []
    for position, each in enumerate(chosen):
        if not NAME.fullmatch(each.name):
            text = "must be 1 to 32 lower-case letters, digits or -, and not begin with -"
            raise McpServerInvalidError(position, "name", text)
        if each.name in names or each.name in taken:
            raise McpServerInvalidError(position, "name", f"{each.name!r} is the name of another server")
        names.add(each.name)
        found.append(server_of(each, rules, position))
    return tuple(found)


def server_of(chosen: ChosenMcpServer, rules: FromClients, position: int = 0) -> McpServer:
    """Validate the server chosen at `position`, and fill in its secrets. Raises what `servers_of` raises."""

    def invalid(field: str, text: str) -> McpServerInvalidError:
        return McpServerInvalidError(position, field, text)

    if bool(chosen.command) == bool(chosen.url):
        raise invalid("stdio", "set either stdio (a program) or http (a URL)")
    texts = (*chosen.command, *chosen.environment.values(), chosen.url, *chosen.read_only)
    most = max(map(len, (chosen.command, chosen.environment, chosen.headers, chosen.read_only)))
    if most > MAX_ENTRIES or any(len(text) > MAX_TEXT or "\0" in text for text in texts):
        raise invalid("name", f"this server has over {MAX_ENTRIES} entries in one field, an overlong string, or a NUL")
    read_only = frozenset(chosen.read_only)
    if chosen.command:
        if not rules.programs:
            raise McpNotAllowedError(f"the operator does not allow clients to name programs ({SETTING}.programs)")
        if not chosen.command[0]:
            raise invalid("stdio.command", "must begin with the program to run")
        if any(not _VARIABLE.fullmatch(name) or name.startswith("BEDROCK_") for name in chosen.environment):
            raise invalid("stdio.environment", "contains an invalid variable name, or one that begins with BEDROCK_")
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
