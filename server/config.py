"""Reads the server's settings from flags, BEDROCK_* variables, a TOML file and built-in defaults, in this order."""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from bedrock.local_server import data_directory, xdg_directory

from actors.ports.sandbox.processes import DENY_READ, SYSTEM_PATHS, WORKSPACE_PROTECTED
from actors.ports.settings.settings_checks import absolute_path_of, check_keys, expanded, host_and_port, is_loopback
from actors.runtime.quotas.quota_limits import QuotaSettings
from server.auth.authorizer.authorizer_tables import AuthorizerSettings, authorizer_settings
from server.auth.issuers.client_certificates import client_certificates
from server.auth.issuers.issuer_tables import Issuer, issuers_from_tables
from server.auth.principals import Principal, principals_from_tables
from server.auth.quota_tables import quota_settings
from server.cluster.cluster_tables import ClusterSettings, cluster_settings
from server.settings.setting_values import (
    USUAL_LISTEN,
    Listen,
    Parser,
    parse_contents,
    parse_count,
    parse_cpus,
    parse_data_dir,
    parse_database,
    parse_days,
    parse_flag,
    parse_level,
    parse_listen,
    parse_metrics_listen,
    parse_names,
    parse_paths,
    parse_sandbox,
    parse_seconds,
    parse_text,
    parse_url,
)


class ConfigError(Exception):
    """A setting cannot be used. The text names the setting, where it comes from, and what it should be."""


