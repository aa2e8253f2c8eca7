"""The composition root: binds adapters to ports, and starts and stops the server.

Startup: data directory, store, token, models, sandbox, recovery of conversations, port, ready. Shutdown: the health
service reports NOT_SERVING, new work is refused, runs get their drain time, streams end, tools are killed, the store
closes. All that was opened is closed in reverse order, also when startup fails half-way.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib.util
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bedrock._interrupts import end_at_once, ending_at_once
from bedrock.local_server import TOKEN_FILE, NotPrivateError

from actors.adapters.images.sandboxed_images import SandboxedImages
from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.provider import ProviderConfig, provider_from_mapping, providers_from_env
from actors.adapters.mcp.from_clients import FromClients, from_clients
from actors.adapters.mcp.server_settings import McpServer, servers_from_tables
from actors.adapters.mcp.servers import McpServerHub
from actors.adapters.sandbox.control_groups import ControlGroups
from actors.adapters.sandbox.probe import probe, with_limits, with_separation
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.store.sqlite.store import open_store
from actors.adapters.telemetry import metrics
from actors.adapters.telemetry.fan_out import FanOut
from actors.adapters.telemetry.log_lines import LogLines
from actors.adapters.telemetry.observed_bus import ObservedBus
from actors.adapters.telemetry.observed_models import ObservedModels
from actors.adapters.telemetry.observed_tools import ObservedMcpServers, ObservedToolbox
from actors.adapters.tools.call_subjects import prepared_rule
from actors.adapters.tools.environment import tool_environment
from actors.adapters.tools.registry import StandardToolbox
from actors.adapters.workspace.local import LocalWorkspace
from actors.conversation.recovered_work import own_tools
from actors.conversation.supervisor import Supervisor
from actors.core.approval.rule_matching import MCP_PREFIX, describe
from actors.events.hub import EventHub
from actors.maintenance.retention import Housekeeper, Retention
from actors.ports import (
    DataDirectoryBusyError,
    NoFaultPoints,
    SandboxReport,
    SandboxUnavailableError,
    StoreError,
    StoreUnusableError,
    resources,
)
from actors.ports.mcp import McpLoginsError, McpServers, NoMcpServers
from actors.runtime.quotas.quota_book import QuotaBook, first_day_of_month
from actors.runtime.quotas.quota_limits import COSTS
from actors.runtime.services import Services
from actors.runtime.system_clock import RandomIds, SystemClock
from actors.runtime.thread_pool import ThreadPool
from actors.runtime.timers import Timers
from server.auth.authentication import Authentication, Issued
from server.auth.authorizer.authorizer_calls import AuthorizerCalls
from server.auth.authorizer.authorizer_tables import authorizer_class, made_authorizer
from server.auth.issuers.client_certificates import ClientCertificates
from server.auth.local_token import TokenUnusableError, read_or_create_token
from server.auth.mcp_login_file import FILE as MCP_LOGINS
from server.auth.mcp_login_file import McpLoginFile
from server.auth.token_file import FILE as PRINCIPALS_TOKENS
from server.auth.token_file import TokenFile
from server.config import Config, Listen, Listener
from server.local_access import check_closable, claim_directory, socket_path
from server.local_endpoint import published
from server.process import malloc_trim, service_manager
from server.process.certificates import CertificateFiles, CertificateUnusableError
from server.process.open_files import warn_when_crowded
from server.process.process_settings import running_on, spare_what_stays
from server.services.grpc_server import CannotListenError, GrpcServer, max_connections
from server.services.operator_rules import operator_rules
from server.streams.base import WatchSettings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    import grpc

    from actors.core.approval.approval_rules import ApprovalRule
    from actors.ports import Store
    from actors.ports.permissions import PermissionsOf
    from actors.ports.telemetry import Telemetry
    from actors.runtime.quotas.quota_limits import QuotaSettings
    from server.auth.principals import Principal

log = logging.getLogger(__name__)

STOP_SECONDS = 15.0
"""Maximum seconds of a shutdown after the drain time; then the process exits anyway. Nothing is lost: the next start
recovers all conversations."""

EXPORT_SECONDS = 3.0
"""How long a stop waits for collectors of traces and metrics."""
LOOP_SECONDS = 0.5
"""Seconds between two measurements of the event loop's delay."""


