"""The ports for tools that models can call, and for MCP servers (Model Context Protocol), which offer some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from actors.common.json_schema import parse_json, shortened
from actors.core.content import Image, ToolUse
from actors.core.context import ApprovalRule, CallSubject, ChosenMcpServer, Mode
from actors.core.errors import REFUSAL_TEXTS, Reason
from actors.core.states import AgentTask, BackgroundJob, QuestionStatus
from actors.core.tool_run import KillReceipt
from actors.ports.live_conversations import CancelToken, Clock
from actors.ports.models import SideQuery, SideQueryError, ToolSpec
from actors.ports.records import ConversationRecord
from actors.ports.sandbox import RunningProcess, Sandbox
from actors.ports.workspace import ImagesUnavailableError


def no_image(_data: bytes) -> Image:
    """Refuse to store an image, because this server accepts none."""
    raise ImagesUnavailableError("this server does not accept images")


class SubAgentsRefusedError(Exception):
    """No sub-agent was started, because the number of tasks or a field of a task is invalid; the message says why."""

    def __init__(self, index: int | None, field: str, text: str, reason: Reason | None = None) -> None:
        super().__init__(text)
        self.index = index
        self.field = field
        self.reason = reason

    def place(self, names: Mapping[str, str]) -> str:
        """The path of the invalid field, such as "tasks[2].model"; `names` maps fields to other names for the path."""
        task = "tasks" if self.index is None else f"tasks[{self.index}]"
        name = names.get(self.field, self.field)
        return f"{task}.{name}" if name else task


def no_sub_agents(_tasks: tuple[AgentTask, ...], _context: ToolContext) -> tuple[AgentTask, ...]:
    """Refuse to plan sub-agents, because they cannot be started here."""
    raise SubAgentsRefusedError(None, "", "sub-agents cannot be started in this conversation")


def no_side_queries(query: SideQuery) -> str:  # noqa: ARG001 -- the port's signature
    """Refuse to send a side query (a small extra request), because no small model is configured."""
    raise SideQueryError("no small model is configured")


class PersonQuestion(Struct, frozen=True):
    """A running tool's question to a person: a form, or a URL to visit."""

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
    """A tool call asks more questions than allowed; the message is sent to the MCP server that asks."""


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
    """Called with live output, which is shown to watching clients and is not stored."""
    track: Callable[[RunningProcess], Callable[[], bool]]
    """Registers each process for cancellation directly after its start.

    Returns a function that releases the process, so that it may outlive the call; that function returns False if a
    cancel has already killed the process.
    """
    reaped: Callable[[tuple[int, ...]], None]
    """Reports the ids of killed processes. Call it with `ProcessEnd.reaped` of every program that has ended."""
    job_changed: Callable[[BackgroundJob], None] = ignore_job
    """Reports that a command continues in the background, and later how it ended. Thread-safe; never blocks."""
    keep_image: Callable[[bytes], Image] = no_image
    """Stores an image for the tool's result. Blocks unless cancelled.

    Raises InvalidImageError, ImagesUnavailableError or StoreError.
    """
    make_side_query: Callable[[SideQuery], str] = no_side_queries
    """Asks a small model. Blocks for a limited time, unless cancelled.

    Raises SideQueryError, or ToolTransientError if the model is at capacity and the call may be retried.
    """
    ask: Callable[[PersonQuestion], Future[PersonAnswer]] = decline_question
    """Asks a person. Cancelling the future withdraws the question, and so does the end of the call.

    Never blocks. Raises TooManyQuestionsError.
    """
    trace_parent: str = ""
    """The W3C `traceparent` of this call, to send with requests to other programs; "" if the call is not traced."""
    plan_agents: Callable[[tuple[AgentTask, ...], ToolContext], tuple[AgentTask, ...]] = no_sub_agents
    """Validates the tasks of sub-agents, fills in defaults, and reads the files named in the tasks.

    Blocks. Raises SubAgentsRefusedError, or the exceptions of `Tool.run`.
    """


class ToolOutput(Struct, frozen=True):
    """The output of a tool. `text` is for the model; the tool has already shortened it to the allowed length."""

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    display: str = ""
    """JSON for display to users; "" if there is none."""
    agents: tuple[AgentTask, ...] = ()
    """The sub-agents to start; if there are any, their reports become the result instead of `text`."""
    ended_job: str = ""
    """The handle of the background job if `text` says that one has ended; otherwise ""."""


class InvalidToolInputError(Exception):
    """The input of a call does not match the tool's schema; the message tells the model what to change."""


def parse_arguments(name: str, raw: str) -> dict[str, Any]:
    """The input of a call as an object; an empty string counts as {}. Raises InvalidToolInputError."""
    try:
        value = parse_json(raw or "{}")
    except ValueError as error:
        fault = shortened(str(error))
        raise InvalidToolInputError(f"The input of {name} is not valid JSON ({fault}). Nothing was run.") from None
    if not isinstance(value, dict):
        raise InvalidToolInputError(f"The input of {name} must be a JSON object. Nothing was run.")
    return value


