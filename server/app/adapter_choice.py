"""Creates the adapters that the settings ask for: store, sandbox, models, tokens, MCP servers, metrics and TLS.

If an adapter cannot be used, its function raises CannotStartError or ConfigError with a message for the operator.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import grpc
from bedrock.local_server import TOKEN_FILE
from msgspec.structs import asdict

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.provider import ProviderConfig, provider_from_mapping, providers_from_env
from actors.adapters.mcp.server_settings import FromClients, McpServer, from_clients, servers_from_tables
from actors.adapters.sandbox.control_groups import ControlGroups
from actors.adapters.sandbox.probe import with_limits
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.store.sqlite.store import open_store
from actors.adapters.tools.program_launch import tool_environment
from actors.core.context import ApprovalRule, Origin
from actors.maintenance.retention import Retention
from actors.ports import InvalidApprovalRuleError, SandboxReport, SandboxUnavailableError, Store, StoreError
from actors.ports.cluster import EVERYTHING, Cluster, Lease, Node
from actors.ports.records import Spending
from actors.ports.sandbox import PermissionsOf
from actors.ports.telemetry import Telemetry
from actors.ports.tools import McpServers, NoMcpServers
from actors.runtime.quotas import QuotaBook, first_day_of_month
from actors.runtime.services import SystemClock
from server.auth import tokens as secret_files
from server.auth.authentication import Authentication, AuthorizerCalls, ClientCertificates, made_authorizer
from server.certificates import CertificateFiles, CertificateUnusableError, authorities_in, why_untrusted
from server.cluster.peers import NodeMarks
from server.cluster.router import NodeAccess
from server.operating_system import CannotListenError, listening, running_on
from server.services.catalog import version
from server.settings.config import ClusterSettings, Config, shown_database
from server.settings.setting_values import ConfigError, Listen, Listener

if TYPE_CHECKING:
    from actors.adapters.store.postgres.nodes.membership import PostgresCluster
    from actors.adapters.store.postgres.store import PostgresStore
    from actors.adapters.store.sqlite.store import PeeweeStore
    from actors.adapters.telemetry import metrics
    from actors.adapters.telemetry.observer import Observer
    from server.auth.issued_tokens import IssuedTokens

log = logging.getLogger(__name__)


class CannotStartError(Exception):
    pass


def export(config: Config, observer: Observer, gauges: Mapping[metrics.Metric, Callable[[], float]]) -> None:
    """Start the exporters of metrics and traces; the observer closes them.

    Raises CannotStartError (address in use or unknown) or ConfigError (extra not installed).
    """
    if config.metrics_listen is not None:
        config.check_extra("metrics_listen", "metrics", "prometheus_client")
    if config.otlp_endpoint:
        config.check_extra("otlp_endpoint", "otel", "opentelemetry.exporter.otlp")
    from actors.adapters.telemetry.exporters import Instruments, otlp, prometheus  # noqa: PLC0415 -- only if configured

    readers, spans = [], None
    if (where := config.metrics_listen) is not None:
        try:
            with listening(where, "--metrics-listen", " for metrics"):
                reader, close, port = prometheus(where.host, where.port)
        except CannotListenError as error:
            raise CannotStartError(str(error)) from None
        observer.closing.callback(close)
        readers.append(reader)
        log.info("metrics: http://%s/metrics", Listen(where.host, port))
    if config.otlp_endpoint:
        reader, spans = otlp(config.otlp_endpoint, config.otlp_contents)
        observer.closing.callback(spans.close)
        readers.append(reader)
    instruments = Instruments(*readers)
    observer.closing.callback(instruments.close)
    observer.export(instruments, spans, gauges)


def mcp_servers(config: Config, sandbox: ToolHostSandbox, permissions: PermissionsOf) -> McpServers:
    """The connections to MCP servers, from the settings and from clients. Raises ConfigError."""
    servers, rules = mcp_settings(config)
    if not servers and not rules.programs and not rules.origins:
        return NoMcpServers()
    from actors.adapters.mcp.servers import McpServerHub  # noqa: PLC0415 -- only with MCP servers

    return McpServerHub(
        servers,
        sandbox,
        tool_environment(config.environ),
        rules,
        permissions=permissions,
        logins=secret_files.McpLoginFile(config.data_dir / secret_files.MCP_LOGINS),
    )


def mcp_settings(config: Config) -> tuple[tuple[McpServer, ...], FromClients]:
    """The configured MCP servers, and the rules for clients' servers. Raises ConfigError."""
    setting = "mcp_servers" if config.mcp_servers else "mcp_from_clients"
    if not config.mcp_servers and not config.mcp_from_clients:
        return (), FromClients()
    config.check_extra(setting, "mcp", "mcp")
    try:
        servers = servers_from_tables(config.mcp_servers, config.environ)
        return servers, from_clients(config.mcp_from_clients, config.environ)
    except ValueError as error:
        raise config.refusal(str(error)) from None