class CannotStartError(Exception):
    """The server cannot be started; the text is one line for the operator."""


@dataclass(frozen=True)
class Wiring:
    """The parts of a running server, except its network side."""

    services: Services
    hub: EventHub
    """The event bus that is also in `services`, with the interface for watchers."""
    supervisor: Supervisor
    housekeeper: Housekeeper
    authentication: Authentication
    socket: Listen
    """The address for clients on this machine."""
    engine_version: str
    load_later: Callable[[], None]
    """Imports the modules that only the first run needs, so that the start does not wait for them. Blocks."""
    exposed: tuple[str, ...] = ()
    """The server's files in shared directories. They are hidden when a tool call starts; a file replaced during the
    call is visible to it."""


@contextmanager
def wire(config: Config) -> Generator[Wiring]:
    """Open all adapters, and close them at the end.

    Raises:
        CannotStartError: The data directory, the sandbox or the token cannot be used.
        ConfigError: A model or provider cannot be used as it is configured.
    """
    with ExitStack() as opened:
        tool_cpus = _pinned(config, opened)
        clock = SystemClock()
        telemetry = FanOut([LogLines()] if log.isEnabledFor(logging.INFO) else [])
        opened.callback(_close, telemetry)
        exported = bool(config.metrics_listen or config.otlp_endpoint)
        timers = Timers(clock)
        opened.callback(timers.close)
        models = _models(config, timers)
        opened.callback(models.close)
        try:
            claim_directory(config.data_dir)
            store = open_store(config.data_dir, clock=clock, written=telemetry.written if exported else None)
            opened.callback(store.close)
            authentication = _authentication(config, opened)
            socket = socket_path(config.data_dir, config.environ)
        except (DataDirectoryBusyError, StoreUnusableError, TokenUnusableError, NotPrivateError) as error:
            raise CannotStartError(str(error)) from None
        except OSError as error:
            raise CannotStartError(f"{error.filename} cannot be used: {(error.strerror or '').lower()}") from None
        threads = ThreadPool()
        opened.callback(threads.close)
        sandbox = _sandbox(config, socket, tool_cpus, threads)
        opened.callback(sandbox.close)
        hub, toolbox = EventHub(), StandardToolbox(threads)
        mcp = _mcp_servers(config, sandbox, threads, authentication.permissions)
        opened.callback(mcp.close)
        services = Services(
            store=store,
            bus=hub,
            models=models,
            toolbox=toolbox,
            sandbox=sandbox,
            clock=clock,
            ids=RandomIds(),
            faults=NoFaultPoints(),
            workspace=LocalWorkspace(lambda: (*sandbox.protected, *sandbox.unreadable)),
            timers=timers,
            threads=threads,
            images=SandboxedImages(store, sandbox),
            idle_seconds=config.idle_seconds,
            approval_rules=operator_rules(config, toolbox.prepared_rule),
            titles=config.titles,
            mcp=mcp,
            permissions=authentication.permissions,
            telemetry=telemetry,
            quotas=_quotas(config, store, clock, telemetry),
        )
        if telemetry.on or exported:
            services = _observed(services, telemetry)
        supervisor = Supervisor(services)
        if exported:
            gauges = {
                metrics.CONVERSATIONS: supervisor.live_count,
                metrics.WATCHERS: hub.watchers,
                metrics.WAITING: lambda: store.waiting,
                metrics.WAITING_REQUESTS: lambda: services.quotas.model_slots.waiting,
                metrics.THREADS: threading.active_count,
                metrics.FILES: resources.open_files,
                metrics.MAX_FILES: resources.max_open_files,
            }
            for observer in _exporters(config, clock, gauges):
                telemetry.add(observer)
        if (memory := malloc_trim.of_this_process()) is not None:
            memory.start()
            opened.callback(memory.close)
        housekeeper = Housekeeper(store, supervisor, clock, _retention(config))
        opened.callback(housekeeper.close)
        yield Wiring(
            services,
            hub,
            supervisor,
            housekeeper,
            authentication,
            Listen(path=str(socket)),
            store.engine_version,
            functools.partial(_load, toolbox, mcp),
            sandbox.exposed,
        )


