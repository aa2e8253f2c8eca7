"""Tools that the model can call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from actors.core.content import Image
from actors.core.context import Mode
from actors.core.states import AgentTask
from actors.ports.cancellation import CancelToken
from actors.ports.clock import Clock
from actors.ports.images import ImagesUnavailableError
from actors.ports.models import SideQuery, SideQueryError, ToolSpec
from actors.ports.processes import RunningProcess, Sandbox

if TYPE_CHECKING:
    from actors.core.errors import Reason
    from actors.core.tool_run import KillReceipt


def no_image(_data: bytes) -> Image:
    """Keep nothing, where there is nothing that could."""
    raise ImagesUnavailableError("this server takes no images")


class SubAgentsRefusedError(Exception):
    """No sub-agent is started, because of one field of one task; the text is for whoever asked."""

    def __init__(self, index: int | None, field: str, text: str, reason: Reason | None = None) -> None:
        super().__init__(text)
        self.index = index
        """Of the task; None: it is about all of them."""
        self.field = field
        """As in AgentTask, "read_first[1]" for one file; "" if it is about the whole task."""
        self.reason = reason

    def place(self, names: Mapping[str, str]) -> str:
        """The field as whoever asked calls it: "tasks[2].model"."""
        task = "tasks" if self.index is None else f"tasks[{self.index}]"
        name = names.get(self.field, self.field)
        return f"{task}.{name}" if name else task


def no_sub_agents(_tasks: tuple[AgentTask, ...], _context: ToolContext) -> tuple[AgentTask, ...]:
    """Start none, where nobody may."""
    raise SubAgentsRefusedError(None, "", "sub-agents cannot be started here")


def nobody(_aside: SideQuery) -> str:
    """Answer no asides, where nobody could."""
    raise SideQueryError("there is no small model")


class ToolContext(Struct, frozen=True):
    """What a running tool may use. Tools keep no state of a conversation on themselves."""

    conversation_id: str
    tool_use_id: str
    working_directory: str
    mode: Mode
    cancel: CancelToken
    sandbox: Sandbox
    clock: Clock
    on_output: Callable[[str], None]
    """Live output for watchers."""
    track: Callable[[RunningProcess], Callable[[], bool]]
    """Call with every process right after its start: cancel kills it without asking the tool. What it returns lets
    the process go, so that it may outlive the call: True, no cancel of this call kills it any more; False, one has
    already struck."""
    reaped: Callable[[tuple[int, ...]], None]
    """Call with ProcessEnd.reaped of every process that ended: pids for the cancel receipt."""
    keep_image: Callable[[bytes], Image] = no_image
    """Take an image into the conversation, so that the result can refer to it. Blocks; ends early when cancelled.
    Raises InvalidImageError, ImagesUnavailableError or StoreError."""
    ask_aside: Callable[[SideQuery], str] = nobody
    """Ask a small model beside the conversation, once. Blocks, for a bounded time; ends early when cancelled. Raises
    SideQueryError, or ToolTransientError while the model is busy and the tool may be tried again."""
    plan_agents: Callable[[tuple[AgentTask, ...], ToolContext], tuple[AgentTask, ...]] = no_sub_agents
    """Check the tasks of sub-agents, fill in what they leave open ("" or 0), and read what they are given. Blocks like
    a tool. Raises SubAgentsRefusedError, or what `Tool.run` raises."""


class ToolOutput(Struct, frozen=True):
    """What a tool answers. `text` is what the model reads, already capped."""

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    display: str = ""
    """JSON text for people, or ""."""
    agents: tuple[AgentTask, ...] = ()
    """Sub-agents to be started: what they report becomes the result, instead of `text`."""


class InvalidToolInputError(Exception):
    """The model's input does not fit the schema; the text tells the model what to change."""


class ToolTransientError(Exception):
    """The infrastructure failed, not the tool (C14)."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class Tool(Protocol):
    """Something the model can call."""

    @property
    def spec(self) -> ToolSpec: ...

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Do it (tool thread). Failures of the tool are outputs with is_error.

        Raises ToolTransientError or SandboxUnavailableError; anything else is a bug and becomes an error result.
        """
        ...


class Toolbox(Protocol):
    """The tools of this server, and what they keep for a conversation between calls. Any thread; never blocks."""

    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        """What a conversation of this kind is offered, in the order the model sees it."""
        ...

    def get(self, name: str) -> Tool | None: ...

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        """Raw JSON text to validated arguments; raises InvalidToolInputError."""
        ...

    def jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """Handles of the background jobs that a conversation has running, in the order of their start; only of those
        with more rights than a mode gives if one is named. Those that were killed are not among them, even before
        they are dead."""
        ...

    def end_jobs(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> int:
        """Kill these jobs without waiting; returns how many. `ended` is called for each once its processes are gone,
        or given up, on a thread of the job; the receipt's tool_use_id is that of the call that started it."""
        ...

    def forget(self, conversation_id: str) -> None:
        """The conversation is deleted: kill its jobs, and drop all that tools keep for it (clipboards, what ended jobs
        wrote)."""
        ...
