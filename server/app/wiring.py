"""Connects the parts of a server: store, actors, adapters and telemetry."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bedrock.local_server import NotPrivateError

from actors.adapters.images.sandboxed_images import SandboxedImages
from actors.adapters.telemetry import metrics
from actors.adapters.telemetry.observer import Observer
from actors.adapters.tools.registry import StandardToolbox
from actors.adapters.workspace.local import LocalWorkspace
from actors.common import machine
from actors.conversation.supervisor import Supervisor
from actors.maintenance.retention import Housekeeper
from actors.ports import DataDirectoryBusyError, NoFaultPoints, SandboxReport, StoreError, Toolbox
from actors.ports.cluster import Cluster, Node
from actors.ports.telemetry import Telemetry
from actors.ports.tools import McpServers
from actors.publishing.hub import EventHub
from actors.runtime.admission import FairSlots
from actors.runtime.services import RandomIds, Services, SystemClock, Timers
from server import operating_system
from server.app import adapter_choice as adapters
from server.app.sandbox_choice import probing
from server.auth.authentication import Authentication
from server.auth.tokens import TokenUnusableError
from server.cluster.router import NodeAccess
from server.local_endpoint import claim_directory, socket_path
from server.settings.config import Config
from server.settings.setting_values import Listen

if TYPE_CHECKING:
    from actors.adapters.llm.catalog import Catalog
    from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox

log = logging.getLogger(__name__)

IMAGE_DECODERS = 2
EXPORT_SECONDS = 3.0


@dataclass(frozen=True)
class Wiring:
    """The parts of a server, except the gRPC server."""

    services: Services
    hub: EventHub
    """The event hub of `services`, typed with the methods that streams need."""
    supervisor: Supervisor
    housekeeper: Housekeeper
    authentication: Authentication
    socket: Listen
    sqlite_version: str
    """The version of SQLite; "" if the store is in PostgreSQL."""
    cluster: Cluster
    access: NodeAccess | None
    """Token and TLS credentials for calls between nodes; None without a cluster."""
    connect: Callable[[], None]
    """Connects to the configured MCP servers.

    Called only once the server is ready, because importing the client is slow.
    """
    exposed: tuple[str, ...] = ()
    """The server's own files in shared directories.

    The sandbox hides these files when a call starts, but not a file that replaces one of them during the call.
    """


@contextmanager
def wire(config: Config, report: Future[SandboxReport] | None = None) -> Generator[Wiring]:
    """Open all adapters and connect them; close everything when the `with` block ends.

    `report` comes from `probing`; if None, probe now. Raises CannotStartError or ConfigError.
    """
    with ExitStack() as opened:
        tool_cpus = adapters.pinned(config, opened)
        supervisors: list[Supervisor] = []

        def active() -> int:
            return sum(each.live_count() for each in supervisors)

        clock = SystemClock()
        observer = Observer(clock)
        opened.callback(_close, observer)
        exported = bool(config.metrics_listen or config.otlp_endpoint)
        telemetry = observer if exported or log.isEnabledFor(logging.INFO) else Telemetry()
        timers = Timers(clock)
        opened.callback(timers.close)
        models = adapters.model_catalog(config)
        opened.callback(models.close)
        data = _data(config, opened, active=active, written=telemetry.written if exported else None)
        tools = _tools(config, report or probing(config), opened, data, tool_cpus)
        observer.tools = own_tools(tools.toolbox)
        hub = EventHub()
        services = _services(
            config, data, tools, hub=hub, models=models, clock=clock, timers=timers, telemetry=telemetry
        )
        supervisor = Supervisor(services, tools.toolbox.load)
        supervisors.append(supervisor)
        data.cluster.on_taken = functools.partial(_take_over, supervisor, telemetry)
        if exported:
            adapters.export(config, observer, _gauges(supervisor, hub, data.store, services))
        _trim_memory(opened)
        housekeeper = Housekeeper(data.store, supervisor, clock, adapters.retention(config))
        opened.callback(housekeeper.close)
        yield Wiring(
            services,
            hub,
            supervisor,
            housekeeper,
            data.authentication,
            Listen(path=str(data.socket)),
            data.store.sqlite_version,
            data.cluster,
            data.access,
            tools.mcp.start,
            tools.sandbox.exposed,
        )


class _Data(NamedTuple):
    store: adapters.OpenedStore
    cluster: Cluster
    access: NodeAccess | None
    authentication: Authentication
    socket: Path


def _data(
    config: Config, opened: ExitStack, *, active: Callable[[], int], written: Callable[[int, float], None] | None
) -> _Data:
    access = None if config.cluster is None else adapters.node_access(config.cluster)
    if access is not None:
        adapters.check_listener(config, access)
    with _refusing_start():
        claim_directory(config.data_dir)
        store, cluster = adapters.opened_store(config, opened, active=active, written=written)
        authentication = adapters.authentication_of(config, opened)
        socket = socket_path(config.data_dir, config.environ)
    return _Data(store, cluster, access, authentication, socket)


class _Tools(NamedTuple):
    sandbox: ToolHostSandbox
    toolbox: StandardToolbox
    mcp: McpServers


def _tools(
    config: Config, report: Future[SandboxReport], opened: ExitStack, data: _Data, cpus: frozenset[int] | None
) -> _Tools:
    """Open the sandbox and the MCP servers. Tools may use `cpus` (None: all).

    Raises CannotStartError or ConfigError.
    """
    sandbox = adapters.tool_sandbox(config, report, data.socket, cpus=cpus, lease=data.cluster.lease)
    opened.callback(sandbox.close)
    mcp = adapters.mcp_servers(config, sandbox, data.authentication.permissions)
    opened.callback(mcp.close)
    return _Tools(sandbox, StandardToolbox(), mcp)


def _services(
    config: Config,
    data: _Data,
    tools: _Tools,
    *,
    hub: EventHub,
    models: Catalog,
    clock: SystemClock,
    timers: Timers,
    telemetry: Telemetry,
) -> Services:
    sandbox = tools.sandbox
    return Services(
        store=data.store,
        bus=hub,
        models=models,
        toolbox=tools.toolbox,
        sandbox=sandbox,
        clock=clock,
        ids=RandomIds(),
        faults=NoFaultPoints(),
        workspace=LocalWorkspace(lambda: (*sandbox.protected, *sandbox.unreadable)),
        timers=timers,
        images=SandboxedImages(data.store, sandbox, FairSlots(IMAGE_DECODERS).hold),
        idle_seconds=config.idle_seconds,
        approval_rules=adapters.operator_rules(config, tools.toolbox.prepared_rule),
        titles=config.titles,
        mcp=tools.mcp,
        permissions=data.authentication.permissions,
        telemetry=telemetry,
        cluster=data.cluster,
        node=_name_of(data.cluster.me),
        quotas=adapters.quota_book(config, data.store, clock, telemetry),
    )


@contextmanager
def _refusing_start() -> Generator[None]:
    """Convert errors about the data directory, the store or the token to CannotStartError, in the `with` block."""
    try:
        yield
    except DataDirectoryBusyError as error:
        raise adapters.CannotStartError(f"{error}; stop it, or choose another directory with --data-dir") from None
    except (StoreError, TokenUnusableError, NotPrivateError) as error:
        raise adapters.CannotStartError(str(error)) from None
    except OSError as error:
        raise adapters.CannotStartError(f"{error.filename} cannot be used: {(error.strerror or '').lower()}") from None


def _take_over(supervisor: Supervisor, telemetry: Telemetry, conversations: tuple[str, ...]) -> None:
    """Count the conversations taken over from a dead node, and recover them in the background."""
    telemetry.taken_over(len(conversations))
    supervisor.wake(conversations)


def _name_of(node: Node) -> str:
    return f"{node.name}/{node.incarnation}" if node.incarnation else "local"


def _gauges(
    supervisor: Supervisor, hub: EventHub, store: adapters.OpenedStore, services: Services
) -> Mapping[metrics.Metric, Callable[[], float]]:
    return {
        metrics.CONVERSATIONS: supervisor.live_count,
        metrics.WATCHERS: hub.watchers,
        metrics.WAITING: lambda: store.waiting,
        metrics.WAITING_REQUESTS: lambda: services.quotas.model_slots.waiting,
        metrics.NODES: lambda: len(services.cluster.nodes()),
        metrics.LEASE: services.cluster.lease.age,
        metrics.THREADS: threading.active_count,
        metrics.FILES: machine.open_files,
        metrics.MAX_FILES: machine.max_open_files,
    }


def own_tools(toolbox: Toolbox) -> frozenset[str]:
    specs = (*toolbox.specs(sub_agent=False), *toolbox.specs(sub_agent=True))
    return frozenset(spec.traits.name for spec in specs)


def _trim_memory(opened: ExitStack) -> None:
    if (memory := operating_system.heap_trimmer()) is not None:
        memory.start()
        opened.callback(memory.close)


def _close(telemetry: Telemetry) -> None:
    closing = threading.Thread(target=telemetry.close, name="bedrock-telemetry", daemon=True)
    closing.start()
    closing.join(EXPORT_SECONDS)