def operator_rules(config: Config, prepared: Callable[[ApprovalRule], ApprovalRule]) -> tuple[ApprovalRule, ...]:
    """The operator's approval rules in the order of the settings file, each converted by `prepared`.

    Raises ConfigError.
    """
    rules: list[ApprovalRule] = []
    for number, table in enumerate(config.approval_rules, 1):
        try:
            rules.append(prepared(ApprovalRule(str(number), origin=Origin.OPERATOR, **asdict(table))))
        except InvalidApprovalRuleError as invalid:
            raise config.refusal(f"approval_rules[{number}].{invalid.field}: {invalid}") from None
    return tuple(rules)


def quota_book(config: Config, store: Store, clock: SystemClock, telemetry: Telemetry) -> QuotaBook:
    def spent_this_month() -> tuple[Spending, ...]:
        return store.spendings(first_day_of_month(clock.now_ms()))

    return QuotaBook(
        config.quotas,
        clock,
        spent_this_month(),
        telemetry,
        stored_bytes=store.stored_bytes,
        put_spending=store.put_spending,
        spent_by_all=spent_this_month if config.cluster is not None else None,
    )


def retention(config: Config) -> Retention:
    return Retention(
        events_days=config.retention_events_days,
        events_min=config.retention_events_min,
        archived_days=config.retention_archived_days,
        audit_days=config.retention_audit_days,
    )


def pinned(config: Config, opened: ExitStack) -> frozenset[int] | None:
    """Run this process on the configured CPUs until `opened` closes.

    Returns the CPUs that were allowed before, which tools may still use; None if no CPUs are configured. Raises
    ConfigError if none of the configured CPUs is allowed.
    """
    try:
        return opened.enter_context(running_on(config.cpus))
    except ValueError as error:
        raise config.refusal(f"cpus: {error}") from None


def tool_sandbox(
    config: Config, report: Future[SandboxReport], socket: Path, *, cpus: frozenset[int] | None, lease: Lease
) -> ToolHostSandbox:
    """The sandbox for tools, which hides the server's own files and socket. Waits for `report`.

    Raises CannotStartError if the machine cannot enforce what the settings demand.
    """
    nodes = config.cluster.token_file if config.cluster is not None else None
    own = (config.data_dir, socket.parent, *(each.key for each in config.listeners), config.file, nodes)
    try:
        groups = ControlGroups()
        protected = [str(path) for path in own if path is not None]
        sandbox = ToolHostSandbox(
            with_limits(report.result(), groups.controllers),
            protected=protected,
            workspace_protected=config.workspace_protected,
            deny_read=config.deny_read,
            system_paths=config.system_paths,
            groups=groups,
            cpus=cpus,
            lease=lease,
        )
    except (SandboxUnavailableError, OSError) as error:
        raise CannotStartError(str(error)) from None
    return sandbox


def authentication_of(config: Config, opened: ExitStack) -> Authentication:
    """The authentication of callers: by the local token, and by every method that the settings configure.

    Raises TokenUnusableError, StoreUnavailableError or ConfigError.
    """
    tokens = _tokens_of_principals(config, opened) if config.principals else None
    issuers = config.issuers
    own = secret_files.read_or_create_token(config.data_dir / TOKEN_FILE)
    asked = any(each.client_ca for each in config.listeners)
    if config.client_certificates:
        config.check_extra("client_certificates", "mtls", "cryptography")
    certificates = ClientCertificates(config.client_certificates) if asked else None
    issued = issued_tokens(config) if issuers else None
    return Authentication(
        own,
        tokens,
        config.principals,
        issuers=issuers,
        issued=issued,
        certificates=certificates,
        authorizer=_authorizer(config),
    )


def _tokens_of_principals(config: Config, opened: ExitStack) -> secret_files.TokenFile | secret_files.SharedTokens:
    """The tokens of principals, from the shared database or the data directory.

    Raises TokenUnusableError or StoreUnavailableError.
    """
    if not config.database:
        file = secret_files.TokenFile(config.data_dir / secret_files.PRINCIPALS_TOKENS)
        file.read()
        return file
    # Imported here, because the package is installed only on servers that use a PostgreSQL database.
    from actors.adapters.store.postgres.nodes.node_session import Document  # noqa: PLC0415

    document = Document(config.database, secret_files.PRINCIPALS_TOKENS)
    opened.callback(document.close)
    shared = secret_files.SharedTokens(secret_files.PrincipalTokens(document))
    opened.callback(shared.close)
    return shared