@dataclass(frozen=True, kw_only=True)
class Listener:
    """An address to listen on, and who can connect there."""

    where: Listen
    certificate: Path | None = None
    """The PEM file with the server's certificate and its chain; None for no TLS."""
    key: Path | None = None
    client_ca: Path | None = None
    """The PEM file with the authorities that sign clients' certificates; None if clients need no certificate."""
    insecure_behind_proxy: bool = False
    """Whether a proxy or a mesh in front encrypts and restricts access, so that the listener needs no TLS."""

    @property
    def target(self) -> str:
        """The address in the form in which clients take it."""
        return f"https://{self.where.target}" if self.certificate else self.where.target


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of the server, with defaults filled in and values checked."""

    data_dir: Path
    database: str = field(default="", repr=False)
    """The URL of a PostgreSQL database; "" for SQLite in `data_dir`.

    It may contain a password, so it is never shown.
    """
    listen: Listen | None = USUAL_LISTEN
    """The address to listen on besides the Unix socket in the data directory; None for no other address."""
    listen_tables: tuple[Listener, ...] = ()
    """The addresses of the tables [[listen]] in the file, which replace `listen`."""
    log_level: str = "info"
    default_model: str = ""
    """The default model of conversations; "" for the first provider's."""
    small_model: str = ""
    """The model for side queries such as titles.

    "none" means no such queries, "" a small model of the same provider.
    """
    titles: bool = True
    """Whether a conversation without a title gets one from its first message."""
    drain_seconds: float = 10.0
    """How many seconds runs may continue during a graceful shutdown."""
    idle_seconds: float = 30.0
    """How many seconds an idle conversation keeps its thread."""
    max_streams: int = 10_000
    """The maximum number of streams that are open at the same time."""
    retention_events_days: float = 0.0
    """How many days events are kept; 0 for ever. Messages are always kept."""
    retention_events_min: int = 10_000
    """How many of the latest events of each conversation are kept, regardless of their age."""
    retention_archived_days: float = 0.0
    """How many days archived conversations are kept; 0 for ever."""
    retention_audit_days: float = 90.0
    """How many days refused calls and deletions stay in the audit trail; 0 until there are 100,000 later ones."""
    reflection: bool = False
    """Whether the server offers gRPC reflection, by which tools like grpcurl list its methods."""
    tls_certificate: Path | None = None
    """The PEM file with the certificate and its chain, for the address in `listen`; None for no TLS."""
    tls_key: Path | None = None
    insecure_behind_proxy: bool = False
    """Whether a proxy or a mesh in front encrypts, restricts access and names the client, so that TLS is not needed."""
    metrics_listen: Listen | None = None
    """The address at which Prometheus gets metrics by HTTP; None for no metrics there."""
    otlp_endpoint: str = ""
    """The URL of a collector for traces and metrics, by OTLP over gRPC; "" for no collector."""
    otlp_contents: tuple[str, ...] = ()
    """The names of the span attributes with contents of conversations that may be sent to the collector."""
    sandbox: str = "auto"
    """The sandbox tier that enforces the restricted mode: "auto" for the best available one, else a required one."""
    workspace_protected: tuple[str, ...] = WORKSPACE_PROTECTED
    """The names of files and directories that tools in workspace mode cannot change, besides .git."""
    deny_read: tuple[str, ...] = DENY_READ
    """Files and directories that tools cannot read, in every mode in which the sandbox can hide them."""
    system_paths: tuple[str, ...] = SYSTEM_PATHS
    """Files and directories of the system that the tools of every principal can read."""
    cpus: frozenset[int] | None = None
    """The CPUs that the server itself runs on; None for all. Its tools may use all CPUs in any case."""
    file: Path | None = None
    """The settings file; None if there is none."""
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """The model providers in the file, by name. They may contain keys, so they are never shown."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """Context windows and prices of models in the file, by prefix of the model's name."""
    mcp_servers: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """The MCP servers in the file. They may contain secrets, so they are never shown."""
    approval_rules: tuple[Mapping[str, Any], ...] = ()
    """The operator's approval rules in the file, as they are written there."""
    principals: Mapping[str, Principal] = field(default_factory=dict)
    """The principals in the file, by name, without the server's own user."""
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    """The quotas in the file: of each principal, and of all together."""
    client_certificates: Mapping[str, Principal] = field(default_factory=dict)
    """The principals in the file that names in clients' certificates stand for."""
    authorizer: AuthorizerSettings | None = None
    """The operator's own authentication and authorization, in the file; None if there is none."""
    cluster: ClusterSettings | None = None
    """How servers that share the database reach each other, in the file; None if this server does not share it."""
    issuers: Mapping[str, Issuer] = field(default_factory=dict)
    """The issuers in the file, by name: services that sign tokens of principals."""
    mcp_from_clients: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Which MCP servers clients may add to a conversation, in the file.

    It may contain secrets, so it is never shown.
    """
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables, in which API keys of well-known providers are looked up."""
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Where each given setting comes from: the flag, the variable, or the file and the key."""

    def refusal(self, text: str) -> ConfigError:
        """Return the error for a setting that turns out to be wrong when it is used. `text` is "name: why"."""
        setting, _, why = text.partition(": ")
        provider = setting.removeprefix("providers.").rpartition(".")[0]
        tables = (
            "models.",
            "mcp_servers",
            "mcp_from_clients",
            "approval_rules[",
            "principals.",
            "issuers.",
            "quotas",
            "listen[",
            "authorizer.",
            "cluster",
        )
        in_file = setting.startswith(tables) or provider in self.providers
        return ConfigError(f"{self.origins.get(setting, f'{self.file}: {setting}' if in_file else setting)}: {why}")

    @property
    def several(self) -> bool:
        """Whether there may be other principals than the server's own user."""
        return bool(self.principals or self.issuers)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The addresses to listen on besides the Unix socket in the data directory."""
        if self.listen is None:
            return self.listen_tables
        proxied = self.insecure_behind_proxy
        return (
            Listener(
                where=self.listen, certificate=self.tls_certificate, key=self.tls_key, insecure_behind_proxy=proxied
            ),
        )

    @property
    def behind_proxy(self) -> bool:
        """Whether a proxy is in front of every address except Unix sockets, and names the client."""
        reached = [each for each in self.listeners if not each.where.path]
        return bool(reached) and all(each.insecure_behind_proxy for each in reached)

    @property
    def reachable(self) -> bool:
        """Whether an address is meant for callers from the network, among whom are strangers."""
        return any(each.certificate or each.insecure_behind_proxy or not each.where.local for each in self.listeners)

    @property
    def tls(self) -> bool:
        """Whether the address in `listen` uses TLS."""
        return self.tls_certificate is not None


def shown_database(url: str) -> str:
    """Return the URL of a database without its password and parameters, which may contain secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql://…"
    who, at, where = parts.netloc.rpartition("@")
    return f"postgresql://{who.partition(':')[0]}{at}{where}{parts.path}"


Made = TypeVar("Made")


