"""The services that all actors of a process share: adapters, settings, and the clock, ids and timers of the process."""

from __future__ import annotations

import heapq
import itertools
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from actors.core.approval.approval_rules import ApprovalRule
from actors.core.context import ConvContext, Limits, Mode
from actors.core.steps.approvals import REQUEST_MODE_UPGRADE
from actors.ports import (
    Clock,
    ConversationRecord,
    EventBus,
    FaultPoints,
    Ids,
    Images,
    ModelCatalog,
    NoImages,
    Sandbox,
    Store,
    Toolbox,
    ToolSpec,
    Workspace,
    date_of,
)
from actors.ports.cluster import ONE_NODE, Cluster
from actors.ports.mcp import McpServers, NoMcpServers
from actors.ports.models import fixed_tokens
from actors.ports.permissions import EVERYTHING, PermissionsOf, everything
from actors.ports.sandbox.confined_sandbox import ConfinedSandbox
from actors.ports.telemetry import Telemetry
from actors.runtime.admission import FileRoom
from actors.runtime.quotas import MOST_MODEL_REQUESTS, QuotaBook, QuotaSettings
from actors.runtime.validation import for_model, spec_of

log = logging.getLogger(__name__)

UNKNOWN_MODEL_WINDOW = 8_192
"""The context window, in tokens, assumed for a model that no provider serves any more; requests to it are refused."""


_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""32 letters and digits that are easy to tell apart.

As 256 is a multiple of 32, a random byte selects each of them equally often.
"""
_ADJECTIVES = "amber bold calm clear dry early even fair fast fine keen kind late mild neat new quick quiet".split()
_NOUNS = "ash bay beam brook cape cliff cove dale dune fern field fjord glen grove marsh mesa peak reef".split()
_CONVERSATION_ID = re.compile(rf"[{_ALPHABET}]{{16}}(-a[0-9]+)*")


class SystemClock:
    """The clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def has_form_of_id(text: str) -> bool:
    """Return whether `text` has the form of the id of a conversation or sub-agent; slugs must not have this form."""
    return _CONVERSATION_ID.fullmatch(text) is not None


class RandomIds:
    """Creates unguessable ids, and readable slugs."""

    def conversation(self) -> str:
        return _token(16)

    def message(self) -> str:
        return "m-" + _token(16)

    def slug(self) -> str:
        return f"{secrets.choice(_ADJECTIVES)}-{secrets.choice(_NOUNS)}-{_token(4)}"


def _token(length: int) -> str:
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(length))


Timer: TypeAlias = tuple[float, int, Callable[[], object]]
"""When the timer is due (monotonic seconds), its number, which orders timers with the same time, and its callback."""


class Timers:
    """Runs callbacks after a delay.

    Safe to call from any thread; callbacks run on the timer thread and must not block.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: list[Timer] = []
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bedrock-timers", daemon=True)
        self._thread.start()

    def after(self, milliseconds: int, callback: Callable[[], object]) -> Timer:
        """Run `callback` once after `milliseconds`, unless the timers are closed earlier.

        Return the timer, for `cancel`.
        """
        timer = (self._clock.monotonic() + milliseconds / 1000, next(self._order), callback)
        with self._changed:
            if not self._closed:
                heapq.heappush(self._due, timer)
                self._changed.notify()
        return timer

    def cancel(self, timer: Timer) -> None:
        """Remove a timer; without effect if it has fired or is just firing."""
        with self._changed:
            if timer in self._due:
                self._due.remove(timer)
                heapq.heapify(self._due)

    def close(self) -> None:
        """Drop all timers, wait for a running callback and end the thread. Idempotent. Do not call it in a callback."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (callback := self._next()) is not None:
            try:
                callback()
            except BaseException:  # a failing callback must not prevent the others
                log.exception("a timer's callback failed")

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while not self._closed:
                if not self._due:
                    self._changed.wait()
                    continue
                wait = self._due[0][0] - self._clock.monotonic()
                if wait <= 0:
                    return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
            return None


def unlimited() -> QuotaBook:
    """Return a QuotaBook for a server without quotas."""
    return QuotaBook(QuotaSettings(), SystemClock())


@dataclass(frozen=True, kw_only=True)
class AgentLimits:
    """Limits of sub-agents.

    `max_turns` is the largest number of turns that a task may ask for. The default number is in `Limits.max_turns` of
    the state machine.
    """

    per_call: int = 10
    """The maximum number of sub-agents that one call starts. The next call can come only after all have ended."""
    at_once: int = 50
    """The maximum number of running sub-agents in the process. Any further one fails, and its parent gets an error."""
    max_turns: int = 100
    timeout_ms: int = 20 * 60_000
    """The default time limit of a sub-agent, in milliseconds."""
    min_timeout_ms: int = 1_000
    max_timeout_ms: int = 2 * 60 * 60_000
    task_bytes: int = 16 * 1024
    """The maximum size of a task's text in UTF-8, in bytes."""
    files: int = 10
    """The maximum number of files that a sub-agent gets at its start."""
    file_bytes: int = 64 * 1024
    """The maximum size of all files of one sub-agent together, in bytes.

    The files may also have no more bytes than the model's usable context window has tokens. As a token is about four
    bytes, they fill at most about a quarter of the window.
    """


