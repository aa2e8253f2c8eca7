"""MCP servers in real tool hosts, and the certainty that none of them is left."""

import os
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.mcp import login_flow, transports
from actors.adapters.mcp.server_settings import McpServer
from actors.adapters.mcp.servers import McpServerHub
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.common import machine
from actors.core.content import Image
from actors.core.context import Mode
from actors.core.states import Idle
from actors.ports import CancelToken, ConversationRecord, ToolContext, ToolOutput
from actors.ports.tools import McpServerStatus, McpState
from tests.support import processes
from tests.support.patience import eventually
from tests.support.sandbox_reports import sandbox_report
from tests.support.tool_harness import ToolHarness

PROGRAM = str(Path(__file__).with_name("program.py"))


def server(*ways: str, name: str = "t", **settings: Any) -> McpServer:
    """The program of the tests as a server; `ways`: how it misbehaves. All its tools are read-only unless said."""
    fields: dict[str, Any] = {"read_only": True, "connect_seconds": 30.0} | settings
    return McpServer(name=name, command=(sys.executable, "-I", "-S", PROGRAM, *ways), **fields)


def conversation(name: str = "c1", mode: Mode = Mode.UNRESTRICTED, **fields: Any) -> ConversationRecord:
    """A conversation as the store has it."""
    given: dict[str, Any] = {"slug": "", "cwd": "/", "state": Idle(), "model": "m", "principal": "p"} | fields
    return ConversationRecord(id=name, mode=mode, state_updated_at=1, created_at=1, updated_at=1, **given)


class Hub:
    """A hub of some servers, and the calls of their tools."""

    def __init__(self, sandbox: ToolHostSandbox, marker: str, *servers: McpServer, **settings: Any) -> None:
        self.sandbox = sandbox
        self.marker = marker
        environment = {"PATH": os.environ["PATH"], "MARKER": marker}
        self.all = McpServerHub(servers, sandbox, environment, **settings)
        self.shown: list[str] = []
        self.images: list[bytes] = []

    def context(self, cancel: CancelToken | None = None, **changes: Any) -> ToolContext:
        context = ToolHarness(self.sandbox, Path("/"), conversation="c1", show=self.shown.append).context
        return replace(context, **{"cancel": cancel or CancelToken(), "keep_image": self._keep} | changes)

    def _keep(self, data: bytes) -> Image:
        self.images.append(data)
        return Image("hash", "image/png", 1, 1)

    def call(
        self, tool: str, arguments: Mapping[str, Any] = {}, cancel: CancelToken | None = None, **changes: Any
    ) -> ToolOutput:
        """Call a tool as the tool runner does. `tool` is its own name, or its full one."""
        name = tool if tool.startswith("mcp__") else f"mcp__t__{tool}"
        context = self.context(cancel, **changes)
        found = self.all.tool(name, context.conversation_id)
        assert found is not None
        return found.run(arguments, context)

    def status(self) -> McpServerStatus:
        return self.all.statuses()[0]

    def settled(self) -> McpServerStatus:
        """The status of the only server once it is known whether it can be connected to."""
        eventually(lambda: self.status().state in {McpState.READY, McpState.FAILED}, "a state")
        return self.status()

    def running(self) -> list[int]:
        """The processes of all servers."""
        return processes.running(self.marker)

    def close(self) -> None:
        self.all.close()


@cache
def trusting(*_: str | None) -> ssl.SSLContext:
    return machine.client_tls()


@pytest.fixture(autouse=True)
def authorities_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the values of the variables that name more: to read them takes longer than most tests."""
    for module in (login_flow, transports):
        monkeypatch.setattr(module, "client_tls", lambda: trusting(*map(os.environ.get, machine.VARIABLES)))


@pytest.fixture
def sandbox() -> Iterator[ToolHostSandbox]:
    sandbox = ToolHostSandbox(sandbox_report())
    yield sandbox
    sandbox.close()


@pytest.fixture
def hub(sandbox: ToolHostSandbox) -> Iterator[Callable[..., Hub]]:
    """Makes hubs; all are closed at the end, and nothing of them runs then."""
    made: list[Hub] = []

    def make(*servers: McpServer, **settings: Any) -> Hub:
        made.append(Hub(sandbox, processes.forever(), *servers, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert [pid for each in made for pid in each.running()] == []