SETTINGS: dict[str, Parser] = {
    "data_dir": parse_data_dir,
    "database": parse_database,
    "listen": parse_listen,
    "log_level": parse_level,
    "default_model": parse_text,
    "small_model": parse_text,
    "titles": parse_flag,
    "drain_seconds": parse_seconds,
    "idle_seconds": parse_seconds,
    "max_streams": parse_count,
    "retention_events_days": parse_days,
    "retention_events_min": parse_count,
    "retention_archived_days": parse_days,
    "retention_audit_days": parse_days,
    "reflection": parse_flag,
    "tls_certificate": absolute_path_of,
    "tls_key": absolute_path_of,
    "insecure_behind_proxy": parse_flag,
    "metrics_listen": parse_metrics_listen,
    "otlp_endpoint": parse_url,
    "otlp_contents": parse_contents,
    "sandbox": parse_sandbox,
    "workspace_protected": parse_names,
    "deny_read": parse_paths,
    "system_paths": parse_paths,
    "cpus": parse_cpus,
}
"""The parsers of all settings that a flag, a variable or the file can give.

The file also has the tables `providers`, `models`, `mcp_servers`, `mcp_from_clients`, `approval_rules`, `principals`,
`principal_defaults`, `issuers`, `client_certificates`, `authorizer`, `cluster` and `quotas`. Instead of the setting
`listen`, it may have tables [[listen]].
"""


LISTS = ("mcp_servers", "approval_rules")
"""The names of tables that the file may have several times."""
OF_PEOPLE = (
    "principals", "principal_defaults", "issuers", "client_certificates", "authorizer", "quotas", "cluster",
)  # fmt: skip
"""The names of tables about callers: who they are, what they may do and use, and the nodes of a cluster."""


def load(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, file: Path | None = None) -> Config:
    """Read and merge the settings. Raises ConfigError.

    `flags` contains only the flags that were given; `file` is the argument of --config, or None.
    """
    source = _file(file, environ)
    table, origin = _read(source)
    given = _given_tables(table, origin)
    _refuse_unknown(table, origin)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, parse in SETTINGS.items():
        variable = f"BEDROCK_{name.upper()}"
        if name in flags:
            value, origins[name] = flags[name], f"--{name.replace('_', '-')}"
        elif environ.get(variable):
            value, origins[name] = environ[variable], variable
        elif name in table:
            value, origins[name] = table[name], f"{origin}: {name}"
        else:
            continue
        values[name] = _parsed(parse, value, origins[name])
    if "data_dir" not in values:
        values["data_dir"] = data_directory(environ)
    if given["listen_tables"]:
        if "listen" in values:
            del given["listen_tables"]  # a flag or a variable replaces all the tables
        else:
            values["listen"], origins["listen"] = None, f"{origin}: [[listen]]"
    return _checked(Config(file=source, environ=environ, origins=origins, **given, **values))


def _given_tables(table: dict[str, Any], origin: str) -> dict[str, Any]:
    """Remove the tables from the content of the file, and return them as fields of Config. Raises ConfigError."""
    providers = table.pop("providers", {})
    if not (isinstance(providers, dict) and all(isinstance(each, dict) for each in providers.values())):
        raise ConfigError(f"{origin}: providers: must be tables, [providers.NAME]")
    models = table.pop("models", {})
    if not isinstance(models, dict):
        raise ConfigError(f'{origin}: models: must be tables, [models."name"]')
    mcp_from_clients = table.pop("mcp_from_clients", {})
    if not isinstance(mcp_from_clients, dict):
        raise ConfigError(f"{origin}: mcp_from_clients: must be a table, [mcp_from_clients]")
    lists = {name: _tables(table, name, origin) for name in LISTS}
    principals = _named_tables(table, "principals", origin, principals_from_tables)
    issuers = _named_tables(table, "issuers", origin, partial(issuers_from_tables, principals=principals))
    listen_tables = _listen_tables(table, origin)
    certificates = _client_certificates(table, principals, listen_tables, origin)
    quotas = _quotas(table, principals, issuers, origin)
    own_rules = table.pop("authorizer", None)
    authorizer = None if own_rules is None else _made(authorizer_settings, own_rules, "authorizer", origin)
    nodes = table.pop("cluster", None)
    cluster = None if nodes is None else _made(cluster_settings, nodes, "cluster", origin)
    return {
        "providers": providers,
        "models": models,
        "mcp_from_clients": mcp_from_clients,
        **lists,
        "principals": principals,
        "quotas": quotas,
        "issuers": issuers,
        "listen_tables": listen_tables,
        "client_certificates": certificates,
        "authorizer": authorizer,
        "cluster": cluster,
    }


