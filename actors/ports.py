"""What the actors need from the outside, named by role. Adapters implement these; `server.app` picks them.

A port says on which thread it is called and what it raises. Every call that may block takes a CancelToken or is
bounded; nothing here knows gRPC, SQL or HTTP.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from actors.core.content import Content, Image, Message, Usage
from actors.core.context import ApprovalPolicy, Budget, FollowUpPolicy, Mode, ToolTraits
from actors.core.errors import LlmFailure
from actors.core.history import Turn
from actors.core.notifications import Durable, Token
from actors.core.states import State

log = logging.getLogger(__name__)

# --- time, ids, faults ------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Time, injected so that tests own it. Any thread."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC: for records and for the machine."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: for deadlines and durations."""
        ...


class Ids(Protocol):
    """Where new identities come from. Any thread."""

    def conversation(self) -> str:
        """A new conversation id: lower-case letters, digits and '-', never reused."""
        ...

    def message(self) -> str:
        """A new message id."""
        ...

    def slug(self) -> str:
        """A short readable handle; may be taken already."""
        ...


class Faults(Protocol):
    """Named points where a test may fail, delay or kill the process. Production does nothing. Any thread."""

    def hit(self, point: str) -> None:
        """Called as the work passes `point`, e.g. "commit.before"; may raise."""
        ...


class CancelToken:
    """One piece of work that somebody may stop. Any thread; cancelling twice is cancelling once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Run the callbacks on the caller's thread. They must not block, and should not raise: that is logged, and
        the others still run."""
        with self._lock:
            if self._cancelled.is_set():
                return
            self._cancelled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("a piece of work could not be stopped")

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Run `callback` when cancelled; at once if that has happened already."""
        with self._lock:
            if not self._cancelled.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> None:
        """Undo on_cancel, so that a finished step holds no resources."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    def wait(self, seconds: float) -> bool:
        """Wait until cancelled, `seconds` at most; returns whether it is."""
        return self._cancelled.wait(seconds)


# --- models ---------------------------------------------------------------------------------------------------


class ModelInfo(Struct, frozen=True):
    """What is known about a model before it is asked anything. Tokens throughout."""

    name: str
    """As in conversations' `model`, without a prefix: e.g. "claude-sonnet-5-5" or "demo"."""
    display_name: str
    provider: str
    protocol: str
    """"anthropic", "openai-chat" or "demo"."""
    context_window: int
    max_output: int
    usable_window: int
    """min(input limit, context window minus reserved output): thresholds count against this."""
    images: bool = False
    known: bool = True
    """False: limits are the smallest known window (REQ-BED-022)."""


class ToolSpec(Struct, frozen=True):
    """A tool as the model and the machine see it. Never varies with the mode."""

    name: str
    description: str
    input_schema: dict[str, Any]
    traits: ToolTraits


class ModelRequest(Struct, frozen=True):
    """One attempt of one request."""

    conversation_id: str
    request_id: str
    attempt: int
    system: str
    tools: tuple[ToolSpec, ...]
    """Empty for the tool-less summary request."""
    turns: tuple[Turn, ...]
    """From core.history.provider_view: alternating roles, complete tool rounds."""


class ModelAnswer(Struct, frozen=True):
    """A whole answer."""

    content: tuple[Content, ...]
    """Text, Reasoning, ToolUse; ids of tool uses are unique in the conversation."""
    end_turn: bool
    usage: Usage | None = None
    truncated: bool = False
    refusal: bool = False