def _observed(services: Services, telemetry: FanOut) -> Services:
    """Return services whose models, tools and events are observed."""
    bus = ObservedBus(services.bus, telemetry, services.clock, own_tools(services.toolbox))
    telemetry.add(bus)  # it is told of commands, too
    return dataclasses.replace(
        services,
        bus=bus,
        models=ObservedModels(services.models, telemetry, services.clock),
        toolbox=ObservedToolbox(services.toolbox, telemetry, services.clock),
        mcp=ObservedMcpServers(services.mcp, telemetry, services.clock),
    )


def _exporters(
    config: Config, clock: SystemClock, gauges: Mapping[metrics.Metric, Callable[[], float]]
) -> Iterator[Telemetry]:
    """Yield what exports metrics and traces. Raises CannotStartError, or ConfigError if an extra is not installed."""
    if config.metrics_listen is not None:
        if importlib.util.find_spec("prometheus_client") is None:
            raise config.refusal(
                "metrics_listen: the server was installed without it; install phoenix-bedrock[metrics]"
            )
        from actors.adapters.telemetry.prometheus import Prometheus  # noqa: PLC0415 -- only where it is wanted

        where = config.metrics_listen
        try:
            exporter = Prometheus(where.host, where.port)
        except OSError as error:
            reason = (error.strerror or "unknown host").lower()
            raise CannotStartError(f"cannot listen on {where.target} for metrics: {reason}") from None
        log.info("metrics: http://%s/metrics", Listen(where.host, exporter.port).target)
        yield metrics.Metrics(exporter, clock, gauges)
    if config.otlp_endpoint:
        try:
            from actors.adapters.telemetry.otlp import otlp  # noqa: PLC0415 -- only where it is wanted
        except ImportError:
            raise config.refusal("otlp_endpoint: needs the extra `otel`: phoenix-bedrock[otel]") from None
        yield from otlp(config.otlp_endpoint, config.otlp_contents, clock, gauges)


def _close(telemetry: Telemetry) -> None:
    """Export what is left, and stop waiting for collectors that do not answer."""
    closing = threading.Thread(target=telemetry.close, name="bedrock-telemetry", daemon=True)
    closing.start()
    closing.join(EXPORT_SECONDS)


def _load(toolbox: StandardToolbox, mcp: McpServers) -> None:
    """Import what the first tool call needs, and begin to connect to the MCP servers."""
    toolbox.load()
    mcp.start()


def _mcp_servers(
    config: Config, sandbox: ToolHostSandbox, threads: ThreadPool, permissions: PermissionsOf
) -> McpServers:
    """Return the MCP servers of the settings. Raises ConfigError."""
    servers, rules = _mcp_settings(config)
    if not servers and not rules.programs and not rules.origins:
        return NoMcpServers()
    return McpServerHub(
        servers,
        sandbox,
        threads,
        tool_environment(config.environ),
        rules,
        permissions=permissions,
        logins=McpLoginFile(config.data_dir / MCP_LOGINS),
    )


def _mcp_settings(config: Config) -> tuple[tuple[McpServer, ...], FromClients]:
    """Return the settings of the MCP servers, and which ones clients may name.

    Raises ConfigError, also if the extra `mcp` is not installed.
    """
    setting = "mcp_servers" if config.mcp_servers else "mcp_from_clients"
    if not config.mcp_servers and not config.mcp_from_clients:
        return (), FromClients()
    if importlib.util.find_spec("mcp") is None:
        raise config.refusal(f"{setting}: the server was installed without MCP; install phoenix-bedrock[mcp]")
    try:
        servers = servers_from_tables(config.mcp_servers, config.environ)
        return servers, from_clients(config.mcp_from_clients, config.environ)
    except ValueError as error:
        raise config.refusal(str(error)) from None


