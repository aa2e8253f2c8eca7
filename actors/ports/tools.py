"""Tools that models can call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from actors.core.content import Image, ToolUse
from actors.core.context import Mode
from actors.core.states import AgentTask, QuestionStatus
from actors.ports.cancellation import CancelToken
from actors.ports.images import ImagesUnavailableError
from actors.ports.machine.clock import Clock
from actors.ports.models import SideQuery, SideQueryError, ToolSpec
from actors.ports.sandbox.processes import RunningProcess, Sandbox
from actors.ports.schemas.json_schema import parse_json, shortened

if TYPE_CHECKING:
    from actors.core.approval.approval_rules import ApprovalRule, CallSubject
    from actors.core.errors import Reason
    from actors.core.tool_run import KillReceipt


def no_image(_data: bytes) -> Image:
    """Refuse to store an image: this server accepts none."""
    raise ImagesUnavailableError("this server takes no images")


class SubAgentsRefusedError(Exception):
    """No sub-agent was started because of one field of one task; the text is for the caller."""

    def __init__(self, index: int | None, field: str, text: str, reason: Reason | None = None) -> None:
        super().__init__(text)
        self.index = index
        """Index of the task; None: all of them."""
        self.field = field
        """Name of the field of AgentTask, "read_first[1]" for one file; "": the whole task."""
        self.reason = reason

    def place(self, names: Mapping[str, str]) -> str:
        """Return the path of the field in the caller's names, e.g. "tasks[2].model"."""
        task = "tasks" if self.index is None else f"tasks[{self.index}]"
        name = names.get(self.field, self.field)
        return f"{task}.{name}" if name else task


def no_sub_agents(_tasks: tuple[AgentTask, ...], _context: ToolContext) -> tuple[AgentTask, ...]:
    """Refuse sub-agents: they cannot be started here."""
    raise SubAgentsRefusedError(None, "", "sub-agents cannot be started here")


def no_side_queries(query: SideQuery) -> str:  # noqa: ARG001 -- the port's signature
    """Refuse side queries: there is no small model."""
    raise SideQueryError("there is no small model")


class PersonQuestion(Struct, frozen=True):
    """A question of a running tool to a person: a form, or an address to visit."""

    asker: str
    """The name of the MCP server that asks."""
    message: str
    timeout_ms: int
    """How long an answer is waited for, in milliseconds."""
    schema: str = ""
    """For a form: the JSON Schema of the answer, as JSON."""
    url: str = ""


class PersonAnswer(Struct, frozen=True):
    """How a question ended."""

    status: QuestionStatus
    content: str = ""
    """The values of a form that was answered, a JSON object that fits its schema."""


class TooManyQuestionsError(Exception):
    """A tool call asks more than it may; the text is for the asker."""


def ask_nobody(_question: PersonQuestion) -> Future[PersonAnswer]:
    """Withdraw a question at once: nobody can be asked here."""
    future: Future[PersonAnswer] = Future()
    future.set_result(PersonAnswer(QuestionStatus.WITHDRAWN))
    return future


class ToolContext(Struct, frozen=True):
    """The services that a running tool may use. Tools themselves hold no state of conversations."""

    conversation_id: str
    principal: str
    tool_use_id: str
    working_directory: str
    mode: Mode
    cancel: CancelToken
    sandbox: Sandbox
    clock: Clock
    on_output: Callable[[str], None]
    """Called with live output, for watchers; ephemeral."""
    track: Callable[[RunningProcess], Callable[[], bool]]
    """Registers a process for cancellation. Call it with every process directly after its start.

    Returns a function that releases the process, so that it may outlive the call. That function returns True if a
    cancel of this call can no longer kill the process, False if a cancel has already done so.
    """
    reaped: Callable[[tuple[int, ...]], None]
    """Call it with ProcessEnd.reaped of every ended process: these process ids become part of the cancel's receipt."""
    keep_image: Callable[[bytes], Image] = no_image
    """Store an image in the conversation, so that the result can refer to it.

    Blocks; returns early when cancelled. Raises InvalidImageError, ImagesUnavailableError or StoreError.
    """
    make_side_query: Callable[[SideQuery], str] = no_side_queries
    """Send a side query to a small model.

    Blocks for a bounded time; returns early when cancelled. Raises SideQueryError, or ToolTransientError if the model
    is at capacity and the tool may be retried.
    """
    ask: Callable[[PersonQuestion], Future[PersonAnswer]] = ask_nobody
    """Ask a person; cancelling the future takes the question back.

    Never blocks. All questions end with the call at the latest. Raises TooManyQuestionsError.
    """
    trace_parent: str = ""
    """The W3C `traceparent` of this call, for what it asks other programs to do; "": it is not traced."""
    plan_agents: Callable[[tuple[AgentTask, ...], ToolContext], tuple[AgentTask, ...]] = no_sub_agents
    """Validate the tasks of sub-agents, fill in defaults for "" and 0, and read the files in `read_first`.

    Blocks like a tool. Raises SubAgentsRefusedError, or what `Tool.run` raises.
    """


