"""The settings of the server, from flags, BEDROCK_* variables, a TOML file and defaults; the first of these wins.

All types are checked when the settings are read; `check_consistency` refuses settings that contradict each other.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from bedrock.local_server import NotPrivateError, absolute_path, data_directory, read_believed, xdg_directory
from msgspec import Meta, Struct, field, inspect
from msgspec.structs import force_setattr

from actors.common import settings_checks
from actors.core.context import Action, ApprovalPolicy, Mode
from actors.ports.cluster import directories_above
from actors.ports.sandbox import DENY_READ, SYSTEM_PATHS, WORKSPACE_PROTECTED
from actors.runtime.quotas import QuotaSettings
from server.auth.principals import (
    Issuer,
    IssuerTable,
    Principal,
    PrincipalDefaults,
    PrincipalTable,
    Quotas,
    client_certificates,
    issuers_from_tables,
    principals_from_tables,
    quota_settings,
)
from server.settings import setting_values

MAX_PATH_CHARS = 1_024
_Path = Annotated[str, Meta(description="must be an absolute path")]
ADDRESS = "must be the host:port at which other nodes reach this one"


class ClusterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    address: Annotated[str, Meta(description=ADDRESS)]
    token_file: Annotated[Path, Meta(description="must be the path of a file with the token that all nodes share")]
    """The file with the secret token that all nodes share."""
    name: Annotated[str, Meta(min_length=1, max_length=100, description="must be a string of 1 to 100 characters")] = (
        field(default_factory=socket.gethostname)
    )
    """The node's name in lists and logs; by default the name of the machine."""
    ca: Path | None = None
    """The PEM file with the certificate authorities of the nodes; None if nodes connect without TLS."""
    lease_seconds: Annotated[float, Meta(ge=1, le=60, description="must be between 1 and 60")] = 10.0
    """Seconds without a heartbeat after which other nodes take over a node's conversations; the same on all nodes."""
    workspaces: Annotated[
        tuple[_Path, ...], Meta(max_length=100, description="must be an array of at most 100 directories")
    ] = ()
    """Directories that this server has, but some other nodes lack; this server serves the conversations in them."""

    def __post_init__(self) -> None:
        host, port = settings_checks.host_and_port(self.address) or ("", 0)
        if not port or any(each.isspace() for each in host):
            raise ValueError(f".address: {ADDRESS}")
        if not self.name.isprintable():
            raise ValueError(".name: must contain only printable characters")
        force_setattr(self, "workspaces", tuple(map(_workspace, self.workspaces)))


def _workspace(path: str) -> str:
    above = directories_above(path) if path.isprintable() and len(path) <= MAX_PATH_CHARS else ()
    if not above or above[0] == "/":
        raise ValueError(
            f".workspaces: {path!r} must be an absolute path of at most {MAX_PATH_CHARS} characters, other than /"
        )
    return above[0]


class AuthorizerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[
        str, Meta(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*\Z", description="must be package.module:Class")
    ] = field(name="class")
    """The class, as `package.module:Class`."""
    seconds: Annotated[float, Meta(gt=0, le=30, description="must be greater than 0 and at most 30")] = field(
        name="timeout_seconds", default=2.0
    )
    """The time limit for each method call, in seconds."""
    options: dict[str, Any] = {}


RuleText = Annotated[str, Meta(pattern=r"\S", description="must be a non-blank string")]


class ApprovalRuleTable(Struct, frozen=True, forbid_unknown_fields=True):
    action: Action
    tool: RuleText = ""
    command: RuleText = ""
    command_prefix: RuleText = ""
    path: RuleText = ""
    mcp_server: RuleText = ""

    def __post_init__(self) -> None:
        _, *subjects = self.__struct_fields__
        if sum(bool(getattr(self, subject)) for subject in subjects) != 1:
            raise ValueError(f"must have an action and exactly one of {', '.join(subjects)}")


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings with a single value, which flags and environment variables can set, too."""

    data_dir: Path
    database: setting_values.Database = ""
    """The URL of a PostgreSQL database; "" for SQLite in `data_dir`."""
    listen: setting_values.Listen | None = setting_values.Listen("127.0.0.1", 7421)
    """The address to listen on besides the Unix socket in the data directory; None for no other address."""
    http_listen: setting_values.PortListen | None = None
    """The address at which a gateway serves JSON over HTTP; None for no gateway."""
    log_level: Annotated[str, settings_checks.one_of(setting_values.LOG_LEVELS)] = "info"
    default_model: str = ""
    """The default model of conversations; "" for the default model of the first provider."""
    small_model: str = ""
    """The model for side queries; "none" for no side queries, "" for a small model of the conversation's provider."""
    titles: bool = True
    drain_seconds: setting_values.Seconds = 10.0
    """How many seconds runs may continue during a graceful shutdown."""
    idle_seconds: setting_values.Seconds = 30.0
    max_streams: setting_values.Count = 10_000
    retention_events_days: setting_values.Days = 0.0
    """How many days events are kept; 0 for no limit. Messages are always kept."""
    retention_events_min: setting_values.Count = 10_000
    """How many of the latest events of each conversation are kept, regardless of their age."""
    retention_archived_days: setting_values.Days = 0.0
    """How many days archived conversations are kept; 0 for no limit."""
    retention_audit_days: setting_values.Days = 90.0
    """How many days the audit trail keeps refused calls and deletions (at most 100,000); 0 for no time limit."""
    reflection: bool = False
    """Whether the server offers gRPC reflection, with which tools like grpcurl list its methods."""
    tls_certificate: Path | None = None
    """The PEM file with the certificate and its chain, for the address in `listen`; None for no TLS."""
    tls_key: Path | None = None
    insecure_behind_proxy: bool = False
    """Whether a proxy encrypts and restricts access, and passes on the client's address in a header."""
    metrics_listen: setting_values.PortListen | None = None
    """The address at which Prometheus gets metrics over HTTP; None for no metrics."""
    otlp_endpoint: setting_values.Url = ""
    otlp_contents: tuple[setting_values.Content, ...] = ()
    """The span attributes with conversation contents that may be sent to the collector."""
    sandbox: Annotated[str, settings_checks.one_of(setting_values.SANDBOXES)] = "auto"
    """"A" requires namespaces, "B" only Landlock and seccomp; "auto" is the best that the machine can do."""
    workspace_protected: tuple[setting_values.NamesBelow, ...] = WORKSPACE_PROTECTED
    """The names of files and directories that tools in workspace mode cannot change, in addition to .git."""
    deny_read: tuple[setting_values.AnyPath, ...] = DENY_READ
    """Files and directories that tools cannot read, in every mode in which the sandbox can hide them."""
    system_paths: tuple[setting_values.AnyPath, ...] = SYSTEM_PATHS
    """System files and directories that every principal's tools can read."""
    cpus: setting_values.Cpus | None = None
    """The CPUs that the server itself runs on; None for all. Its tools may use all CPUs in any case."""


_HostName: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+\Z", description="must be a host name")]
_Origin: TypeAlias = Annotated[
    str, Meta(pattern=r"^https?://[A-Za-z0-9.\-\[\]:]+\Z", description="must be an origin such as https://app.example")
]


class NewThread(Struct, frozen=True, forbid_unknown_fields=True):
    working_directory: _Path
    mode: Mode
    """What tools may do. Of the front end's tools, "restricted" offers only those that are declared read-only."""
    model: str = ""
    approval_policy: ApprovalPolicy | None = None

    def __post_init__(self) -> None:
        if not self.working_directory.startswith("/"):
            raise ValueError(".working_directory: must be an absolute path")


class HttpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    allow_hosts: tuple[_HostName, ...] = ()
    """Host names by which clients reach this machine; its addresses and localhost need not be listed."""
    allow_origins: tuple[_Origin, ...] = ()
    """The origins of web pages that may call, such as `https://app.example`."""
    new_thread: NewThread | None = None
    """How an AG-UI run in a new thread creates its conversation; None to refuse new threads."""


class Settings(Options, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Everything that the settings file can contain.

    Properties raise ValueError with a message such as "principals.NAME.roots: why".
    """

    providers: Annotated[dict[str, dict[str, Any]], Meta(description="must be [providers.NAME] tables")] = {}
    """The model providers, by name, as `actors.adapters.llm.provider` reads them."""
    models: Annotated[dict[str, Any], Meta(description='must be [models."NAME"] tables')] = {}
    mcp_servers: Annotated[tuple[dict[str, Any], ...], Meta(description="must be [[mcp_servers]] tables")] = ()
    """The MCP servers, as `actors.adapters.mcp.server_settings` reads them."""
    mcp_from_clients: dict[str, Any] = {}
    """Which MCP servers clients may add to a conversation."""
    approval_rules: Annotated[tuple[ApprovalRuleTable, ...], Meta(description="must be [[approval_rules]] tables")] = ()
    principal_tables: settings_checks.Named[PrincipalTable] = field(
        name="principals", default_factory=settings_checks.Named
    )
    principal_defaults: PrincipalDefaults = PrincipalDefaults()
    issuer_tables: settings_checks.Named[IssuerTable] = field(name="issuers", default_factory=settings_checks.Named)
    certificate_names: dict[str, str] = field(name="client_certificates", default_factory=dict)
    authorizer: AuthorizerSettings | None = None
    """The operator's own class for authentication and authorization; None if there is none."""
    quotas_together: Quotas = field(name="quotas", default=Quotas())
    http: HttpSettings = HttpSettings()
    cluster: ClusterSettings | None = None
    """How servers that share the database reach each other; None if this server does not share its database."""

    @cached_property
    def principals(self) -> Mapping[str, Principal]:
        """The principals by name, without the server's own user."""
        return principals_from_tables(self.principal_tables)

    @cached_property
    def issuers(self) -> Mapping[str, Issuer]:
        return issuers_from_tables(self.issuer_tables, self.principals)

    @cached_property
    def client_certificates(self) -> Mapping[str, Principal]:
        return client_certificates(self.certificate_names, self.principals)

    @cached_property
    def quotas(self) -> QuotaSettings:
        return quota_settings(self.quotas_together, self.principal_defaults, self.principals, self.issuers)


class Config(Settings, frozen=True, kw_only=True):
    """The settings of a server, with their origins. Its repr shows none of them, because some are secret."""

    listen_tables: tuple[setting_values.Listener, ...] = ()
    """The [[listen]] tables of the settings file; used if `listen` is None."""
    file: Path | None = None
    """The settings file; None if there is none."""
    environ: Mapping[str, str] = {}
    """The environment variables in which API keys of well-known providers are looked up."""
    origins: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"Config(file={self.file!r})"

    def refusal(self, text: str) -> setting_values.ConfigError:
        """The error for a setting that was read, but cannot be used. `text` is "NAME: REASON"."""
        return refusal(text, self.origins)

    def without_extra(self, setting: str, extra: str) -> setting_values.ConfigError:
        """The error for a setting that requires an extra of the package, if that extra is not installed."""
        return self.refusal(f"{setting}: requires the extra `{extra}` (`pip install ./clients '.[{extra}]'`)")

    def check_extra(self, setting: str, extra: str, *modules: str) -> None:
        """Raise ConfigError if one of `modules`, which belong to the extra, is not installed."""
        for module in modules:
            try:
                found = find_spec(module)
            except ModuleNotFoundError:  # the module's package is missing, too
                found = None
            if found is None:
                raise self.without_extra(setting, extra)

    @property
    def several(self) -> bool:
        """Whether there may be principals other than the server's own user."""
        return bool(self.principals or self.issuers)

    @property
    def listeners(self) -> tuple[setting_values.Listener, ...]:
        if self.listen is None:
            return self.listen_tables
        proxied = self.insecure_behind_proxy
        return (
            setting_values.Listener(
                where=self.listen, certificate=self.tls_certificate, key=self.tls_key, insecure_behind_proxy=proxied
            ),
        )

    @property
    def encrypted(self) -> setting_values.Listener | None:
        """The first address with a certificate, which HTTP uses as well; None if there is none."""
        return next((each for each in self.listeners if each.certificate), None)

    @property
    def behind_proxy(self) -> bool:
        """Whether every address except Unix sockets is behind a proxy, which sends the client's address in a header."""
        reached = [each for each in self.listeners if not each.where.path]
        return bool(reached) and all(each.insecure_behind_proxy for each in reached)

    @property
    def reachable(self) -> bool:
        """Whether the server listens on an address for callers from the network, who may be strangers."""
        return any(each.certificate or each.insecure_behind_proxy or not each.where.local for each in self.listeners)

    @property
    def tls(self) -> bool:
        return self.tls_certificate is not None


def refusal(text: str, origins: Mapping[str, str]) -> setting_values.ConfigError:
    """The error for the text "NAME.path: why", with the origin of the setting instead of its name."""
    name = re.split(r"\W", text, maxsplit=1)[0]
    return setting_values.ConfigError(origins.get(name, name) + text[len(name) :])


def check_consistency(config: Config, tables: tuple[setting_values.Listener, ...]) -> None:
    """Check that settings do not contradict each other, and that no token crosses a network without TLS.

    `tables` are the [[listen]] tables of the settings file, which a flag or a variable may replace. Raises ConfigError,
    or ValueError ("cluster.ca: why").
    """
    if config.certificate_names and not any(each.client_ca for each in tables):
        raise ValueError("client_certificates: requires a [[listen]] with client_ca, which asks for certificates")
    _ = config.client_certificates, config.quotas  # computing these validates the tables of principals
    if config.cluster is not None:
        _check_cluster(config, config.cluster)
    listen, tls = config.listen, config.tls_certificate is not None
    if config.listen_tables and (tls or config.tls_key or config.insecure_behind_proxy):
        raise setting_values.ConfigError(
            "tls_certificate, tls_key and insecure_behind_proxy apply to the single address in `listen`; in "
            "[[listen]] tables, set certificate, key or insecure_behind_proxy"
        )
    if tls != (config.tls_key is not None):
        raise setting_values.ConfigError("tls_certificate and tls_key must be set together")
    if config.insecure_behind_proxy and (tls or listen is None or listen.path):
        raise ValueError("insecure_behind_proxy: allowed only for host:port without TLS")
    if (http := config.http_listen) and not (http.local or config.encrypted or config.behind_proxy):
        raise ValueError(
            f"http_listen: {setting_values.unencrypted(http)}Set tls_certificate and tls_key, or listen on 127.0.0.1"
        )
    if listen is not None and not (listen.local or tls or config.insecure_behind_proxy):
        raise setting_values.ConfigError(
            f"{setting_values.unencrypted(listen)}"
            "Set tls_certificate and tls_key, or listen on 127.0.0.1 and put a TLS proxy or an SSH tunnel in front; "
            "insecure_behind_proxy is for networks in which a mesh encrypts everything"
        )


def _check_cluster(config: Config, cluster: ClusterSettings) -> None:
    """Raise ValueError if there is no database to share, or if nodes would send their token to others without TLS."""
    if not config.database:
        raise ValueError("cluster: requires `database`, because only servers that share one form a cluster")
    host, _ = settings_checks.host_and_port(cluster.address) or ("", 0)
    in_mesh = any(each.insecure_behind_proxy for each in config.listeners)
    if cluster.ca is None and not settings_checks.is_loopback(host) and not in_mesh:
        raise ValueError(
            "cluster.ca: required, or anyone on the network could read the nodes' token; name the authorities that "
            "sign the nodes' certificates; insecure_behind_proxy is for networks in which a mesh encrypts everything"
        )


def shown_database(url: str) -> str:
    """The URL of a database without its password and parameters, which may contain secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql://…"
    who, at, where = parts.netloc.rpartition("@")
    return f"postgresql://{who.partition(':')[0]}{at}{where}{parts.path}"


SETTINGS = Options.__struct_fields__
TYPES = {each.name: settings_checks.described(each.type)[0] for each in inspect.type_info(Options).fields}  # type: ignore[attr-defined]
NO_VALUE = {"listen": "none", "http_listen": "none", "metrics_listen": "none", "cpus": "all"}
NO_TEXT = {"database": "none", "otlp_endpoint": "none"}
CHOICES = {"log_level": setting_values.LOG_LEVELS, "sandbox": setting_values.SANDBOXES}
OPTIONS = {"http_listen": "--http"}
"""The options of `bedrock serve` that are not named after their settings."""
FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def load(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, file: Path | None = None) -> Config:
    """Read and merge the settings of all sources. Raises ConfigError.

    `flags` contains only flags that were given; `file` is the argument of --config.
    """
    source = settings_file(file, environ)
    values = read_settings(source)
    origins = {name: f"{source}: {name}" for name in values}
    tables = values.pop("listen") if isinstance(values.get("listen"), list) else []
    try:
        listeners = settings_checks.read(tuple[setting_values.Listener, ...], "listen", tables)
        setting_values.check_listeners(listeners)
        for name in SETTINGS:
            variable = f"BEDROCK_{name.upper()}"
            if name in flags:
                values[name], origins[name] = flags[name], OPTIONS.get(name, f"--{name.replace('_', '-')}")
            elif environ.get(variable):
                values[name], origins[name] = environ[variable], variable
        more: dict[str, Any] = {"listen": None, "listen_tables": listeners}
        if "listen" in values or not tables:  # a flag or a variable replaces all the tables
            more = {}
        values.setdefault("data_dir", str(data_directory(environ)))
        plain = {name: _plain(name, value) for name, value in values.items() if value != NO_TEXT.get(name)}
        settings = settings_checks.read(Settings, "", plain)
        given = {name: getattr(settings, name) for name in settings.__struct_fields__} | more
        config = Config(**given, file=source, environ=environ, origins=origins)
        check_consistency(config, listeners)
    except ValueError as error:
        raise refusal(str(error), origins) from None
    return config


def _plain(name: str, value: Any) -> Any:
    """A setting in its own type; a string, as in a variable, may stand for any value. Raises ValueError."""
    word = str(value).lower()
    if word == NO_VALUE.get(name):
        return None
    if name == "data_dir":
        try:
            settings_checks.absolute_path_of(value)
            return str(absolute_path(value))
        except ValueError as error:
            raise ValueError(f"data_dir: {error}") from None
    if name in CHOICES:
        return {each.lower(): each for each in CHOICES[name]}.get(word, value)
    match TYPES.get(name):
        case inspect.StrType() if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
            raise ValueError(f"{name}: must be valid UTF-8")
        case inspect.BoolType():
            return FLAGS.get(word, value)
        case inspect.IntType() | inspect.FloatType() as kind if isinstance(value, str):
            with suppress(ValueError):
                return int(value) if isinstance(kind, inspect.IntType) else float(value)
        case inspect.VarTupleType() if isinstance(value, str):
            return [] if word == "none" else [part.strip() for part in value.split(",") if part.strip()]
        case _:
            pass
    return value


def settings_file(chosen: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The settings file: `chosen`, else the one that BEDROCK_CONFIG names, else the default one if it exists.

    Raises ConfigError.
    """
    if chosen is not None:
        return chosen
    if text := environ.get("BEDROCK_CONFIG"):
        try:
            return settings_checks.expanded(text)
        except ValueError as error:
            raise setting_values.ConfigError(f"BEDROCK_CONFIG: {error}") from None
    root = xdg_directory("XDG_CONFIG_HOME", environ) or _home(environ) / ".config"
    usual = root / "bedrock" / "config.toml"
    return usual if usual.is_file() else None


def read_settings(path: Path | None) -> dict[str, Any]:
    """Read the settings file; {} for None. Raises ConfigError, also if other users own the file or can change it."""
    if path is None:
        return {}
    try:
        return tomllib.loads(read_believed(path, named=True).decode("utf-8-sig"))
    except NotPrivateError as error:  # the server runs commands from this file
        raise setting_values.ConfigError(str(error)) from None
    except OSError as error:
        raise setting_values.ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise setting_values.ConfigError(f"{path} is not valid TOML: {error}") from None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