def _quotas(config: Config, store: Store, clock: SystemClock, telemetry: Telemetry) -> QuotaBook:
    """Return the quotas of the settings, with what was spent of them in this month."""
    spendings = store.spendings(first_day_of_month(clock.now_ms()))
    return QuotaBook(
        config.quotas, clock, spendings, telemetry, stored_bytes=store.stored_bytes, put_spending=store.put_spending
    )


def _retention(config: Config) -> Retention:
    return Retention(
        events_days=config.retention_events_days,
        events_min=config.retention_events_min,
        archived_days=config.retention_archived_days,
        audit_days=config.retention_audit_days,
    )


def _pinned(config: Config, opened: ExitStack) -> frozenset[int] | None:
    """Run on the configured CPUs until `opened` ends; return those of the tools (`running_on`). Raises ConfigError."""
    try:
        return opened.enter_context(running_on(config.cpus))
    except ValueError as error:
        raise config.refusal(f"cpus: {error}") from None


def _sandbox(config: Config, socket: Path, cpus: frozenset[int] | None, threads: ThreadPool) -> ToolHostSandbox:
    """Return the sandbox of the tools, which hides the server's own files and socket. Raises CannotStartError."""
    own = (config.data_dir, socket.parent, *(each.key for each in config.listeners), config.file)
    try:
        groups = ControlGroups()
        report = with_limits(_probed(config), groups.controllers)
        protected = [str(path) for path in own if path is not None]
        sandbox = ToolHostSandbox(
            report,
            protected=protected,
            workspace_protected=config.workspace_protected,
            deny_read=config.deny_read,
            system_paths=config.system_paths,
            groups=groups,
            cpus=cpus,
            threads=threads,
        )
    except (SandboxUnavailableError, OSError) as error:
        raise CannotStartError(str(error)) from None
    return sandbox


def _sandbox_line(report: SandboxReport) -> str:
    """Return one line about the sandbox: its tier, and why it is no better one."""
    return f"sandbox: tier {report.tier}" + (f" ({report.reason})" if report.reason else "")


def _probed(config: Config) -> SandboxReport:
    """Return what the sandbox can do here. Raises SandboxUnavailableError."""
    report = probe(config.sandbox)
    return with_separation(report) if config.several else report


def _authentication(config: Config, opened: ExitStack) -> Authentication:
    """Return how callers are known: by the token of the data directory, and those of principals.

    Raises TokenUnusableError or ConfigError.
    """
    file = TokenFile(config.data_dir / PRINCIPALS_TOKENS) if config.principals else None
    if file is not None:
        file.read()
    issuers = config.issuers
    own = read_or_create_token(config.data_dir / TOKEN_FILE)
    asked = any(each.client_ca for each in config.listeners)
    certificates = ClientCertificates(config.client_certificates) if asked else None
    issued = _issued_tokens(config) if issuers else None
    return Authentication(
        own,
        file,
        config.principals,
        issuers=issuers,
        issued=issued,
        certificates=certificates,
        authorizer=_authorizer(config, opened),
    )


def _authorizer(config: Config, opened: ExitStack) -> AuthorizerCalls | None:
    """Make the authorizer of the settings. Raises ConfigError."""
    if config.authorizer is None:
        return None
    try:
        authorizer = made_authorizer(config.authorizer)
    except ValueError as error:
        log.error("%s", error, exc_info=error.__cause__)
        raise config.refusal(str(error)) from None
    threads = ThreadPool()
    opened.callback(threads.close)
    return AuthorizerCalls(authorizer, threads, config.authorizer.seconds)


def _issued_tokens(config: Config) -> Issued:
    """Return how tokens of issuers are known. Raises ConfigError if the extra `jwt` is not installed, or for a file."""
    if importlib.util.find_spec("jwt") is None or importlib.util.find_spec("cryptography") is None:
        raise config.refusal("issuers: the server was installed without it; install phoenix-bedrock[jwt]")
    from server.auth.issuers.issued_tokens import IssuedTokens  # noqa: PLC0415 -- only where it is wanted
    from server.auth.issuers.issuer_keys import KeysUnusableError, keys_in, read_file  # noqa: PLC0415

    for name, issuer in config.issuers.items():
        if issuer.jwks_file is None:
            continue
        try:
            keys_in(read_file(issuer.jwks_file), issuer.algorithms)
        except KeysUnusableError as error:
            raise config.refusal(f"issuers.{name}.jwks_file: {error}") from None
    return IssuedTokens(config.issuers)


