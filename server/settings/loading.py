"""Reads the server's settings from flags, BEDROCK_* variables, a TOML file and defaults; the first of these wins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from bedrock.local_server import data_directory

from actors.ports.settings.settings_checks import absolute_path_of, unknown_key
from server.config import Config
from server.settings.config_error import ConfigError
from server.settings.config_file import read_settings, settings_file
from server.settings.config_tables import LISTS, OF_PEOPLE, given_tables
from server.settings.consistency import check_consistency
from server.settings.file_tables import parsed
from server.settings.setting_values import (
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

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