def _refuse_unknown(table: Mapping[str, Any], origin: str) -> None:
    """Raise ConfigError for a key in the file that is neither a setting nor the name of a table."""
    if unknown := table.keys() - SETTINGS.keys():
        name, known = min(unknown), (*SETTINGS, "providers", "models", "mcp_from_clients", *LISTS, *OF_PEOPLE)
        near = difflib.get_close_matches(name, known, 1, cutoff=0.75)
        meant = f"did you mean {near[0]!r}? There are" if near else "there are"
        raise ConfigError(f"{origin}: unknown setting {name!r}; {meant}: {', '.join(known)}")


def _tables(table: dict[str, Any], name: str, origin: str) -> tuple[Mapping[str, Any], ...]:
    """Remove the tables [[NAME]] from the content of the file, and return them. Raises ConfigError."""
    tables = table.pop(name, [])
    if not (isinstance(tables, list) and all(isinstance(each, dict) for each in tables)):
        raise ConfigError(f"{origin}: {name}: must be tables, [[{name}]]")
    return tuple(tables)


def _named_tables(table: dict[str, Any], name: str, origin: str, read: Callable[[Any], Made]) -> Made:
    """Remove the tables [name.NAME] from the content of the file, and return the result of `read`.

    Raises ConfigError.
    """
    tables = table.pop(name, {})
    if not (isinstance(tables, dict) and all(isinstance(each, dict) for each in tables.values())):
        raise ConfigError(f"{origin}: {name}: must be tables, [{name}.NAME]")
    return _made(read, tables, name, origin)


def _made(read: Callable[[Any], Made], table: Any, name: str, origin: str) -> Made:
    """Return the result of `read` for a table of the file. Raises ConfigError, also for the ValueErrors of `read`."""
    if not isinstance(table, dict):
        raise ConfigError(f"{origin}: {name}: must be a table, [{name}]")
    try:
        return read(table)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _quotas(
    table: dict[str, Any], principals: Mapping[str, Principal], issuers: Mapping[str, Issuer], origin: str
) -> QuotaSettings:
    """Remove the tables about quotas from the content of the file, and return the quotas. Raises ConfigError."""
    try:
        return quota_settings(table.pop("quotas", {}), table.pop("principal_defaults", {}), principals, issuers)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _client_certificates(
    table: dict[str, Any], principals: Mapping[str, Principal], listeners: tuple[Listener, ...], origin: str
) -> dict[str, Principal]:
    """Remove the table [client_certificates] from the content of the file, and return its principals.

    Raises ConfigError if it is wrong, or if no listener asks clients for certificates.
    """
    names = table.pop("client_certificates", {})
    if names and not any(each.client_ca for each in listeners):
        raise ConfigError(f"{origin}: client_certificates: no [[listen]] has a client_ca, so no client shows one")
    return _made(partial(client_certificates, principals=principals), names, "client_certificates", origin)


LISTENER: dict[str, Parser] = {
    "address": parse_listen,
    "certificate": absolute_path_of,
    "key": absolute_path_of,
    "client_ca": absolute_path_of,
    "insecure_behind_proxy": parse_flag,
}
"""The parsers of the keys of a table [[listen]]."""


def _listen_tables(table: dict[str, Any], origin: str) -> tuple[Listener, ...]:
    """Remove the tables [[listen]] from the content of the file, and return the addresses. Raises ConfigError."""
    if not isinstance(table.get("listen"), list):
        return ()
    found: list[Listener] = []
    for number, given in enumerate(_tables(table, "listen", origin), 1):
        where = f"{origin}: listen[{number}]"
        try:
            check_keys(where, given, LISTENER)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        values = {key: _parsed(LISTENER[key], value, f"{where}.{key}") for key, value in given.items()}
        address = values.pop("address", None)
        if address is None:
            raise ConfigError(f"{where}.address: needed: host:port, or unix:/path")
        if (address.path or address.port) and any(address == each.where for each in found):
            raise ConfigError(f"{where}.address: another table has {address.target}, too; make one of both")
        found.append(Listener(where=address, **values))
        _check_listener(found[-1], where)
    if len({each.client_ca for each in found} - {None}) > 1:
        raise ConfigError(
            f"{origin}: listen: all with a client_ca need the same one, since names in certificates are believed "
            "whoever of them has signed"
        )
    return tuple(found)