def _tell_of(report: SandboxReport, exposed: Sequence[str]) -> None:
    """Log the sandbox report once the server runs; if it cannot start, only the reason is logged."""
    log.info("%s", _sandbox_line(report))
    if report.restriction_available and not report.workspace_available:
        log.warning("the workspace mode is not available: %s", report.workspace_reason)
    if report.separation_reason:
        log.warning("no tool of a principal runs: %s", report.separation_reason)
    if not report.hides_protected:
        log.warning("the server's own files are not hidden from unrestricted tools: mount namespaces cannot be used")
        return
    for path in exposed:
        log.warning(
            "%s is in a directory that others need, too: if it is replaced while an unrestricted tool runs, that tool "
            "can read the new one. A directory named bedrock is hidden as a whole",
            path,
        )


def _models(config: Config, timers: Timers) -> Catalog:
    """Return the catalog of the configured models. Raises ConfigError."""
    try:
        return Catalog(
            _providers(config),
            default=config.default_model,
            small=config.small_model,
            models=config.models,
            later=timers.after,
        )
    except ValueError as error:
        raise config.refusal(str(error)) from None


def _providers(config: Config) -> tuple[ProviderConfig, ...]:
    """Return the providers of the file, then those of the environment that the file does not configure."""
    named = tuple(provider_from_mapping(name, table, config.environ) for name, table in config.providers.items())
    taken = {provider.name for provider in named}
    return named + tuple(each for each in providers_from_env(config.environ) if each.name not in taken)


def run(config: Config, announce: Callable[[str], None], *, until_eof: bool = False) -> None:
    """Serve until a signal requests the shutdown. `announce` gets the line that says that the server is ready.

    `until_eof`: stop as well when standard input, a pipe, is closed at its other end, so that a server that was started
    by another program ends with that program. Raises CannotStartError or ConfigError.
    """
    with Deadline() as deadline, ending_at_once(), wire(config) as wired:
        try:
            restored = wired.supervisor.start()
        except StoreError as error:
            text = f"the conversations in {config.data_dir} cannot be recovered: {error}"
            raise CannotStartError(text) from None
        wired.housekeeper.start()
        if restored:
            what = "conversation" if len(restored) == 1 else "conversations"
            log.info("recovered %d %s after a restart", len(restored), what)
        try:
            asyncio.run(_serve(config, wired, announce, deadline, until_eof))
        finally:
            end_at_once()  # closing the event loop has restored Python's SIGINT handler
    log.info("stopped")


async def _serve(
    config: Config, wired: Wiring, announce: Callable[[str], None], deadline: Deadline, until_eof: bool
) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    _on_signals(stop, hurry)
    if until_eof:
        _on_eof(stop)
    endpoint = GrpcServer(
        wired.services,
        wired.hub,
        wired.supervisor,
        wired.authentication,
        watching=WatchSettings(max_streams=config.max_streams),
        engine_version=wired.engine_version,
        reflection=config.reflection,
        behind_proxy=config.behind_proxy,
        reachable=config.reachable,
    )
    looking = [
        asyncio.create_task(_measure_loop(wired.services.telemetry)),
        asyncio.create_task(warn_when_crowded(max_connections())),
    ]
    try:
        where = _listen(endpoint, config, wired.socket)
        await endpoint.start()
        _tell_of(wired.services.sandbox.report, wired.exposed)
        with published(config.data_dir, Path(wired.socket.path)):
            if exposed := [each.target for each in where if each.insecure_behind_proxy and not each.where.local]:
                log.warning(
                    "insecure_behind_proxy: %s takes calls without TLS; whoever can reach it can read the token",
                    " and ".join(exposed),
                )
            announce(f"bedrock ready on {' and '.join(each.target for each in where)} (data {config.data_dir})")
            service_manager.notify(service_manager.READY)
            await asyncio.to_thread(_load_later, wired)
            spare_what_stays()
            malloc_trim.trim()
            await stop.wait()
        log.info("stopping")
        service_manager.notify(service_manager.STOPPING)
    except (CannotListenError, TokenUnusableError) as error:
        raise CannotStartError(str(error)) from None
    finally:
        deadline.set(config.drain_seconds + STOP_SECONDS)
        for task in looking:
            task.cancel()
        await _stop(config, wired.supervisor, endpoint, hurry)


