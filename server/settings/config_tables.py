"""Reads the tables of the settings file, such as [providers.NAME], and returns them as fields of Config."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from actors.ports.settings.settings_checks import read
from server.auth.authorizer.authorizer_tables import AuthorizerSettings
from server.auth.issuers.client_certificates import client_certificates
from server.auth.issuers.issuer_tables import issuers_from_tables, quota_settings
from server.auth.principals import Principal, PrincipalDefaults, Quotas, principals_from_tables
from server.cluster.cluster_tables import ClusterSettings
from server.settings.config_error import ConfigError
from server.settings.file_tables import made_of_table, made_of_tables, parsed, tables_named
from server.settings.listeners import Listener, listeners_from_tables

if TYPE_CHECKING:
    from collections.abc import Mapping


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