class ModelFailed(Exception):
    """The attempt failed; the text is for people and holds no secret."""

    def __init__(self, failure: LlmFailure, retry_after_ms: int | None = None, usage: Usage | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.retry_after_ms = retry_after_ms
        self.usage = usage


class ModelAborted(Exception):
    """The cancel token was pulled. Decided by the token, never by what the socket raised."""


class ModelSink(Protocol):
    """Where an answer goes while it arrives. Called on the thread of `respond`."""

    def started(self) -> None:
        """The answer's stream has begun."""
        ...

    def text(self, text: str, *, reasoning: bool = False) -> None:
        """The next piece of text."""
        ...


class Model(Protocol):
    """A model that can be asked. One call of `respond` is one attempt: it never retries."""

    @property
    def info(self) -> ModelInfo: ...

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """Ask, and block until the whole answer is there (runner thread).

        Raises ModelFailed or ModelAborted and nothing else. Once `cancel` is pulled its socket is shut at once
        and the call returns soon, in whatever phase it is; nobody waits for it.
        """
        ...


class ModelCatalog(Protocol):
    """The models that this server offers. Any thread."""

    @property
    def default(self) -> str: ...

    def list(self) -> tuple[ModelInfo, ...]: ...

    def get(self, name: str) -> Model | None:
        """The model, or None if it is not served; never a substitute (C43)."""
        ...


# --- processes ------------------------------------------------------------------------------------------------


class ProcessLimits(Struct, frozen=True):
    """What one tool may use; 0: no limit."""

    wall_seconds: float = 0
    cpu_seconds: int = 0
    memory_bytes: int = 2 << 30
    file_bytes: int = 1 << 30
    open_files: int = 1024
    processes: int = 512


class Launch(Struct, frozen=True):
    """A program to run as a tool."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    """Complete: nothing of the server's environment is added."""
    mode: Mode
    limits: ProcessLimits = ProcessLimits()
    stdin: bytes = b""
    output_bytes: int = 128 * 1024
    """Of merged stdout and stderr: kept at most, head and tail."""


class ProcessEnd(Struct, frozen=True):
    """How a program ended, and that nothing of its tree is left."""

    exit_code: int | None
    """None if a signal ended it."""
    signal: int | None
    head: bytes
    """The output, or its first part when some was cut."""
    tail: bytes
    """The last part when some was cut, else b""."""
    cut_bytes: int
    """How much was left out between head and tail."""
    duration_ms: int
    reaped: tuple[int, ...]
    """Process ids (as the server sees them) of the tree that had to be killed."""
    killed: bool = False
    """kill() or a limit ended it."""
    leaked: bool = False
    """True: the tree could not be confirmed dead within the bound."""
    limit: str = ""
    """The limit that ended it: "wall", "" if none."""


class ProcessStartFailed(Exception):
    """The program provably did not begin (fork failed, …): safe to try again."""


class SandboxUnavailable(Exception):
    """A restriction was asked for that cannot be kept here: nothing was started (fail closed)."""


class RunningProcess(Protocol):
    """A program and its whole tree, inside its tool host."""

    def kill(self) -> None:
        """SIGKILL the whole tree. Any thread; never blocks; twice is once."""
        ...

    def wait(self) -> ProcessEnd:
        """Block until the program ended and its tree is gone (tool thread). Once."""
        ...


class SandboxReport(Struct, frozen=True):
    """What this machine can enforce, probed at start."""

    tier: str
    """"A", "B" or "none"."""
    landlock_abi: int
    pid_namespace: bool
    reason: str = ""
    """Why the tier is not better, for people."""

    @property
    def restriction_available(self) -> bool:
        return self.tier != "none"


class Sandbox(Protocol):
    """Starts programs so that they can always be stopped."""

    @property
    def report(self) -> SandboxReport: ...

    def start(self, launch: Launch, on_output: Callable[[bytes], None]) -> RunningProcess:
        """Start `launch` (tool thread). `on_output` is called on a thread of the sandbox, in order, never after
        `wait` returned.

        Raises ProcessStartFailed or SandboxUnavailable.
        """
        ...


# --- tools ----------------------------------------------------------------------------------------------------


class ToolContext(Struct, frozen=True):
    """What a running tool may use. Tools keep no state of a conversation on themselves."""

    conversation_id: str
    working_directory: str
    mode: Mode
    cancel: CancelToken
    sandbox: Sandbox
    clock: Clock
    on_output: Callable[[str], None]
    """Live output for watchers."""
    track: Callable[[RunningProcess], None]
    """Call with every process right after its start: cancel kills it without asking the tool."""
    reaped: Callable[[tuple[int, ...]], None]
    """Call with ProcessEnd.reaped of every process that ended: pids for the cancel receipt."""


class ToolOutput(Struct, frozen=True):
    """What a tool answers. `text` is what the model reads, already capped."""

    text: str
    is_error: bool = False
    images: tuple[Image, ...] = ()
    display: str = ""
    """JSON text for people, or ""."""


class ToolInputInvalid(Exception):
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

        Raises ToolTransientError or SandboxUnavailable; anything else is a bug and becomes an error result.
        """
        ...


class Toolbox(Protocol):
    """The tools of this server. Any thread."""

    def specs(self, *, sub_agent: bool) -> tuple[ToolSpec, ...]:
        """What a conversation of this kind is offered, in the order the model sees it."""
        ...

    def get(self, name: str) -> Tool | None: ...

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        """Raw JSON text to validated arguments; raises ToolInputInvalid."""
        ...


# --- the store ------------------------------------------------------------------------------------------------


class ConversationRecord(Struct, frozen=True):
    """A conversation's row: everything about it but its messages and log."""

    id: str
    slug: str
    cwd: str
    state: State
    state_updated_at: int
    created_at: int
    updated_at: int
    mode: Mode
    model: str
    principal: str
    parent_conversation_id: str | None = None
    user_initiated: bool = True
    archived_at: int | None = None
    title: str = ""
    labels: dict[str, str] = {}
    system_prompt: str = ""
    """Frozen at creation: the provider's prefix never changes."""
    approval_policy: ApprovalPolicy = ApprovalPolicy.AUTO
    always_approved: tuple[str, ...] = ()
    follow_up_policy: FollowUpPolicy = FollowUpPolicy.ALWAYS
    budget: Budget = Budget()
    continued_from: str = ""
    continued_by: str = ""
    node: str = ""
    epoch: int = 0
    """Of the actor that owns it; a commit with another epoch is fenced."""
    step: int = 0
    """Number of the last log row."""
    last_seq: int = 0
    """The last revision."""
    log_hash: str = ""
    """Hash of the last log row."""
    workspace_label: str = ""


class LogEntry(Struct, frozen=True):
    """One transition: journal, audit and the events it gave rise to."""

    step: int
    at: int
    event: bytes
    """The input event as JSON."""
    first_revision: int
    """Revision of the first notification; they count up by one."""
    notifications: tuple[Durable, ...]
    context: bytes | None = None
    """The context as JSON, whenever it is not that of the row before."""


class CommandRecord(Struct, frozen=True):
    """An accepted command, remembered for ever by its request id."""

    request_id: str
    body_hash: str
    answer: bytes
    """The answer as JSON, to give again."""
    at: int


class Commit(Struct, frozen=True):
    """What one chain of transitions writes for one conversation, atomically."""

    record: ConversationRecord
    """The row as it will be; log_hash is filled in by the store."""
    expected_step: int
    """`step` of the row as it is; 0 with `create`."""
    messages: tuple[Message, ...] = ()
    log: tuple[LogEntry, ...] = ()
    command: CommandRecord | None = None
    create: bool = False
    create_command: bool = False
    """`command` belongs to (principal, request id) instead of (conversation, request id)."""


class JournalRow(Struct, frozen=True):
    """One transition as it was stored, for replay and export."""

    step: int
    epoch: int
    at: int
    event: bytes
    context: bytes | None
    """None: that of the row before."""
    first_revision: int
    notifications: tuple[Durable, ...]
    prev_hash: str
    hash: str


class StoredEvent(Struct, frozen=True):
    """A durable event as watchers read it."""

    revision: int
    at: int
    notification: Durable


class Snapshot(Struct, frozen=True):
    """One consistent view: record, messages and head revision of the same moment."""

    record: ConversationRecord
    messages: tuple[Message, ...]


class Attachment(Struct, frozen=True):
    """Stored bytes by content hash."""

    id: str
    media_type: str
    data: bytes
    width: int
    height: int


class StoreError(Exception):
    """Base of the store's refusals; nothing was written."""


class StoreUnavailable(StoreError):
    """Disk full, I/O error, closed: may work later."""


class Fenced(StoreError):
    """Another owner wrote: this actor's state is no longer the truth."""


class SlugTaken(StoreError):
    """UNIQUE(slug)."""


class CommandExists(StoreError):
    """(conversation or principal, request id) is there already."""


class RevisionTooOld(StoreError):
    """The log no longer has the events after this revision."""

    def __init__(self, text: str = "", *, oldest: int = 0) -> None:
        super().__init__(text)
        self.oldest = oldest
        """The oldest revision whose later events are all kept."""


class StoreDamaged(StoreError):
    """What is stored cannot be read back: a broken file, or a row that is not what was written."""


class StoreUnusable(StoreError):
    """The store cannot be opened; the text says why: read-only, not a database, a newer schema."""


class DataDirectoryBusy(StoreError):
    """Another process holds the data directory."""

    def __init__(self, path: Path, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(f"the data directory {path} is in use by {holder}")
        self.path = path
        self.pid = pid
        """0 if it is not known."""


class Store(Protocol):
    """Durable memory. Reads see only what is committed. Any thread; reads and commits block briefly.

    Reads raise StoreUnavailable or StoreDamaged.
    """

    def commit(self, *parts: Commit, urgent: bool = False) -> None:
        """Write all parts in one transaction and return once it is durable. `urgent` ones go first.

        Raises StoreUnavailable, Fenced, SlugTaken or CommandExists; ValueError if the parts contradict themselves.
        """
        ...

    def delete(self, conversation_id: str) -> None:
        """Remove the conversation, its sub-agents and everything of theirs."""
        ...

    def load(self, conversation_id: str) -> ConversationRecord | None: ...

    def find_slug(self, slug: str) -> str | None:
        """The id of the conversation with this slug."""
        ...

    def list(
        self,
        *,
        principal: str,
        archived: bool,
        parent: str | None,
        before: tuple[int, str] | None,
        limit: int,
    ) -> tuple[ConversationRecord, ...]:
        """Latest updated first; `before` is (updated_at, id) of the last one seen; parent=None lists only
        what people started."""
        ...

    def children(self, conversation_id: str) -> tuple[str, ...]:
        """Ids of all sub-agents of a conversation."""
        ...

    def unsettled(self) -> tuple[str, ...]:
        """Ids of the conversations that a restart must bring to rest: neither idle nor terminal, and sub-agents
        that are not terminal."""
        ...

    def messages(
        self,
        conversation_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        descending: bool = False,
    ) -> tuple[Message, ...]: ...

    def history(self, conversation_id: str, through: int) -> tuple[Message, ...]:
        """Every message up to this sequence, in order."""
        ...

    def events(self, conversation_id: str, *, after: int, limit: int) -> tuple[StoredEvent, ...]:
        """Durable events after this revision, in order, gap-free; raises RevisionTooOld."""
        ...

    def snapshot(self, conversation_id: str, recent_messages: int) -> Snapshot | None:
        """Record and latest messages from one read transaction."""
        ...

    def journal(self, conversation_id: str, *, after_step: int, limit: int) -> tuple[JournalRow, ...]:
        """Transitions after this step, in order."""
        ...

    def verify(self, conversation_id: str) -> tuple[str, ...]:
        """What is wrong with what is stored, in words, nothing repaired: the hash chain, gaps in steps, revisions
        and messages, messages that are not what the log says. Empty if all is well."""
        ...

    def prune_log(self, conversation_id: str, before_revision: int) -> None:
        """Drop the log's transitions whose events all lie before this revision, never the latest one's."""
        ...

    def command(self, conversation_id: str, request_id: str) -> CommandRecord | None: ...

    def create_command(self, principal: str, request_id: str) -> CommandRecord | None: ...

    def put_attachment(self, conversation_id: str, attachment: Attachment) -> None: ...

    def attachment(self, conversation_id: str, attachment_id: str) -> Attachment | None: ...

    def close(self) -> None:
        """Write what was accepted, then close every connection; idempotent."""
        ...


# --- watchers, owners, workspaces ---------------------------------------------------------------------------------


class EventBus(Protocol):
    """Tells watchers that something is there. Any thread; never blocks."""

    def publish(
        self, conversation_id: str, events: tuple[StoredEvent, ...], record: ConversationRecord | None = None
    ) -> None:
        """Committed events, in order, and the conversation after them."""
        ...

    def token(self, conversation_id: str, token: Token) -> None:
        """Passing text of the request under way."""
        ...

    def tool_output(self, conversation_id: str, tool_use_id: str, text: str) -> None:
        """Passing output of the tool under way."""
        ...

    def deleted(self, conversation_id: str) -> None:
        """The conversation is gone."""
        ...


class Workspace(Protocol):
    """The directories that conversations work in. Any thread; may touch the disk."""

    def check(self, path: str) -> str:
        """The real path of an existing directory; raises ValueError with a text for people."""
        ...