async def _measure_loop(telemetry: Telemetry) -> None:
    """Tell how late the event loop is, until it is cancelled; nothing if nobody wants to know."""
    loop = asyncio.get_running_loop()
    while telemetry.measures:
        due = loop.time() + LOOP_SECONDS
        await asyncio.sleep(LOOP_SECONDS)
        telemetry.loop_delayed(loop.time() - due)


def checked(config: Config) -> Iterator[str]:
    """Yield what a start with these settings would find, a line each, without starting or changing anything.

    Raises CannotStartError or ConfigError.
    """
    with ExitStack() as opened:
        _pinned(config, opened)
        yield from _checked_listeners(config)
        if config.data_dir.exists():
            try:
                check_closable(config.data_dir)
            except (NotPrivateError, OSError) as error:
                raise CannotStartError(str(error)) from None
        timers = Timers(SystemClock())
        opened.callback(timers.close)
        opened.callback(_models(config, timers).close)
        for provider in _providers(config):
            key = f", key from {provider.key_source}" if provider.key_source else ""
            yield f"provider {provider.name}: {provider.protocol}{key}"
        servers, rules = _mcp_settings(config)
        for server in servers:
            yield f"MCP server {server.name}: {server.url or server.command[0]}{_login_of(server, config)}"
        for rule in operator_rules(config, prepared_rule):
            yield f"approval rule {rule.id}: {rule.action} {describe(rule)}{_note_of(rule)}"
        if allowed := [*(["programs"] if rules.programs else []), *sorted(rules.origins)]:
            yield f"MCP servers of clients: {', '.join(allowed)}"
        try:
            report = _probed(config)
        except SandboxUnavailableError as error:
            raise CannotStartError(str(error)) from None
        yield from _checked_principals(config)
        yield from _told_quotas(config.quotas)
        if report.separation_reason:
            yield f"no tool of a principal would run: {report.separation_reason}"
        yield _sandbox_line(report)


def _login_of(server: McpServer, config: Config) -> str:
    """Return what is known of the operator's login at an MCP server, to follow its URL."""
    if server.login is None:
        return ""
    try:
        found = McpLoginFile(config.data_dir / MCP_LOGINS).read().get(server.name)
    except McpLoginsError as error:
        return f", whose login cannot be used: {error}"
    return ", logged in" if found is not None and found.url == server.url else ", not logged in"


def _note_of(rule: ApprovalRule) -> str:
    """Return what is odd about an operator's rule: its tool is none that is known before clients name theirs."""
    toolbox = StandardToolbox()
    ours = {spec.name for sub_agent in (False, True) for spec in toolbox.specs(sub_agent=sub_agent)}
    known = not rule.tool or rule.tool in ours or rule.tool.startswith(MCP_PREFIX)
    return "" if known else ", which the server does not have: only a client's tool can be meant"


def _checked_listeners(config: Config) -> Iterator[str]:
    """Yield a line for each certificate. Raises CannotStartError."""
    for listener in config.listeners:
        if _credentials(listener) is not None:
            clients = f"; clients need one by {listener.client_ca}" if listener.client_ca else ""
            yield f"certificate: {listener.certificate} and its key can be used{clients}"


def _checked_principals(config: Config) -> Iterator[str]:
    """Yield a line for each principal, and for each way to know them beside the server's tokens. Raises ConfigError."""
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
        _issued_tokens(config)
    for issuer in config.issuers.values():
        others = "a principal for each" if issuer.template else f"{len(issuer.principals)} principals"
        where = issuer.jwks_url or issuer.jwks_file
        yield f"issuer {issuer.name}: {issuer.url}, keys from {where}, {others} by {issuer.principal_claim}"