def _authorizer(config: Config) -> AuthorizerCalls | None:
    if config.authorizer is None:
        return None
    try:
        authorizer = made_authorizer(config.authorizer)
    except ValueError as error:
        log.error("%s", error, exc_info=error.__cause__)
        raise config.refusal(str(error)) from None
    return AuthorizerCalls(authorizer, config.authorizer.seconds)


def issued_tokens(config: Config) -> IssuedTokens:
    """The verifier of external issuers' tokens.

    Raises ConfigError without the extra `jwt`, or for an unusable key file.
    """
    config.check_extra("issuers", "jwt", "jwt", "cryptography")
    from server.auth.issued_tokens import IssuedTokens, KeysUnusableError, keys_in, read_file  # noqa: PLC0415

    for name, issuer in config.issuers.items():
        if issuer.table.jwks_file is None:
            continue
        try:
            keys_in(read_file(issuer.table.jwks_file), issuer.table.algorithms)
        except KeysUnusableError as error:
            raise config.refusal(f"issuers.{name}.jwks_file: {error}") from None
    return IssuedTokens(config.issuers)


def model_catalog(config: Config) -> Catalog:
    try:
        return Catalog(providers(config), default=config.default_model, small=config.small_model, models=config.models)
    except ValueError as error:
        raise config.refusal(str(error)) from None


def providers(config: Config) -> tuple[ProviderConfig, ...]:
    """The configured model providers, then well-known ones with an API key in the environment. Raises ValueError."""
    named = tuple(provider_from_mapping(name, table, config.environ) for name, table in config.providers.items())
    taken = {provider.name for provider in named}
    return named + tuple(each for each in providers_from_env(config.environ) if each.name not in taken)


def server_credentials(listener: Listener) -> grpc.ServerCredentials | None:
    """The TLS credentials of a listener; None without TLS.

    Raises CannotStartError if certificate or key cannot be used.
    """
    if listener.certificate is None or listener.key is None:
        return None
    try:
        return CertificateFiles(listener.certificate, listener.key, listener.client_ca).credentials()
    except CertificateUnusableError as error:
        raise CannotStartError(str(error)) from None


OpenedStore: TypeAlias = "PeeweeStore | PostgresStore"


def opened_store(
    config: Config, opened: ExitStack, *, active: Callable[[], int], written: Callable[[int, float], None] | None
) -> tuple[OpenedStore, Cluster]:
    """Open the store and, if one is configured, join the cluster; closing `opened` undoes both.

    `active` returns the number of conversations with an actor; `written`, if given, is called after each transaction
    with the number of changes and the duration in seconds. Raises ConfigError, CannotStartError, DataDirectoryBusyError
    or StoreError.
    """
    if config.database:
        return _shared(config, opened, active, written)
    store = open_store(config.data_dir, written=written)
    opened.callback(store.close)
    return store, Cluster(active)


def _shared(
    config: Config, opened: ExitStack, active: Callable[[], int], written: Callable[[int, float], None] | None
) -> tuple[PostgresStore, PostgresCluster]:
    """Register this server as a node, and open its store. Raises ConfigError, CannotStartError or StoreError."""
    check_postgres(config)
    # Imported here, because only servers with PostgreSQL have these packages.
    from actors.adapters.store.postgres.engine import address_of, database_outages, migrate  # noqa: PLC0415
    from actors.adapters.store.postgres.nodes.heartbeat import Timing  # noqa: PLC0415
    from actors.adapters.store.postgres.nodes.membership import PostgresCluster  # noqa: PLC0415
    from actors.adapters.store.postgres.store import open_postgres  # noqa: PLC0415

    migrate(address_of(config.database))
    settings = config.cluster
    if settings is None:
        new = Node(0, address=own_address(config), version=version(), labels=frozenset({EVERYTHING}))
        timing = Timing()
    else:
        check_workspaces(settings)
        labels = frozenset(settings.workspaces)
        new, timing = Node(0, settings.name, settings.address, version(), labels), Timing(settings.lease_seconds)
    outages = database_outages()
    cluster = PostgresCluster(config.database, new, timing, active=active, outages=outages)
    opened.callback(cluster.close)
    opened.push(partial(_left_if_refused, cluster))
    _check_neighbours(config, cluster)
    cluster.on_lost = _end_at_once
    store = open_postgres(config.database, cluster.me.incarnation, written=written, outages=outages)
    opened.callback(store.close)
    return store, cluster


