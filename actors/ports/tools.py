"""The port for tools that models can call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from msgspec import Struct

from actors.core.content import Image, ToolUse
from actors.core.context import ApprovalRule, CallSubject, Mode
from actors.core.errors import Reason
from actors.core.states import AgentTask, BackgroundJob, QuestionStatus
from actors.core.tool_run import KillReceipt
from actors.ports.json_schema import parse_json, shortened
from actors.ports.live_conversations import CancelToken
from actors.ports.machine import Clock
from actors.ports.models import SideQuery, SideQueryError, ToolSpec
from actors.ports.sandbox import RunningProcess, Sandbox
from actors.ports.workspace import ImagesUnavailableError


def no_image(_data: bytes) -> Image:
    """Refuse to store an image, because this server accepts none."""
    raise ImagesUnavailableError("this server takes no images")


class SubAgentsRefusedError(Exception):
    """No sub-agent was started, because the number of tasks or a field of a task is invalid; the text says why."""

    def __init__(self, index: int | None, field: str, text: str, reason: Reason | None = None) -> None:
        super().__init__(text)
        self.index = index
        self.field = field
        self.reason = reason

    def place(self, names: Mapping[str, str]) -> str:
        """The path of the invalid field, such as "tasks[2].model", with the names that `names` maps."""
        task = "tasks" if self.index is None else f"tasks[{self.index}]"
        name = names.get(self.field, self.field)
        return f"{task}.{name}" if name else task


def no_sub_agents(_tasks: tuple[AgentTask, ...], _context: ToolContext) -> tuple[AgentTask, ...]:
    """Refuse to plan sub-agents, because they cannot be started here."""
    raise SubAgentsRefusedError(None, "", "sub-agents cannot be started here")


def no_side_queries(query: SideQuery) -> str:  # noqa: ARG001 -- the port's signature
    """Refuse to send a side query (a small extra request), because no small model is configured."""
    raise SideQueryError("no small model is configured")


class PersonQuestion(Struct, frozen=True):
    """A question of a running tool to a person: a form, or a URL to visit."""

    asker: str
    message: str
    timeout_ms: int
    schema: str = ""
    url: str = ""


class PersonAnswer(Struct, frozen=True):
    """How a question ended, with the answer if there is one."""

    status: QuestionStatus
    content: str = ""
    """The values of an answered form, as a JSON object that matches the schema."""


class TooManyQuestionsError(Exception):
    """A tool call asks people more questions than allowed; the text is sent to the MCP server that asks."""


def ignore_job(_job: BackgroundJob) -> None:
    """Do nothing, because no conversation records the job."""


def decline_question(_question: PersonQuestion) -> Future[PersonAnswer]:
    """Withdraw a question at once, because there is no person to ask."""
    future: Future[PersonAnswer] = Future()
    future.set_result(PersonAnswer(QuestionStatus.WITHDRAWN))
    return future


class ToolContext(Struct, frozen=True):
    """The facts about a running tool call, and the services that the tool can use."""

    conversation_id: str
    principal: str
    tool_use_id: str
    working_directory: str
    mode: Mode
    cancel: CancelToken
    sandbox: Sandbox
    clock: Clock
    on_output: Callable[[str], None]
    """Called with live output for watching clients, which is not stored."""
    track: Callable[[RunningProcess], Callable[[], bool]]
    """Registers each process for cancellation directly after its start.

    Returns a function that releases it, so that it may outlive the call; False if a cancel has killed it before.
    """
    reaped: Callable[[tuple[int, ...]], None]
    """Reports the ids of killed processes. Call it with `ProcessEnd.reaped` of every program that has ended."""
    job_changed: Callable[[BackgroundJob], None] = ignore_job
    """Reports that a command continues in the background, and later how it ended. Any thread; never blocks."""
    keep_image: Callable[[bytes], Image] = no_image
    """Stores an image for the tool's result. Blocks unless cancelled.

    Raises InvalidImageError, ImagesUnavailableError or StoreError.
    """
    make_side_query: Callable[[SideQuery], str] = no_side_queries
    """Asks a small model. Blocks for a bounded time, unless cancelled.

    Raises SideQueryError, or ToolTransientError if the model is at capacity and the call may be retried.
    """
    ask: Callable[[PersonQuestion], Future[PersonAnswer]] = decline_question
    """Asks a person; cancel the future to withdraw the question, as the end of the call does.

    Never blocks. Raises TooManyQuestionsError.
    """
    trace_parent: str = ""
    """The W3C `traceparent` of this call, to send with requests to other programs; "" if the call is not traced."""
    plan_agents: Callable[[tuple[AgentTask, ...], ToolContext], tuple[AgentTask, ...]] = no_sub_agents
    """Validates the tasks of sub-agents, fills in defaults, and reads their files.

    Blocks. Raises SubAgentsRefusedError, or what `Tool.run` raises.
    """


class ToolOutput(Struct, frozen=True):
    """The output of a tool. `text` is for the model; the tool has already shortened it to the allowed length."""

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    display: str = ""
    """JSON for display to people; "" if there is none."""
    agents: tuple[AgentTask, ...] = ()
    """The sub-agents to start; if there are any, their reports become the result instead of `text`."""
    ended_job: str = ""
    """The handle of the background job whose end `text` shows; "" for none."""


class InvalidToolInputError(Exception):
    """The input of a call does not match the tool's schema; the text tells the model what to change."""


