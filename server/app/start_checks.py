"""The checks of `bedrock config check`: reports what a server would use or refuse if it started with given settings."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from bedrock.local_server import NotPrivateError

from actors.adapters.store.sqlite.data_directory import refuse_moved
from actors.adapters.tools.call_subjects import prepared_rule
from actors.adapters.tools.registry import StandardToolbox
from actors.core.approval import MCP_PREFIX, describe
from actors.ports import (
    SandboxUnavailableError,
    StoreError,
)
from actors.ports.mcp import McpLoginsError
from actors.runtime.quotas import COSTS
from actors.runtime.services import SystemClock, Timers
from server.app.adapter_choice import (
    CannotStartError,
    issued_tokens,
    mcp_settings,
    model_catalog,
    pinned,
    providers,
    server_credentials,
)
from server.app.database_findings import FAIL, database_findings
from server.app.node_listener import check_listener
from server.app.sandbox_choice import probed, sandbox_line
from server.app.store_choice import check_workspaces, node_access
from server.auth.authorizer.authorizer_tables import authorizer_class
from server.auth.mcp_login_file import FILE as MCP_LOGINS
from server.auth.mcp_login_file import McpLoginFile
from server.local_access import check_closable
from server.services.operator_rules import operator_rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from actors.adapters.mcp.server_settings import McpServer
    from actors.core.context import ApprovalRule
    from actors.runtime.quotas import QuotaSettings
    from server.auth.principals import Principal
    from server.config import Config


def checked(config: Config) -> Iterator[str]:
    """Yield one line for each thing that a server with these settings would use. Starts and changes nothing.

    Raises CannotStartError or ConfigError for what would keep the server from starting.
    """
    with ExitStack() as opened:
        pinned(config, opened)
        yield from _checked_listeners(config)
        yield from _checked_database(config)
        if config.data_dir.exists():
            try:
                check_closable(config.data_dir)
            except (NotPrivateError, OSError) as error:
                raise CannotStartError(str(error)) from None
        timers = Timers(SystemClock())
        opened.callback(timers.close)
        opened.callback(model_catalog(config, timers).close)
        for provider in providers(config):
            key = f", key from {provider.key_source}" if provider.key_source else ""
            yield f"provider {provider.name}: {provider.protocol}{key}"
        yield from (f"model {prefix}: {_set_of_model(row)}" for prefix, row in config.models.items())
        servers, rules = mcp_settings(config)
        for server in servers:
            yield f"MCP server {server.name}: {server.url or server.command[0]}{_note_of_server(server, config)}"
        for rule in operator_rules(config, prepared_rule):
            yield f"approval rule {rule.id}: {rule.action} {describe(rule)}{_note_of(rule)}"
        if allowed := [*(["programs"] if rules.programs else []), *sorted(rules.origins)]:
            yield f"MCP servers of clients: {', '.join(allowed)}"
        try:
            report = probed(config)
        except SandboxUnavailableError as error:
            raise CannotStartError(str(error)) from None
        yield from _checked_principals(config)
        yield from _told_quotas(config.quotas)
        if report.separation_reason:
            yield f"no tool of a principal would run: {report.separation_reason}"
        yield sandbox_line(report)


def _set_of_model(row: Mapping[str, Any]) -> str:
    told = [key.replace("_", " ") for key in row if key != "price"]
    price = ", ".join(f"{key} ${value:g}" for key, value in row.get("price", {}).items() if key != "long")
    return "; ".join(filter(None, (f"sets {', '.join(told)}" if told else "", f"price of {price}" if price else "")))


def _note_of_server(server: McpServer, config: Config) -> str:
    """Return a note about an MCP server: a warning, or the state of the operator's login; "" if there is neither."""
    if server.command:
        path = server.environment.get("PATH", config.environ.get("PATH"))
        there = "/" in server.command[0] or shutil.which(server.command[0], path=path)
        return "" if there else ", which is not on the PATH of this command"
    if server.login is None:
        return ""
    try:
        found = McpLoginFile(config.data_dir / MCP_LOGINS).read().get(server.name)
    except McpLoginsError as error:
        return f", whose login cannot be used: {error}"
    if found is not None and found.url == server.url:
        return ", logged in"
    return f", not logged in: if it asks for that, bedrock mcp login {server.name}"