@dataclass(frozen=True, kw_only=True)
class Services:
    """The adapters and settings that all actors of the process share."""

    store: Store
    bus: EventBus
    models: ModelCatalog
    toolbox: Toolbox
    sandbox: Sandbox
    clock: Clock
    ids: Ids
    faults: FaultPoints
    workspace: Workspace
    timers: Timers
    images: Images = field(default_factory=NoImages)
    limits: Limits = field(default_factory=Limits)
    agents: AgentLimits = field(default_factory=AgentLimits)
    idle_seconds: float = 30.0
    """How long an idle conversation keeps its thread, in seconds."""
    max_llm_requests: int = MOST_MODEL_REQUESTS
    """The maximum number of model requests in flight in the process; a further request fails and can be retried."""
    files: FileRoom = field(default_factory=FileRoom)
    """Admits work only while enough file descriptors are free."""
    mcp: McpServers = field(default_factory=NoMcpServers)
    """The MCP servers, whose tools conversations can use in addition to the built-in ones in `toolbox`."""
    permissions: PermissionsOf = everything
    """A function that returns what a principal may do."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    """Observes the work of the server, for logs, metrics and traces."""
    approval_rules: tuple[ApprovalRule, ...] = ()
    """The operator's approval rules, which apply to all conversations."""
    quotas: QuotaBook = field(default_factory=unlimited)
    """Counts how much of its quotas each principal uses."""
    titles: bool = False
    """Whether conversations without a title get one that is generated from their first message."""
    cluster: Cluster = ONE_NODE
    """The servers that share the store; by default this server is the only one."""
    node: str = "local"

    def context_of(self, record: ConversationRecord) -> ConvContext:
        """Return what the state machine needs to know about a stored conversation, e.g. settings and limits."""
        permissions = self.permissions(record.principal)
        return ConvContext(
            conversation_id=record.id,
            working_dir=record.cwd,
            model_id=record.model,
            usable_window=self.usable_window(record.model),
            date=date_of(self.clock.now_ms()),
            prompt_date=date_of(record.created_at),
            takes_images=self.takes_images(record.model),
            is_sub_agent=not record.user_initiated,
            mode=record.mode,
            restriction_available=self.sandbox.report.restriction_available,
            workspace_available=self.sandbox.report.workspace_available and not permissions.refusal(Mode.WORKSPACE),
            unrestricted_available=not permissions.refusal(Mode.UNRESTRICTED),
            approval_policy=record.approval_policy,
            approval_rules=(*self.approval_rules, *record.approval_rules),
            follow_up_policy=record.follow_up_policy,
            budget=record.budget,
            limits=self.limits,
            tools=tuple(spec.traits for spec in self.offered(record)),
            quota_spent=self.quotas.spent(record.principal),
        )

    def sandbox_of(self, principal: str) -> Sandbox:
        """Return the sandbox for programs of this principal, which enforces the principal's permissions."""
        permissions = self.permissions(principal)
        return self.sandbox if permissions == EVERYTHING else ConfinedSandbox(self.sandbox, permissions)

    def usable_window(self, model: str) -> int:
        """Return how many tokens of the model's context window the messages may fill.

        The number changes at most once, when the provider reports the model's limits.
        """
        served = self.models.get(model)
        return served.info.usable_window if served else UNKNOWN_MODEL_WINDOW

    def window_assumed(self, model: str) -> bool:
        """Return whether the model's context window is not known but assumed."""
        served = self.models.get(model)
        return served is not None and not served.info.known

    def fixed_tokens(self, record: ConversationRecord) -> int:
        """Estimate the tokens that each request of a conversation contains: its system prompt and its tools."""
        served = self.models.get(record.model)
        tools = for_model(served.info, self.offered(record), record.state.ledger.run_mode) if served else ()
        return fixed_tokens(record.system_prompt, tools)

    def takes_images(self, model: str) -> bool:
        """Return whether requests to the model contain images; False once its provider has refused one."""
        served = self.models.get(model)
        return served is None or served.info.images

    def offered(self, record: ConversationRecord) -> tuple[ToolSpec, ...]:
        """Return the tools that a conversation is offered, in the order in which the model sees them.

        The creator of a conversation may restrict the built-in tools; a sub-agent gets the default set.
        """
        ours, chosen = self.toolbox.specs(sub_agent=not record.user_initiated), record.profile.tools
        if chosen is not None:
            ours = tuple(spec for spec in ours if spec.name in chosen)
        permissions = self.permissions(record.principal)
        if permissions.refusal(Mode.WORKSPACE) and permissions.refusal(Mode.UNRESTRICTED):
            ours = tuple(spec for spec in ours if spec.name != REQUEST_MODE_UPGRADE)
        return (*ours, *self.mcp.offered(record.id), *map(spec_of, record.profile.client_tools))
