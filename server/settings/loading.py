"""Reads the server's settings from flags, BEDROCK_* variables, a TOML file and defaults; the first of these wins."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bedrock.local_server import NotPrivateError, data_directory, read_believed, xdg_directory

from actors.ports.settings.settings_checks import (
    absolute_path_of,
    expanded,
    host_and_port,
    is_loopback,
    read,
    unknown_key,
)
from server.auth.authorizer.authorizer_tables import AuthorizerSettings
from server.auth.client_certificates import client_certificates
from server.auth.issuers.issuer_tables import issuers_from_tables, quota_settings
from server.auth.principals import Principal, PrincipalDefaults, Quotas, principals_from_tables
from server.cluster.cluster_tables import ClusterSettings
from server.config import Config
from server.settings.setting_values import (
    ConfigError,
    Listener,
    Parser,
    listeners_from_tables,
    made_of_table,
    made_of_tables,
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
    parsed,
    tables_named,
    unencrypted,
)

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
"""The parsers of all settings that a flag, an environment variable or the settings file can contain, by name.

The file can also have the tables `providers`, `models`, `mcp_servers`, `mcp_from_clients`, `approval_rules`,
`principals`, `principal_defaults`, `issuers`, `client_certificates`, `authorizer`, `cluster` and `quotas`. Instead of
the setting `listen`, it may have tables [[listen]].
"""


def load(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, file: Path | None = None) -> Config:
    """Read the settings from all sources, and merge them. Raises ConfigError if a setting is invalid.

    `flags` contains only the flags that were given; `file` is the argument of --config, or None.
    """
    source = settings_file(file, environ)
    table, origin = read_settings(source)
    given = given_tables(table, origin)
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
        values[name] = parsed(parse, value, origins[name])
    if "data_dir" not in values:
        values["data_dir"] = data_directory(environ)
    if given["listen_tables"]:
        if "listen" in values:
            del given["listen_tables"]  # a flag or a variable replaces all the tables
        else:
            values["listen"], origins["listen"] = None, f"{origin}: [[listen]]"
    config = Config(file=source, environ=environ, origins=origins, **given, **values)
    check_consistency(config)
    return config


def _refuse_unknown(table: Mapping[str, Any], origin: str) -> None:
    """Raise ConfigError for a key in the settings file that is neither a setting nor the name of a table."""
    if unknown := table.keys() - SETTINGS.keys():
        known = (*SETTINGS, "providers", "models", "mcp_from_clients", *LISTS, *OF_PEOPLE)
        raise ConfigError(f"{origin}: {min(unknown)}: {unknown_key(min(unknown), known)}")


def settings_file(chosen: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file: `chosen`, else the one that BEDROCK_CONFIG names, else the default file if it exists.

    Returns None if there is none. Raises ConfigError if BEDROCK_CONFIG is no usable path.
    """
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


def read_settings(path: Path | None) -> tuple[dict[str, Any], str]:
    """Return the content of the settings file, and its path for error messages; {} and "" for None.

    Raises ConfigError if the file cannot be read or parsed, or if other users own or can change it.
    """
    if path is None:
        return {}, ""
    try:
        return tomllib.loads(read_believed(path, named=True).decode("utf-8-sig")), str(path)
    except NotPrivateError as error:  # the server runs commands from this file
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


LISTS = ("mcp_servers", "approval_rules")
"""The names of tables that the settings file may contain several times, as [[NAME]]."""
OF_PEOPLE = (
    "principals", "principal_defaults", "issuers", "client_certificates", "authorizer", "quotas", "cluster",
)  # fmt: skip
"""The names of the tables about callers (who they are, and what they may do and use), and of the table [cluster]."""


def given_tables(table: dict[str, Any], origin: str) -> dict[str, Any]:
    """Remove the tables from the content of the settings file, and return them as fields of Config.

    Raises ConfigError if a table is invalid.
    """
    providers = table.pop("providers", {})
    if not (isinstance(providers, dict) and all(isinstance(each, dict) for each in providers.values())):
        raise ConfigError(f"{origin}: providers: must be tables, [providers.NAME]")
    models = table.pop("models", {})
    if not isinstance(models, dict):
        raise ConfigError(f'{origin}: models: must be tables, [models."name"]')
    mcp_from_clients = table.pop("mcp_from_clients", {})
    if not isinstance(mcp_from_clients, dict):
        raise ConfigError(f"{origin}: mcp_from_clients: must be a table, [mcp_from_clients]")
    lists = {name: tables_named(table, name, origin) for name in LISTS}
    principals = made_of_tables(table, "principals", origin, principals_from_tables)
    issuers = made_of_tables(table, "issuers", origin, partial(issuers_from_tables, principals=principals))
    listen_tables = listeners_from_tables(table, origin)
    certificates = _client_certificates(table, principals, listen_tables, origin)
    of_all = _read(Quotas, table.pop("quotas", {}), "quotas", origin)
    defaults = _read(PrincipalDefaults, table.pop("principal_defaults", {}), "principal_defaults", origin)
    authorizer = _read(AuthorizerSettings | None, table.pop("authorizer", None), "authorizer", origin)
    cluster = _read(ClusterSettings | None, table.pop("cluster", None), "cluster", origin)
    return {
        "providers": providers,
        "models": models,
        "mcp_from_clients": mcp_from_clients,
        **lists,
        "principals": principals,
        "quotas": quota_settings(of_all, defaults, principals, issuers),
        "issuers": issuers,
        "listen_tables": listen_tables,
        "client_certificates": certificates,
        "authorizer": authorizer,
        "cluster": cluster,
    }


def _read(kind: Any, given: Any, name: str, origin: str) -> Any:
    """Convert a table of the settings file. Raises ConfigError if it is invalid."""
    return parsed(partial(read, kind, name), given, origin)


def _client_certificates(
    table: dict[str, Any], principals: Mapping[str, Principal], listeners: tuple[Listener, ...], origin: str
) -> dict[str, Principal]:
    """Remove the table [client_certificates] from the settings file's content, and return its principals by name.

    The names are those in the certificates. Raises ConfigError if the table is invalid, or if no listener asks clients
    for certificates.
    """
    names = table.pop("client_certificates", {})
    if names and not any(each.client_ca for each in listeners):
        raise ConfigError(f"{origin}: client_certificates: no [[listen]] has a client_ca, so no client shows one")
    return made_of_table(partial(client_certificates, principals=principals), names, "client_certificates", origin)


def check_consistency(config: Config) -> None:
    """Raise ConfigError if settings contradict each other, or if tokens would cross a network without TLS."""
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
            f"{unencrypted(config.listen)}"
            "Set tls_certificate and tls_key, or listen on 127.0.0.1 and put a TLS proxy or an SSH tunnel in front; "
            "insecure_behind_proxy is for networks in which a mesh encrypts everything"
        )


def _check_cluster(config: Config, cluster: ClusterSettings) -> None:
    """Raise ConfigError if there is no database to share, or if nodes would send their token to others without TLS."""
    if not config.database:
        raise config.refusal("cluster: only servers that share a database need it: set database, too")
    host, _ = host_and_port(cluster.address) or ("", 0)
    in_mesh = any(each.insecure_behind_proxy for each in config.listeners)
    if cluster.ca is None and not is_loopback(host) and not in_mesh:
        raise config.refusal(
            "cluster.ca: everybody on the network could read the nodes' token: name the authorities that sign the "
            "nodes' certificates; insecure_behind_proxy is for networks in which a mesh encrypts everything"
        )