class ToolOutput(Struct, frozen=True):
    """Output of a tool. `text` is for the model, already truncated to its limit."""

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    display: str = ""
    """JSON for display to people, or ""."""
    agents: tuple[AgentTask, ...] = ()
    """Sub-agents to start; if there are any, their reports become the result instead of `text`."""


class InvalidToolInputError(Exception):
    """The input of a call does not fit the tool's schema; the text tells the model what to change."""


def parse_arguments(name: str, raw: str) -> dict[str, Any]:
    """Return the JSON object that a call of a tool has as input; an empty text counts as {}.

    Raises InvalidToolInputError.
    """
    try:
        value = parse_json(raw or "{}")
    except ValueError as error:
        fault = shortened(str(error))
        raise InvalidToolInputError(f"The input of {name} is not valid JSON ({fault}). Nothing was run.") from None
    if not isinstance(value, dict):
        raise InvalidToolInputError(f"The input of {name} must be a JSON object. Nothing was run.")
    return value


def input_misfit(name: str, problem: str) -> str:
    """Return the result of a call of the tool `name` whose input does not fit its schema."""
    return f"The input of {name} does not fit its schema: {problem}. Nothing was run."


class InvalidApprovalRuleError(Exception):
    """An approval rule cannot be used: the name of its field, and what to change."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class ToolTransientError(Exception):
    """The infrastructure failed, not the tool; `begun`: whether the tool may have had an effect already."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class Tool(Protocol):
    """A tool that models can call."""

    @property
    def spec(self) -> ToolSpec:
        """The tool's name, description, input schema and traits."""
        ...

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run the tool (tool thread; the tool runner's if the tool is instant).

        Failures of the tool itself are outputs with `is_error`.

        Raises ToolTransientError or SandboxUnavailableError. Any other exception is a bug and becomes an error result.
        """
        ...


class Toolbox(Protocol):
    """The tools of this server, with the state they keep per conversation. Any thread; never blocks."""

    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        """Return the tools offered to a conversation or a sub-agent, in the order the model sees them."""
        ...

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, or None."""
        ...

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        """Parse and validate the JSON arguments of a call. Raises InvalidToolInputError."""
        ...

    def subject(self, call: ToolUse, working_directory: str, within: Sequence[str] | None = None) -> CallSubject:
        """Return what a call is about, for approval rules.

        Reads links, `within` these directories only if they are given, so that it may block.
        """
        ...

    def prepared_rule(self, rule: ApprovalRule, within: Sequence[str] | None = None) -> ApprovalRule:
        """Return an approval rule as it is kept: with the words of its command, and its directory without links.

        Reads links, `within` these directories only if they are given, so that it may block. Raises
        InvalidApprovalRuleError.
        """
        ...

    def jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """Return the handles of the running background jobs of a conversation, in the order of their start.

        With `wider_than`, only of those with more rights than this mode gives. Killed jobs are omitted, even before
        their processes have ended.
        """
        ...

    def end_jobs(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> int:
        """Kill the jobs that `jobs` returns, without waiting; returns how many.

        `ended` is called for each, on a thread of the job, once its processes are dead or could not be confirmed dead
        in time. The receipt has the tool_use_id of the call that started the job.
        """
        ...

    def forget(self, conversation_id: str) -> None:
        """Kill the jobs of a deleted conversation and drop the state kept for it: clipboards, output of ended jobs."""
        ...
