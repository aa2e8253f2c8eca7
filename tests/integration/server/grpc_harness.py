"""A real gRPC server on a real port, over a store and conversations that a test scripts."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import grpc
from bedrock import v1
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from actors.adapters.llm.catalog import Catalog
from actors.core.context import ToolGroup, ToolTraits
from actors.ports import SandboxReport, Store, Tool, ToolSpec
from actors.ports.cluster import Cluster
from actors.ports.records import CommandOrigin, command_origin
from actors.publishing.hub import EventHub
from actors.runtime.quotas import QuotaBook, QuotaSettings
from actors.runtime.services import SystemClock
from server.auth.authentication import Authentication
from server.cluster.router import NodeAccess
from server.services.grpc_server import GrpcServer
from server.settings.setting_values import Listen
from server.streams.base import WatchSettings
from tests.support.services import NoSandbox, in_memory
from tests.support.toolboxes import NothingKept

T = TypeVar("T")
TOKEN = "t" * 43
AUTHORIZED = (("authorization", f"Bearer {TOKEN}"),)
SECONDS = 10.0
"""Deadline of the calls of tests."""


class Loop:
    """An event loop on a thread of its own. gRPC wants one loop per process, so tests share it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="test-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        self.do(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class Conversations:
    """Answers what a test has prepared, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, float | None]] = []
        self.origins: list[CommandOrigin | None] = []
        self.answers: deque[Any] = deque()
        self.held: list[Future[Any]] = []
        """Answers that are never given, unless the test gives them."""

    def will(self, *answers: Any) -> None:
        """An exception is raised, None means no answer."""
        self.answers.extend(answers)

    def wake(self, ids: tuple[str, ...]) -> None:
        raise AssertionError(f"nothing of {ids} has ended")

    def create(self, request: Any, *, deadline: float | None = None) -> Future[Any]:
        return self.ask("", request, deadline=deadline)

    def ask(self, conversation_id: str, request: Any, *, deadline: float | None = None) -> Future[Any]:
        self.asked.append((conversation_id, request, deadline))
        self.origins.append(command_origin.get())
        future: Future[Any] = Future()
        match self.answers.popleft():
            case None:
                self.held.append(future)
            case BaseException() as error:
                future.set_exception(error)
            case answer:
                future.set_result(answer)
        return future


class ReportingSandbox(NoSandbox):
    """Says what the test wants it to say about this machine."""

    def __init__(self, tier: str) -> None:
        reason = "" if tier == "A" else "because"
        self.report = SandboxReport(
            tier, 7, pid_namespace=True, reason=reason, hides_protected=tier == "A", by_setting=tier == "B"
        )


class Tools(NothingKept):
    """Three tools: for everybody, for people, for sub-agents."""

    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        schema = {"type": "object", "properties": {"path": {"type": "string"}}}
        patch = ToolSpec("Change.", schema, ToolTraits("patch", ToolGroup.WRITE, writes=True))
        ask = ToolSpec("Ask.", schema, ToolTraits("request_mode_upgrade", ToolGroup.OTHER, always_asks=True))
        submit = ToolSpec("Submit.", schema, ToolTraits("submit_result", ToolGroup.OTHER))
        return (patch, submit) if sub_agent else (patch, ask)

    def get(self, name: str) -> Tool | None:
        return None

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        raise AssertionError("no tool is called here")


class GrpcHarness:
    """A running server and a channel to it. Made and closed on the test's thread."""

    def __init__(
        self,
        loop: Loop,
        *,
        store: Store | None = None,
        tier: str = "A",
        reachable: bool = False,
        access: NodeAccess | None = None,
        cluster: Cluster | None = None,
        quotas: QuotaSettings | None = None,
        **watching: Any,
    ) -> None:
        self._loop = loop
        self._reachable = reachable
        self._access = access
        self.conversations = Conversations()
        self.hub = EventHub()
        self.services = in_memory(
            models=Catalog(),
            toolbox=Tools(),
            store=store,
            bus=self.hub,
            sandbox=ReportingSandbox(tier),
            cluster=cluster,
            quotas=None if quotas is None else QuotaBook(quotas, SystemClock()),
        )
        self.endpoint, self.address = loop.do(self._start(WatchSettings(**watching)))
        # Without probes the window stays small: else it grows on a slow machine until a reader who takes nothing fits.
        self.channel = grpc.insecure_channel(self.address, options=[("grpc.http2.bdp_probe", 0)])
        self.stub = v1.ConversationServiceStub(self.channel)
        self.catalog = v1.CatalogServiceStub(self.channel)

    async def _start(self, watching: WatchSettings) -> tuple[GrpcServer, str]:
        endpoint = GrpcServer(
            self.services,
            self.hub,
            self.conversations,
            Authentication(TOKEN),
            watching=watching,
            sqlite_version="3",
            reflection=True,
            reachable=self._reachable,
            access=self._access,
        )
        where = endpoint.listen(Listen("127.0.0.1", 0))
        await endpoint.start()
        return endpoint, where

    def watch(self, timeout: float = SECONDS, **request: Any) -> Any:
        asked = v1.SubscribeRequest(**{"name": "conversations/c1", **request})
        return self.stub.Subscribe(asked, metadata=AUTHORIZED, timeout=timeout)

    def withdraw(self) -> None:
        """Have the health service say that this server does not serve."""
        self._loop.do(self.endpoint.withdraw())

    def stop(self) -> None:
        """Stop the server; the channel stays."""
        self._loop.do(self.endpoint.stop())

    def close(self) -> None:
        self.channel.close()
        self.stop()
        self.services.timers.close()


class Refusal:
    """The status and the details of a failed call."""

    def __init__(self, error: Any) -> None:
        self.code: str = error.code().name
        self.text: str = error.details()
        status = rpc_status.from_call(error)
        assert status is not None, f"{self.code} {self.text} has no details"
        self.info = error_details_pb2.ErrorInfo()
        self.fields: list[str] = []
        for detail in status.details:
            detail.Unpack(self.info)
            bad = error_details_pb2.BadRequest()
            if detail.Unpack(bad):
                self.fields = [violation.field for violation in bad.field_violations]
        assert self.info.domain == "bedrock.dev"

    @property
    def reason(self) -> str:
        return str(self.info.reason)


def refused(call: Callable[[], Any]) -> Refusal:
    """The refusal of a call that must fail."""
    try:
        answer = call()
        if hasattr(answer, "__next__"):
            for _ in answer:
                pass
    except grpc.RpcError as error:
        return Refusal(error)
    raise AssertionError(f"the call was not refused: {answer}")