def _told_quotas(quotas: QuotaSettings) -> Iterator[str]:
    """Yield a line for each table of quotas, a principal's together with the defaults that it does not replace."""
    of_templates = {f"each principal of the issuer {name}": limits for name, limits in quotas.issuers.items()}
    tables = {"all together": quotas.together, "each principal": quotas.each, **of_templates, **quotas.named}
    for whose, limits in tables.items():
        told = (
            f"{quota} {f'${value / 1_000_000:,.2f}' if quota in COSTS else value}" for quota, value in limits.items()
        )
        if limits:
            yield f"quotas of {whose}: {', '.join(told)}"


def _note_of_principal(principal: Principal, config: Config) -> str:
    """Return what is odd about a principal: it names what there is not."""
    servers = {table.get("name") for table in config.mcp_servers}
    unknown = [f"MCP server {name}" for name in principal.permissions.mcp_servers or () if name not in servers]
    missing = [f"directory {root}" for root in principal.permissions.roots or () if not os.path.isdir(root)]
    return f"; there is no {', no '.join(missing + unknown)}" if missing or unknown else ""


def _load_later(wired: Wiring) -> None:
    """Import the modules that the start did not need. If that fails, it is tried again at their first use."""
    try:
        wired.load_later()
    except (ImportError, OSError) as error:
        log.warning("modules could not be loaded in advance: %s", error)


def _listen(endpoint: GrpcServer, config: Config, local: Listen) -> list[Listener]:
    """Listen on the configured addresses and on the socket for this machine, and return all, with that socket first.

    Addresses come before it, so that no socket file remains if one is in use. Raises CannotListenError or
    CannotStartError.
    """
    configured = [
        dataclasses.replace(each, where=endpoint.listen(each.where, _credentials(each)))
        for each in config.listeners
        if each.where != local
    ]
    return [Listener(where=endpoint.listen(local)), *configured]


async def _stop(config: Config, supervisor: Supervisor, endpoint: GrpcServer, hurry: asyncio.Event) -> None:
    """Shut down gracefully: refuse new work, drain runs, interrupt the remaining ones, end streams and calls."""
    await endpoint.withdraw()
    stopped = asyncio.create_task(asyncio.to_thread(supervisor.stop, config.drain_seconds))
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait((stopped, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    supervisor.skip_drain()
    try:
        await stopped
    finally:
        await endpoint.stop()


def _on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Stop the server at the first SIGTERM, SIGINT or SIGHUP; a second one, except SIGHUP, ends the drain."""

    def received() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup sets SIG_IGN
        loop.add_signal_handler(signal.SIGHUP, stop.set)  # a closed terminal may send more than one


def _on_eof(stop: asyncio.Event) -> None:
    """Stop when standard input ends. Raises CannotStartError if it is neither a pipe nor a socket."""
    loop = asyncio.get_running_loop()
    source = 0

    def readable() -> None:
        if not os.read(source, 4096):
            loop.remove_reader(source)
            stop.set()

    try:
        loop.add_reader(source, readable)
    except OSError:
        raise CannotStartError("--until-eof needs a pipe as standard input") from None


class Deadline:
    """Watchdog: ends the process if the shutdown takes too long."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def set(self, seconds: float) -> None:
        """Start the timer. Call once."""
        self._timer = threading.Timer(seconds, _give_up, (seconds,))
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Deadline:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _give_up(seconds: float) -> None:
    log.error("stopping took longer than %s s: ending at once; the next start recovers all conversations", seconds)
    os._exit(1)


def _credentials(listener: Listener) -> grpc.ServerCredentials | None:
    """Return the TLS credentials of an address; None if it has no TLS. Raises CannotStartError."""
    if listener.certificate is None or listener.key is None:
        return None
    try:
        return CertificateFiles(listener.certificate, listener.key, listener.client_ca).credentials()
    except CertificateUnusableError as error:
        raise CannotStartError(str(error)) from None