def _note_of(rule: ApprovalRule) -> str:
    """Return a warning if the rule names a tool that the server does not have.

    Returns "" for a tool of the server, for one of an MCP server, which cannot be checked, and if no tool is named.
    """
    toolbox = StandardToolbox()
    ours = {spec.name for sub_agent in (False, True) for spec in toolbox.specs(sub_agent=sub_agent)}
    known = not rule.tool or rule.tool in ours or rule.tool.startswith(MCP_PREFIX)
    return "" if known else ", which the server does not have: only a client's tool can be meant"


def _checked_listeners(config: Config) -> Iterator[str]:
    """Yield a line for each listener with a certificate. Raises CannotStartError if a certificate cannot be used."""
    for listener in config.listeners:
        if server_credentials(listener) is not None:
            clients = f"; clients need one by {listener.client_ca}" if listener.client_ca else ""
            yield f"certificate: {listener.certificate} and its key can be used{clients}"


def _checked_database(config: Config) -> Iterator[str]:
    """Yield lines about the database, and about this server as a node of a cluster.

    Raises CannotStartError or ConfigError if the server could not start with this database or cluster.
    """
    if not config.database:
        try:
            refuse_moved(config.data_dir)
        except StoreError as error:
            raise CannotStartError(str(error)) from None
    else:
        for finding in database_findings(config):
            if finding.level == FAIL:
                raise CannotStartError(f"{finding.subject}: {finding.text}. {finding.advice}")
            yield f"{finding.subject}: {finding.text}{f'. {finding.advice}' if finding.advice else ''}"
    if config.cluster is not None:
        check_listener(config, node_access(config.cluster))
        check_workspaces(config.cluster)
        yield f"node {config.cluster.name}: others reach it at {config.cluster.address}"
        yield from (f"workspace of this node: {each}" for each in config.cluster.workspaces)


def _checked_principals(config: Config) -> Iterator[str]:
    """Yield a line for each principal, client certificate, authorizer and issuer.

    Raises ConfigError if an authorizer or an issuer cannot be used.
    """
    for principal in config.principals.values():
        roots = ", ".join(principal.permissions.roots or ()) or "no directories"
        yield f"principal {principal.name}: {principal.role}, reads {roots}{_note_of_principal(principal, config)}"
    for name, principal in config.client_certificates.items():
        yield f"client certificate {name}: {principal.name}"
    if config.authorizer is not None:
        try:
            authorizer_class(config.authorizer)
        except ValueError as error:
            raise config.refusal(str(error)) from None
        yield f"authorizer: {config.authorizer.name}, within {config.authorizer.seconds:g} s"
    if config.issuers:
        issued_tokens(config)
    for issuer in config.issuers.values():
        others = "a principal for each" if issuer.template else f"{len(issuer.principals)} principals"
        where = issuer.table.jwks_url or issuer.table.jwks_file
        yield f"issuer {issuer.name}: {issuer.table.url}, keys from {where}, {others} by {issuer.table.principal_claim}"


def _told_quotas(quotas: QuotaSettings) -> Iterator[str]:
    """Yield a line for each set of quotas. The line of a principal includes the defaults that it does not override."""
    of_templates = {f"each principal of the issuer {name}": limits for name, limits in quotas.issuers.items()}
    tables = {"all together": quotas.together, "each principal": quotas.each, **of_templates, **quotas.named}
    for whose, limits in tables.items():
        told = (
            f"{quota} {f'${value / 1_000_000:,.2f}' if quota in COSTS else value}" for quota, value in limits.items()
        )
        if limits:
            yield f"quotas of {whose}: {', '.join(told)}"


def _note_of_principal(principal: Principal, config: Config) -> str:
    """Return a warning about directories or MCP servers of a principal that do not exist; "" if all exist."""
    servers = {table.get("name") for table in config.mcp_servers}
    unknown = [f"MCP server {name}" for name in principal.permissions.mcp_servers or () if name not in servers]
    missing = [f"directory {root}" for root in principal.permissions.roots or () if not os.path.isdir(root)]
    return f"; there is no {', no '.join(missing + unknown)}" if missing or unknown else ""
