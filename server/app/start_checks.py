"""The checks of `bedrock config check` and `bedrock doctor`: what a server would use or refuse if it started."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bedrock.local_server import NotPrivateError

from actors.adapters.store.sqlite.data_directory import ENOUGH_BYTES, free_bytes, refuse_moved
from actors.adapters.tools.call_subjects import prepared_rule
from actors.adapters.tools.registry import StandardToolbox
from actors.core.approval import MCP_PREFIX, describe
from actors.core.context import ApprovalRule
from actors.ports import SandboxUnavailableError, StoreError
from actors.ports.tools import McpLoginsError
from actors.runtime.quotas import COSTS, QuotaSettings
from server.app import adapter_choice as adapters
from server.app.sandbox_choice import probed, sandbox_line
from server.auth.authentication import authorizer_class
from server.auth.principals import Principal
from server.auth.tokens import MCP_LOGINS, McpLoginFile
from server.local_endpoint import check_closable
from server.settings.config import ClusterSettings, Config, load
from server.settings.setting_values import ConfigError

if TYPE_CHECKING:
    from actors.adapters.mcp.server_settings import McpServer
    from actors.adapters.store.postgres.engine import DatabaseReport, LivingNode


OK, WARN, FAIL = "ok", "warn", "fail"
# How many seconds the clocks of the database and of this machine may differ without a warning.
CLOCK_SECONDS = 5.0

# Pairs of a fragment of a connection error and advice about it. The last fragment matches any error.
_ADVICE = (
    ("password", "Put the password in the server user's ~/.pgpass or in BEDROCK_DATABASE."),
    ("no pg_hba", "Allow this user and machine in the database's pg_hba.conf."),
    ("does not exist", "Create it with createdb NAME or createuser NAME."),
    ("SSL", "Set sslmode in the URL to a mode the database supports, and sslrootcert to the CA certificate to trust."),
    ("timeout", "Check the address, and that no firewall blocks this machine."),
    ("too many", "Raise its max_connections: each node uses 19 connections."),
    ("", "Check that PostgreSQL is running there and listening on that address (listen_addresses)."),
)


class DatabaseFinding(NamedTuple):
    level: str
    subject: str
    text: str
    advice: str = ""


def findings_of_settings(file: str | None) -> Iterator[DatabaseFinding]:
    """Check the database and the disk in the settings `file` (None: the default file).

    For SQLite, only problems are reported.
    """
    try:
        config = load({}, file=Path(file) if file else None)
        if config.database:
            yield from database_findings(config)
        else:
            yield from _moved(config)
        yield from _full_disk(config.data_dir)
    except ConfigError as error:
        yield DatabaseFinding(FAIL, "settings", str(error), "Run `bedrock config check` for details.")


def _moved(config: Config) -> Iterator[DatabaseFinding]:
    try:
        refuse_moved(config.data_dir)
    except StoreError as error:
        yield DatabaseFinding(FAIL, "database", str(error))


def _full_disk(directory: Path) -> Iterator[DatabaseFinding]:
    try:
        free = free_bytes(directory)
    except OSError:  # the directory does not exist before the first start
        return
    if free < ENOUGH_BYTES:
        text = f"only {free >> 10:,} KiB free on the file system of {directory}"
        yield DatabaseFinding(FAIL, "disk", text, f"Free at least {ENOUGH_BYTES >> 20} MiB for the server.")


def database_findings(config: Config) -> Iterator[DatabaseFinding]:
    """Check the configured database within a few seconds. Raises ConfigError without the extra `postgres`."""
    adapters.check_postgres(config)
    from actors.adapters.store.postgres.engine import database_report  # noqa: PLC0415 -- only if needed

    try:
        report = database_report(config.database)
    except StoreError as error:
        said = str(error)
        yield DatabaseFinding(FAIL, "database", said, next(what for word, what in _ADVICE if word in said))
        return
    yield _fitness(report)
    yield _schema(report)
    yield _clock(report)
    yield _nodes(report, config)


def _fitness(report: DatabaseReport) -> DatabaseFinding:
    if report.unfit:
        return DatabaseFinding(FAIL, "database", f"{report.redacted}: {report.unfit}", "Choose another database.")
    return DatabaseFinding(
        OK, "database", f"{report.redacted}: PostgreSQL {report.version}, {report.encoding}, writable"
    )


def _schema(report: DatabaseReport) -> DatabaseFinding:
    if report.unknown:
        text = f"written by a newer version, which added {', '.join(report.unknown)}"
        return DatabaseFinding(FAIL, "tables", text, "Use that version, or choose another database.")
    if (report.empty or report.missing) and not report.may_create:
        text = f"the user cannot create tables in {report.schema or 'the first schema of its search_path'}"
        advice = "Run GRANT CREATE ON SCHEMA, or make the user the owner of the database; PostgreSQL 15 requires this."
        return DatabaseFinding(FAIL, "tables", text, advice)
    if report.empty:
        return DatabaseFinding(OK, "tables", f"none yet: the first start creates them in schema {report.schema}")
    if report.missing:
        text = f"written by an older version; missing: {', '.join(report.missing)}"
        return DatabaseFinding(WARN, "tables", text, "The next start adds them; do not downgrade afterwards.")
    return DatabaseFinding(OK, "tables", f"up to date, in schema {report.schema}")


def _clock(report: DatabaseReport) -> DatabaseFinding:
    how = f"{abs(report.clock_ahead):.1f} s {'ahead of' if report.clock_ahead > 0 else 'behind'} this machine's"
    if abs(report.clock_ahead) < CLOCK_SECONDS:
        return DatabaseFinding(OK, "clock", f"the database's clock is {how}")
    advice = "Synchronize both with NTP: leases use the database's clock, but message times use this machine's."
    return DatabaseFinding(WARN, "clock", f"the database's clock is {how}", advice)


def _nodes(report: DatabaseReport, config: Config) -> DatabaseFinding:
    if not report.nodes:
        return DatabaseFinding(OK, "nodes", "none running")
    text = ", ".join(map(_told, report.nodes))
    others = [node for node in report.nodes if node.address != adapters.own_address(config)]
    if advice := next(filter(None, (_refusal(node, config.cluster) for node in others)), ""):
        return DatabaseFinding(FAIL, "nodes", text, advice)
    return DatabaseFinding(OK, "nodes", text)


def _refusal(node: LivingNode, here: ClusterSettings | None) -> str:
    """Why a server with the settings `here` would not start next to `node`, with a remedy; "" if it would start."""
    if here is None:
        return "A new server would refuse to start: servers that share a database each need a [cluster] table."
    if node.address.startswith("unix:"):
        return "A new server would refuse to start: add a [cluster] table to that server's settings too."
    if node.lease_seconds != here.lease_seconds:
        return (
            f"cluster.lease_seconds is {here.lease_seconds:g} here, but {node.lease_seconds:g} on {node.name}; stop "
            "all nodes, set the same value on each, and start them."
        )
    return ""


def _told(node: LivingNode) -> str:
    if node.address.startswith("unix:"):
        return "a server that has the database to itself"
    stops = ", draining" if node.draining else ""
    return f"{node.name} at {node.address} (lease of {node.lease_seconds:g} s{stops})"


def checked(config: Config) -> Iterator[str]:
    """Yield a line for everything that a server would use, without starting it.

    Raises CannotStartError or ConfigError.
    """
    with ExitStack() as opened:
        adapters.pinned(config, opened)
        yield from _checked_listeners(config)
        yield from _checked_database(config)
        if config.data_dir.exists():
            try:
                check_closable(config.data_dir)
            except (NotPrivateError, OSError) as error:
                raise adapters.CannotStartError(str(error)) from None
        opened.callback(adapters.model_catalog(config).close)
        for provider in adapters.providers(config):
            key = f", key from {provider.key_source}" if provider.key_source else ""
            yield f"provider {provider.name}: {provider.protocol}{key}"
        yield from (f"model {prefix}: {_set_of_model(row)}" for prefix, row in config.models.items())
        servers, rules = adapters.mcp_settings(config)
        for server in servers:
            yield f"MCP server {server.name}: {server.url or server.command[0]}{_note_of_server(server, config)}"
        for rule in adapters.operator_rules(config, prepared_rule):
            yield f"approval rule {rule.id}: {rule.action} {describe(rule)}{_note_of(rule)}"
        if allowed := [*(["programs"] if rules.programs else []), *sorted(rules.origins)]:
            yield f"MCP servers of clients: {', '.join(allowed)}"
        try:
            report = probed(config)
        except SandboxUnavailableError as error:
            raise adapters.CannotStartError(str(error)) from None
        yield from _checked_principals(config)
        yield from _told_quotas(config.quotas)
        if report.separation_reason:
            yield f"tools would be disabled for principals: {report.separation_reason}"
        yield sandbox_line(report)


def _set_of_model(row: Mapping[str, Any]) -> str:
    told = [key.replace("_", " ") for key in row if key != "price"]
    price = ", ".join(f"{key} ${value:g}" for key, value in row.get("price", {}).items() if key != "long")
    return "; ".join(filter(None, (f"sets {', '.join(told)}" if told else "", f"price of {price}" if price else "")))


def _note_of_server(server: McpServer, config: Config) -> str:
    if server.command:
        path = server.environment.get("PATH", config.environ.get("PATH"))
        there = "/" in server.command[0] or shutil.which(server.command[0], path=path)
        return "" if there else ", not found on PATH"
    if server.login is None:
        return ""
    try:
        found = McpLoginFile(config.data_dir / MCP_LOGINS).read().get(server.name)
    except McpLoginsError as error:
        return f", but its login cannot be used: {error}"
    if found is not None and found.url == server.url:
        return ", logged in"
    return f", not logged in: if it requires a login, run `bedrock mcp login {server.name}`"


def _note_of(rule: ApprovalRule) -> str:
    """A warning about a rule for a tool that the server does not have; "" for MCP tools, which are not checked."""
    toolbox = StandardToolbox()
    ours = {spec.name for sub_agent in (False, True) for spec in toolbox.specs(sub_agent=sub_agent)}
    known = not rule.tool or rule.tool in ours or rule.tool.startswith(MCP_PREFIX)
    return "" if known else ", not one of the server's tools: only a client's tool can match"


def _checked_listeners(config: Config) -> Iterator[str]:
    for listener in config.listeners:
        if adapters.server_credentials(listener) is not None:
            clients = f"; clients must present one signed by {listener.client_ca}" if listener.client_ca else ""
            yield f"certificate: {listener.certificate} and its key are usable{clients}"


def _checked_database(config: Config) -> Iterator[str]:
    """Check the database and this server's cluster settings; yields lines of the report.

    Raises CannotStartError or ConfigError.
    """
    if not config.database:
        try:
            refuse_moved(config.data_dir)
        except StoreError as error:
            raise adapters.CannotStartError(str(error)) from None
    else:
        for finding in database_findings(config):
            if finding.level == FAIL:
                raise adapters.CannotStartError(f"{finding.subject}: {finding.text}. {finding.advice}")
            yield f"{finding.subject}: {finding.text}{f'. {finding.advice}' if finding.advice else ''}"
    if config.cluster is not None:
        adapters.check_listener(config, adapters.node_access(config.cluster))
        adapters.check_workspaces(config.cluster)
        yield f"node {config.cluster.name}: others reach it at {config.cluster.address}"
        yield from (f"workspace of this node: {each}" for each in config.cluster.workspaces)


def _checked_principals(config: Config) -> Iterator[str]:
    """Yield a line for each principal, certificate, authorizer and issuer. Raises ConfigError."""
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
        adapters.issued_tokens(config)
    for issuer in config.issuers.values():
        others = "a principal for each" if issuer.template else f"{len(issuer.principals)} principals"
        where = issuer.table.jwks_url or issuer.table.jwks_file
        yield f"issuer {issuer.name}: {issuer.table.url}, keys from {where}, {others} by {issuer.table.principal_claim}"


def _told_quotas(quotas: QuotaSettings) -> Iterator[str]:
    of_templates = {f"each principal of issuer {name}": limits for name, limits in quotas.issuers.items()}
    tables = {"all together": quotas.together, "each principal": quotas.each, **of_templates, **quotas.named}
    for whose, limits in tables.items():
        told = (
            f"{quota} {f'${value / 1_000_000:,.2f}' if quota in COSTS else value}" for quota, value in limits.items()
        )
        if limits:
            yield f"quotas of {whose}: {', '.join(told)}"


def _note_of_principal(principal: Principal, config: Config) -> str:
    servers = {table.get("name") for table in config.mcp_servers}
    unknown = [f"MCP server {name}" for name in principal.permissions.mcp_servers or () if name not in servers]
    missing = [f"directory {root}" for root in principal.permissions.roots or () if not os.path.isdir(root)]
    return f"; there is no {', no '.join(missing + unknown)}" if missing or unknown else ""