def parse_arguments(name: str, raw: str) -> dict[str, Any]:
    """The input of a call as an object; an empty text counts as {}. Raises InvalidToolInputError."""
    try:
        value = parse_json(raw or "{}")
    except ValueError as error:
        fault = shortened(str(error))
        raise InvalidToolInputError(f"The input of {name} is not valid JSON ({fault}). Nothing was run.") from None
    if not isinstance(value, dict):
        raise InvalidToolInputError(f"The input of {name} must be a JSON object. Nothing was run.")
    return value


def object_schema(required: Sequence[str], /, **properties: Any) -> dict[str, Any]:
    """The JSON schema of an object that has no other properties than these."""
    head = {"type": "object", "required": [*required]} if required else {"type": "object"}
    return {**head, "properties": properties, "additionalProperties": False}


def input_misfit(name: str, problem: str) -> str:
    """The error text that answers a call of the tool `name` whose input does not match the schema."""
    return f"The input of {name} does not fit its schema: {problem}. Nothing was run."


class InvalidApprovalRuleError(Exception):
    """An approval rule cannot be used. The exception names the invalid field, and its text says what to change."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class ToolTransientError(Exception):
    """The infrastructure failed, not the tool itself. `begun` says whether the tool may have had effects before."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class Tool(Protocol):
    """A tool that models can call."""

    @property
    def spec(self) -> ToolSpec: ...

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run the tool, on its own thread, or if instant on the conversation's.

        Its own failures are outputs with `is_error`. Raises ToolTransientError or SandboxUnavailableError; anything
        else is a bug and becomes an error result.
        """
        ...


class Toolbox(Protocol):
    """The built-in tools, and their state for each conversation. Any thread; two methods may block, as said there."""

    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        """The tools offered to sub-agents, or with False to other conversations, in the order for models."""
        ...

    def get(self, name: str) -> Tool | None: ...

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        """Parse and validate the JSON arguments of a tool call. Raises InvalidToolInputError."""
        ...

    def subject(self, call: ToolUse, working_directory: str, within: Sequence[str] | None = None) -> CallSubject:
        """The commands and paths of a call, for approval rules.

        May block: reads symbolic links, with `within` only there.
        """
        ...

    def prepared_rule(self, rule: ApprovalRule, within: Sequence[str] | None = None) -> ApprovalRule:
        """A rule with its command split into words and its links resolved, with `within` only there. May block.

        Raises InvalidApprovalRuleError.
        """
        ...

    def jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """The running jobs in the order of their start, with `wider_than` those with more rights than that mode.

        Killed jobs are left out, even before their processes have ended.
        """
        ...

    def end_jobs(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> tuple[str, ...]:
        """Kill jobs (as `jobs` selects them) without waiting; return their handles, also of those being killed already.

        `ended` is called on a thread of each job once its processes are dead, or could not be confirmed dead in time;
        its argument contains the tool_use_id of the call that started it.
        """
        ...

    def forget(self, conversation_id: str) -> None:
        """Kill the jobs of a deleted conversation and drop the state kept for it (clipboards, stored outputs)."""
        ...