def _check_listener(listener: Listener, where: str) -> None:
    """Raise ConfigError if the keys of a table [[listen]] contradict each other, or would send tokens in the clear."""
    encrypted, local = listener.certificate is not None, listener.where.local
    if encrypted != (listener.key is not None):
        raise ConfigError(f"{where}: certificate and key are needed together")
    if listener.where.path and encrypted:
        raise ConfigError(f"{where}.certificate: a Unix socket takes none, since only its owner can connect to it")
    if listener.client_ca is not None and not encrypted:
        raise ConfigError(f"{where}.client_ca: needs TLS: certificate and key")
    if listener.insecure_behind_proxy and (encrypted or listener.where.path):
        raise ConfigError(f"{where}.insecure_behind_proxy: only for host:port without TLS")
    if not (local or encrypted or listener.insecure_behind_proxy):
        raise ConfigError(f"{where}.address: {_refused(listener.where)}Set certificate and key, or listen on 127.0.0.1")


def _refused(where: Listen) -> str:
    return f"refusing to listen on {where.target} without TLS: everybody on the network could read the token. "


def _parsed(parse: Parser, value: Any, origin: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _checked(config: Config) -> Config:
    if config.cluster is not None:
        _check_cluster(config, config.cluster)
    if config.listen_tables and (config.tls_certificate or config.tls_key or config.insecure_behind_proxy):
        raise ConfigError(
            "tls_certificate, tls_key and insecure_behind_proxy are about the one address of `listen`: each table "
            "[[listen]] has a certificate, a key or insecure_behind_proxy of its own"
        )
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise ConfigError("tls_certificate and tls_key are needed together")
    open_to_others = config.listen is not None and not config.listen.local
    if config.insecure_behind_proxy and (config.tls or config.listen is None or config.listen.path):
        raise config.refusal("insecure_behind_proxy: only for host:port without TLS")
    if config.listen is not None and open_to_others and not (config.tls or config.insecure_behind_proxy):
        raise ConfigError(
            f"{_refused(config.listen)}"
            "Set tls_certificate and tls_key, or listen on 127.0.0.1 and put a TLS proxy or an SSH tunnel in front; "
            "insecure_behind_proxy is for networks in which a mesh encrypts everything"
        )
    return config


def _check_cluster(config: Config, cluster: ClusterSettings) -> None:
    """Raise ConfigError if no database is shared, or if nodes would send their token over a network in the clear."""
    if not config.database:
        raise config.refusal("cluster: only servers that share a database need it: set database, too")
    host, _ = host_and_port(cluster.address) or ("", 0)
    in_mesh = any(each.insecure_behind_proxy for each in config.listeners)
    if cluster.ca is None and not is_loopback(host) and not in_mesh:
        raise config.refusal(
            "cluster.ca: everybody on the network could read the nodes' token: name the authorities that sign the "
            "nodes' certificates; insecure_behind_proxy is for networks in which a mesh encrypts everything"
        )


def _file(chosen: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file to read: the named one, or the default file if that exists; None for no file."""
    if chosen is not None:
        return chosen
    if text := environ.get("BEDROCK_CONFIG"):
        try:
            return expanded(text)
        except ValueError as error:
            raise ConfigError(f"BEDROCK_CONFIG: {error}") from None
    root = xdg_directory("XDG_CONFIG_HOME", environ) or _home(environ) / ".config"
    usual = root / "bedrock" / "config.toml"
    return usual if usual.is_file() else None


def _read(path: Path | None) -> tuple[dict[str, Any], str]:
    if path is None:
        return {}, ""
    try:
        with path.open("rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            return tomllib.load(file), str(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _check_owner(path: Path, found: os.stat_result) -> None:
    """Raise ConfigError if other users own or can change the settings file, which names commands that print keys."""
    user = os.geteuid()
    if found.st_uid not in (0, user):
        raise ConfigError(f"{path} belongs to user {found.st_uid}, and this is user {user}: use a file of your own")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"others may change {path}: chmod go-w {path}")


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