def check_postgres(config: Config) -> None:
    config.check_extra("database", "postgres", "psycopg")


def own_address(config: Config) -> str:
    """The address under which this server registers.

    Without `[cluster]`, this is a placeholder at which nothing listens. The next server with this data directory uses
    it to recognise that its predecessor is gone.
    """
    return f"unix:{socket.gethostname()}:{config.data_dir}" if config.cluster is None else config.cluster.address


def node_access(settings: ClusterSettings) -> NodeAccess:
    """Token and TLS credentials for calls between nodes. Raises CannotStartError."""
    try:
        token = secret_files.read_token(settings.token_file)
        NodeMarks(token)
        authorities = authorities_in(settings.ca) if settings.ca is not None else None
    except (secret_files.TokenUnusableError, ValueError) as error:
        raise CannotStartError(f"cluster.token_file: {error}") from None
    except CertificateUnusableError as error:
        raise CannotStartError(f"cluster.ca: {error}") from None
    except OSError as error:
        raise CannotStartError(f"cluster.ca: {settings.ca} cannot be read: {error.strerror}") from None
    credentials = grpc.ssl_channel_credentials(authorities) if authorities is not None else None
    return NodeAccess(token=token, credentials=credentials, authorities=authorities)


def check_workspaces(settings: ClusterSettings) -> None:
    """Raise CannotStartError for a workspace that is missing, perhaps unmounted, or whose path contains a link.

    Conversations' paths contain no links, so a workspace with a link would match none of them.
    """
    for workspace in settings.workspaces:
        if not os.path.isdir(workspace):
            raise CannotStartError(
                f"cluster.workspaces: {workspace} is not a directory on this machine; mount it or remove the entry"
            )
        if (real := os.path.realpath(workspace)) != workspace:
            raise CannotStartError(f"cluster.workspaces: {workspace} contains a symbolic link; use {real}")


def _left_if_refused(cluster: PostgresCluster, _: object, error: BaseException | None, __: object) -> None:
    """Leave the cluster at once if the server cannot start, because others would wait until this node's lease ends."""
    if isinstance(error, CannotStartError | ConfigError):
        with suppress(StoreError):
            cluster.drain()


def _check_neighbours(config: Config, cluster: PostgresCluster) -> None:
    """Raise CannotStartError for servers on the database that have no [cluster], or a different `lease_seconds`."""
    others = [each for each in cluster.others() if each.address != cluster.me.address]
    if config.cluster is None and others:
        names = ", ".join(sorted({each.name or each.address for each in others}))
        raise CannotStartError(
            f"{shown_database(config.database)} is in use by another server ({names}); to share it, add a "
            "[cluster] table to the settings of each server"
        )
    if alone := [each.address for each in others if each.address.startswith("unix:")]:
        raise CannotStartError(
            f"{shown_database(config.database)} is in use by a server that does not share it ({alone[0]}); add a "
            "[cluster] table to that server's settings too"
        )
    if config.cluster is not None and (differing := cluster.other_leases(config.cluster.lease_seconds)):
        name, seconds = differing[0]
        raise CannotStartError(
            f"cluster.lease_seconds is {config.cluster.lease_seconds:g} here, but {seconds:g} on node {name}; stop "
            "all nodes, set the same value on each, and start them"
        )


def _end_at_once() -> None:
    """End this process: other nodes have declared this node dead, and may own its conversations now."""
    logging.shutdown()
    os._exit(1)


def check_listener(config: Config, access: NodeAccess) -> None:
    """Raise CannotStartError if nodes with the same `cluster.ca` cannot call this one, unless it is behind a proxy."""
    assert config.cluster is not None  # noqa: S101 -- only a node of a cluster has a NodeAccess
    address = config.cluster.address
    host, _, port = address.rpartition(":")
    for listener in config.listeners:
        if listener.where.path or listener.where.port != int(port):
            continue
        if why := _why_uncalled(listener, access.authorities, host.strip("[]")):
            raise CannotStartError(f"{why}; other nodes could not call this one at its cluster.address, {address}")


def _why_uncalled(listener: Listener, authorities: bytes | None, host: str) -> str:
    certificate, key = listener.certificate, listener.key
    if certificate is None or key is None:
        missing = authorities is not None and not listener.insecure_behind_proxy
        return "cluster.ca is set, but tls_certificate is not" if missing else ""
    if authorities is None:
        return f"cluster.ca is not set, but the listener uses {certificate}"
    try:
        why = why_untrusted(certificate, key, authorities, host)
    except CertificateUnusableError as error:
        raise CannotStartError(str(error)) from None
    return f"{certificate} is not signed by cluster.ca, or is for another host ({why})" if why else ""