def object_schema(required: Sequence[str], /, **properties: Any) -> dict[str, Any]:
    """The JSON schema of an object that has no properties other than these."""
    head = {"type": "object", "required": [*required]} if required else {"type": "object"}
    return {**head, "properties": properties, "additionalProperties": False}


def input_misfit(name: str, problem: str) -> str:
    """The error text for a call to the tool `name`, because its input does not match the schema."""
    return f"The input of {name} does not match its schema: {problem}. Nothing was run."


class InvalidApprovalRuleError(Exception):
    """An approval rule cannot be used. The exception names the invalid field, and its message says what to change."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class ToolTransientError(Exception):
    """The infrastructure failed, not the tool itself. `begun` says whether the tool may already have had effects."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class Tool(Protocol):
    """A tool that models can call."""

    @property
    def spec(self) -> ToolSpec: ...

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run the tool on a thread of its own or, if it is instant, on the conversation's thread.

        Failures of the tool itself are outputs with `is_error`. Raises ToolTransientError or SandboxUnavailableError;
        any other exception is a bug and becomes an error result.
        """
        ...


class Toolbox(Protocol):
    """The built-in tools, and their state for each conversation. Thread-safe; only methods that say so may block."""

    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        """The tools offered to sub-agents, or else to other conversations, in the order that models see."""
        ...

    def get(self, name: str) -> Tool | None: ...

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        """Parse and validate the JSON arguments of a tool call. Raises InvalidToolInputError."""
        ...

    def subject(self, call: ToolUse, working_directory: str, within: Sequence[str] | None = None) -> CallSubject:
        """The commands and paths of a call, for approval rules.

        May block, because it reads symbolic links; if `within` is given, only in these directories.
        """
        ...

    def prepared_rule(self, rule: ApprovalRule, within: Sequence[str] | None = None) -> ApprovalRule:
        """A rule with its command split into words and its links resolved (only in `within`, if given). May block.

        Raises InvalidApprovalRuleError.
        """
        ...

    def jobs(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """The running jobs in the order of their start; with `wider_than`, those with more rights than that mode.

        Killed jobs are left out, even before their processes have ended.
        """
        ...

    def end_jobs(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> tuple[str, ...]:
        """Kill jobs (as `jobs` selects them) without waiting; return all handles, even of those being killed already.

        `ended` is called on a thread of each job once the job's processes are dead, or could not be confirmed dead
        before the time limit; the argument contains the tool_use_id of the call that started the job.
        """
        ...

    def forget(self, conversation_id: str) -> None:
        """Kill the jobs of a deleted conversation and drop the state kept for it (clipboards, stored outputs)."""
        ...


class McpState(StrEnum):
    """The last known state of an MCP server."""

    CONNECTING = "connecting"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"
    NEEDS_LOGIN = "needs_login"


class McpToolLeftOut(Struct, frozen=True):
    name: str
    reason: str


class McpServerStatus(Struct, frozen=True):
    """The status of one MCP server of the operator or of a conversation."""

    name: str
    state: McpState
    command: tuple[str, ...] = ()
    """The server's program and its arguments; () for a server with a URL."""
    url: str = ""
    error: str = ""
    tools: tuple[ToolSpec, ...] = ()
    left_out: tuple[McpToolLeftOut, ...] = ()


class McpLogin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operator's login to an MCP server: OAuth tokens, and how they are renewed. Never shown."""

    id: str
    url: str
    """The URL of the MCP server; the tokens are sent to no other URL."""
    resource: str
    """The OAuth resource that the tokens are for, as the MCP server names it."""
    token_endpoint: str
    revocation_endpoint: str = ""
    """The URL at which the tokens are revoked; "" if there is none."""
    issuer: str
    client_id: str
    client_secret: str = ""
    client_authentication: str = "none"
    """How the client authenticates itself at the token endpoint."""
    access_token: str
    refresh_token: str = ""
    renew_at: int = 0
    """When the access token must be renewed, in milliseconds since the epoch; 0: only after a server has refused it."""
    expires_at: int = 0
    """When the access token expires, in milliseconds since the epoch; 0: unknown."""
    scope: str = ""

    def __repr__(self) -> str:
        return f"McpLogin({self.id!r})"


class McpRegistration(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An OAuth client registered at an MCP server; later logins reuse it. Never shown."""

    url: str
    redirect_uri: str
    """The URL to which browsers return after a login; the registration is valid only for this URL."""
    issuer: str
    client_id: str
    client_secret: str = ""
    client_authentication: str = "none"
    expires_at: int = 0
    """When the client secret expires, in seconds since the epoch; 0: never."""

    def __repr__(self) -> str:
        return f"McpRegistration({self.url!r}, ***)"


class McpLoginsError(Exception):
    """The stored logins cannot be read or changed; the message says why."""


class LoginUnavailableError(Exception):
    """No access token for an MCP server is available now; the message says why."""


class McpLogins(Protocol):
    """The stored logins, which the server and the operator's login command read and change. Thread-safe; blocks."""

    def read(self) -> dict[str, McpLogin]:
        """The logins, keyed by MCP server name. Raises McpLoginsError."""
        ...

    def version(self) -> tuple[int, ...]:
        """A value that changes whenever the stored logins change; costs one system call."""
        ...

    def put(self, name: str, login: McpLogin, /) -> None:
        """Store or replace the login of an MCP server. Raises McpLoginsError."""
        ...

    def replace(self, name: str, before: McpLogin, after: McpLogin | None) -> bool:
        """If a server's login still equals `before`, replace it with `after` (None: remove it); return whether it did.

        Raises McpLoginsError.
        """
        ...


class McpNotAllowedError(Exception):
    """The operator does not allow an MCP server that a client configured; the message says what would be allowed."""


class McpServerInvalidError(Exception):
    """An MCP server that a client configured cannot be used."""

    def __init__(self, position: int, field: str, text: str) -> None:
        super().__init__(text)
        self.position = position
        self.field = field


class McpServers(Protocol):
    """The MCP servers of the operator and of conversations. Each conversation has its own connections. Thread-safe.

    No method blocks, except the `run` of a tool that `tool` returns.
    """

    def start(self) -> None:
        """Begin to ask all servers for their tools, in the background. Call this only once."""
        ...

    def close(self) -> None:
        """End all connections and kill the servers' programs, within seconds. Idempotent."""
        ...

    def offer(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        """Choose the MCP tools of a conversation's next run, in the order that the model sees; () for sub-agents.

        Only tools that are known already can be chosen; those of other servers are requested in the background.
        """
        ...

    def offered(self, conversation_id: str) -> tuple[ToolSpec, ...]:
        """The last result of `offer` for a conversation; () if there is none."""
        ...

    def tool(self, name: str, conversation_id: str) -> Tool | None:
        """The MCP tool that models call by this name in this conversation; None for other names."""
        ...

    def check(self, chosen: tuple[ChosenMcpServer, ...]) -> None:
        """Check that a conversation may use these servers. Raises McpNotAllowedError or McpServerInvalidError."""
        ...

    def prepare(self, record: ConversationRecord) -> None:
        """Begin to connect in the background to the servers of a new or changed conversation; end other connections."""
        ...

    def statuses_of(self, record: ConversationRecord) -> tuple[McpServerStatus, ...]:
        """The status of each server in the conversation's own list of MCP servers, in the order of that list."""
        ...

    def outdated(self, record: ConversationRecord) -> tuple[str, ...]:
        """The names of the MCP servers whose programs run in a former permission mode of the conversation."""
        ...

    def end_outdated(self, record: ConversationRecord) -> None:
        """End the programs of the `outdated` servers. The next call to a server's tool restarts it, in the new mode."""
        ...

    def wider_than(self, conversation_id: str, mode: Mode) -> tuple[str, ...]:
        """The names of a conversation's MCP servers whose programs have more rights than this mode gives."""
        ...

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        """End the connections of a conversation without waiting, and return the names of their servers.

        With `wider_than`, end only the programs with more rights than that mode. The next tool call connects again.
        """
        ...

    def release(self, conversation_id: str) -> None:
        """Drop the list of offered tools, because the actor has stopped. Connections stay open."""
        ...

    def statuses(self, principal: str = "") -> tuple[McpServerStatus, ...]:
        """The status of each server of the operator, in the order of the settings.

        For a principal that may read only some directories, this is the status in its own conversations, because a
        program may fail there and work elsewhere. For other principals and "", it is the status in the conversations of
        unrestricted principals.
        """
        ...


def not_allowed(chosen: ChosenMcpServer) -> McpServerStatus:
    """The status of a server that a client chose, but that the operator does not allow or no longer allows."""
    error = REFUSAL_TEXTS[Reason.MCP_NOT_ALLOWED]
    return McpServerStatus(chosen.name, McpState.FAILED, chosen.command, chosen.url, error)


class NoMcpServers:
    """An implementation of McpServers that has no servers."""

    def start(self) -> None: ...
    def close(self) -> None: ...
    def offer(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        return ()

    def offered(self, conversation_id: str) -> tuple[ToolSpec, ...]:
        return ()

    def tool(self, name: str, conversation_id: str) -> Tool | None:
        return None

    def check(self, chosen: tuple[ChosenMcpServer, ...]) -> None:
        if chosen:
            raise McpNotAllowedError(REFUSAL_TEXTS[Reason.MCP_NOT_ALLOWED])

    def prepare(self, record: ConversationRecord) -> None: ...
    def statuses_of(self, record: ConversationRecord) -> tuple[McpServerStatus, ...]:
        return tuple(not_allowed(chosen) for chosen in record.profile.mcp_servers)

    def outdated(self, record: ConversationRecord) -> tuple[str, ...]:
        return ()

    def end_outdated(self, record: ConversationRecord) -> None: ...
    def wider_than(self, conversation_id: str, mode: Mode) -> tuple[str, ...]:
        return ()

    def stop(self, conversation_id: str, wider_than: Mode | None = None) -> tuple[str, ...]:
        return ()

    def release(self, conversation_id: str) -> None: ...
    def statuses(self, principal: str = "") -> tuple[McpServerStatus, ...]:
        return ()
