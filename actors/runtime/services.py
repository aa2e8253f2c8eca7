"""The services that all actors of a process share: adapters, clock, ids and timers; and the checks that need them."""

from __future__ import annotations

import heapq
import itertools
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec.structs import replace

from actors import ports
from actors.core.content import Content, ToolUse, tool_uses
from actors.core.context import ApprovalPolicy, ApprovalRule, CallSubject, ConvContext, Limits, Mode, wider
from actors.core.errors import LlmFailure, Reason, Rejected
from actors.core.steps.approvals import REQUEST_MODE_UPGRADE, requested_mode
from actors.core.steps.runs import SUBMISSIONS, SUBMIT_OUTPUT
from actors.ports.cluster import Cluster
from actors.ports.models import fixed_tokens
from actors.ports.sandbox import ALL_PERMISSIONS, ConfinedSandbox, PermissionsOf, everything
from actors.ports.telemetry import Telemetry
from actors.ports.tools import McpServers, NoMcpServers
from actors.runtime.admission import FileRoom
from actors.runtime.offered_tools import for_model, spec_of
from actors.runtime.quotas import MOST_MODEL_REQUESTS, QuotaBook, QuotaSettings

log = logging.getLogger(__name__)

# The context window, in tokens, assumed for a model that no provider serves now; requests to it are refused.
UNKNOWN_MODEL_WINDOW = 8_192


# Characters that are easy to tell apart; because there are 32, a random byte selects each equally often.
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_ADJECTIVES = "amber bold calm clear dry early even fair fast fine keen kind late mild neat new quick quiet".split()
_NOUNS = "ash bay beam brook cape cliff cove dale dune fern field fjord glen grove marsh mesa peak reef".split()
_CONVERSATION_ID = re.compile(rf"[{_ALPHABET}]{{16}}(-a[0-9]+)*")


class SystemClock:
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def has_form_of_id(text: str) -> bool:
    """Whether `text` has the form of the id of a conversation or sub-agent; slugs must not have this form."""
    return _CONVERSATION_ID.fullmatch(text) is not None


class RandomIds:
    def conversation(self) -> str:
        return _token(16)

    def message(self) -> str:
        return "m-" + _token(16)

    def slug(self) -> str:
        return f"{secrets.choice(_ADJECTIVES)}-{secrets.choice(_NOUNS)}-{_token(4)}"


def _token(length: int) -> str:
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(length))


# A timer: when it is due (monotonic seconds), its number, which orders timers due at the same time, and its callback.
Timer: TypeAlias = tuple[float, int, Callable[[], object]]


class Timers:
    """Runs callbacks after a delay, on the timer thread. Callbacks must not block. Thread-safe."""

    def __init__(self, clock: ports.Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: list[Timer] = []
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="bedrock-timers", daemon=True)
        self._thread.start()

    def after(self, milliseconds: int, callback: Callable[[], object]) -> Timer:
        """Run `callback` once after `milliseconds`, unless the timers are closed earlier."""
        timer = (self._clock.monotonic() + milliseconds / 1000, next(self._order), callback)
        with self._changed:
            if not self._closed:
                heapq.heappush(self._due, timer)
                self._changed.notify()
        return timer

    def cancel(self, timer: Timer) -> None:
        """Remove a timer; has no effect if it has fired or is firing."""
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
                log.exception("a timer callback failed")

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
    return QuotaBook(QuotaSettings(), SystemClock())


@dataclass(frozen=True, kw_only=True)
class AgentLimits:
    """Limits of sub-agents. `max_turns` is the most that a task may ask for; the default is in `core.context`."""

    per_call: int = 10
    """The maximum number of sub-agents that one call starts. The next call can come only after all have ended."""
    at_once: int = 50
    """The maximum number of running sub-agents in the process. Any further one fails, and its parent gets an error."""
    max_turns: int = 100
    timeout_ms: int = 20 * 60_000
    min_timeout_ms: int = 1_000
    max_timeout_ms: int = 2 * 60 * 60_000
    task_bytes: int = 16 * 1024
    files: int = 10
    """The maximum number of files that a sub-agent gets at its start."""
    file_bytes: int = 64 * 1024
    """The maximum bytes of a sub-agent's files together.

    They also have at most as many bytes as the usable window has tokens, and thus fill about a quarter of it.
    """


@dataclass(frozen=True, kw_only=True)
class Services:
    store: ports.Store
    bus: ports.EventBus
    models: ports.ModelCatalog
    toolbox: ports.Toolbox
    sandbox: ports.Sandbox
    clock: ports.Clock
    ids: ports.Ids
    faults: ports.FaultPoints
    workspace: ports.Workspace
    timers: Timers
    images: ports.Images = field(default_factory=ports.NoImages)
    limits: Limits = field(default_factory=Limits)
    agents: AgentLimits = field(default_factory=AgentLimits)
    idle_seconds: float = 30.0
    """How long an idle conversation keeps its threads, in seconds."""
    max_llm_requests: int = MOST_MODEL_REQUESTS
    """The maximum number of model requests in flight in the process; a further request fails and can be retried."""
    files: FileRoom = field(default_factory=FileRoom)
    """Admits work only while enough file descriptors are free."""
    mcp: McpServers = field(default_factory=NoMcpServers)
    permissions: PermissionsOf = everything
    telemetry: Telemetry = field(default_factory=Telemetry)
    approval_rules: tuple[ApprovalRule, ...] = ()
    """The operator's approval rules, which apply to all conversations."""
    quotas: QuotaBook = field(default_factory=unlimited)
    titles: bool = False
    """Whether conversations without a title get one that is generated from their first message."""
    cluster: Cluster = field(default_factory=Cluster)
    """The servers that share the store; by default this server is the only one."""
    node: str = "local"

    def context_of(self, record: ports.ConversationRecord) -> ConvContext:
        """The facts about a stored conversation that the state machine reads, such as settings and limits."""
        permissions = self.permissions(record.principal)
        window, images = self.window_and_images(record.model)
        return ConvContext(
            conversation_id=record.id,
            working_dir=record.cwd,
            model_id=record.model,
            usable_window=window,
            date=ports.date_of(self.clock.now_ms()),
            prompt_date=ports.date_of(record.created_at),
            takes_images=images,
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

    def sandbox_of(self, principal: str) -> ports.Sandbox:
        """The sandbox for programs of this principal, which enforces the principal's permissions."""
        permissions = self.permissions(principal)
        return self.sandbox if permissions == ALL_PERMISSIONS else ConfinedSandbox(self.sandbox, permissions)

    def usable_window(self, model: str) -> int:
        """How many tokens the messages may fill; changes at most once, when the provider reports the limits."""
        return self.window_and_images(model)[0]

    def window_assumed(self, model: str) -> bool:
        """Whether the model's context window is not known but assumed."""
        served = self.models.get(model)
        return served is not None and not served.info.known

    def fixed_tokens(self, record: ports.ConversationRecord) -> int:
        """Estimate the tokens that each request of a conversation contains: its system prompt and its tools."""
        served = self.models.get(record.model)
        tools = for_model(served.info, self.offered(record), record.state.ledger.run_mode) if served else ()
        return fixed_tokens(record.system_prompt, tools)

    def window_and_images(self, model: str) -> tuple[int, bool]:
        """A model's usable window, and whether requests to it contain images (not if its provider has refused one)."""
        served = self.models.get(model)
        info = served.info if served else None
        return (info.usable_window, info.images) if info else (UNKNOWN_MODEL_WINDOW, True)

    def offered(self, record: ports.ConversationRecord) -> tuple[ports.ToolSpec, ...]:
        """The tools offered to a conversation, in the order that the model sees.

        The conversation's creator may limit the built-in tools; sub-agents have a default set.
        """
        ours, chosen = self.toolbox.specs(sub_agent=not record.user_initiated), record.profile.tools
        if chosen is not None:
            ours = tuple(spec for spec in ours if spec.name in chosen)
        permissions = self.permissions(record.principal)
        if permissions.refusal(Mode.WORKSPACE) and permissions.refusal(Mode.UNRESTRICTED):
            ours = tuple(spec for spec in ours if spec.name != REQUEST_MODE_UPGRADE)
        return (*ours, *self.mcp.offered(record.id), *map(spec_of, record.profile.client_tools))


def working_directory(services: Services, path: str, principal: str) -> str:
    """The real path of a directory in which the principal may work. Raises Rejected for any other directory."""
    try:
        return services.workspace.check(path, services.permissions(principal).roots)
    except ValueError as error:
        raise Rejected(Reason.WORKING_DIRECTORY_INVALID, f"working_directory: {error}") from None


def offered_model(services: Services, name: str, principal: str) -> ports.Model:
    """A requested model. Raises Rejected unless the principal may use it and a provider serves it.

    Where a provider lists its models itself, that list must have been read (`runners.request_builder.learn_models`).
    """
    if not services.permissions(principal).allows_model(name):
        raise Rejected(Reason.MODEL_UNAVAILABLE, f"this principal is not allowed to use model {name}")
    if not services.models.offers(name):
        raise Rejected(Reason.MODEL_UNAVAILABLE, model_refusal(services, name, principal).message)
    return served_model(services, name)


def model_refusal(services: Services, name: str, principal: str) -> LlmFailure:
    """Why no provider serves a model. For a principal limited to some models, the message lists no models."""
    failure = services.models.refusal(name)
    if services.permissions(principal).models is None:
        return failure
    return replace(failure, message=f"model {name!r} is not available; ListModels lists the available models")


def served_model(services: Services, name: str) -> ports.Model:
    model = services.models.get(name)
    if model is None:
        raise Rejected(Reason.MODEL_UNAVAILABLE, services.models.refusal(name).message)
    return model


def check_images(services: Services, model: str) -> None:
    """Raise Rejected (IMAGE_INVALID) if it is known that a conversation's model takes no images."""
    if not services.window_and_images(model)[1]:
        text = (
            f"model {model} does not accept images: send the message without them, or choose another model. If it does "
            f'accept them, set images = true in [models."{model}"] in the server\'s settings, and restart the server'
        )
        raise Rejected(Reason.IMAGE_INVALID, text)


def check_images_in(services: Services, conversation_id: str) -> None:
    """Like `check_images`, for a stored conversation, if it exists. Blocks. Raises Rejected or StoreError."""
    record = services.store.load(conversation_id)
    if record is not None:
        check_images(services, record.model)


def initial_mode(services: Services, wanted: Mode | None, cwd: str, principal: str) -> Mode:
    """`wanted`, unless it is None; then restricted mode if the sandbox can enforce that, else unrestricted mode.

    Raises Rejected if the principal's conversations cannot have this mode in this directory.
    """
    narrowest = Mode.RESTRICTED if services.sandbox.report.restriction_available else Mode.UNRESTRICTED
    mode = wanted or narrowest
    check_mode(services, mode, cwd, principal)
    return mode


def check_mode(services: Services, mode: Mode, cwd: str, principal: str) -> None:
    reason = services.sandbox_of(principal).mode_refusal(mode, cwd)
    if reason:
        report = services.sandbox.report
        offered = report.restriction_available or not report.by_setting
        text = f"{mode.value} mode is not {'supported' if offered else 'offered'} on this server"
        is_about_cwd = report.workspace_available and reason == services.sandbox.mode_refusal(Mode.WORKSPACE, cwd)
        raise Rejected(Reason.MODE_UNAVAILABLE, f"{text}: {reason}", "directory" if is_about_cwd else "")


def tool_for(services: Services, context: ConvContext, name: str, given: str) -> tuple[ports.Tool, Mapping[str, Any]]:
    """The tool and the arguments of a call. Raises InvalidToolInputError for an unknown tool or an invalid input."""
    offered = [traits.name for traits in context.tools]
    # Sub-agents get no MCP tools.
    mcp_tool = services.mcp.tool(name, context.conversation_id) if name in offered else None
    tool = mcp_tool or services.toolbox.get(name)
    if tool is not None and name not in offered and not context.is_sub_agent:
        there_are = f"The tools are: {', '.join(offered)}." if offered else "There are none."
        raise ports.InvalidToolInputError(f"There is no tool {name!r} in this conversation. {there_are}")
    arguments = services.toolbox.parse(name, given) if mcp_tool is None else ports.parse_arguments(name, given)
    if tool is None:
        raise ports.InvalidToolInputError(f"{name} is not available in this conversation.")
    return tool, arguments


def with_refusals(
    services: Services, record: ports.ConversationRecord, content: tuple[Content, ...]
) -> tuple[Content, ...]:
    """An answer's content with `bad_input` set in those calls to the server's tools that cannot run."""
    if not tool_uses(content):
        return content
    context = services.context_of(record)
    others = {tool.name for tool in record.profile.client_tools}
    others |= SUBMISSIONS if context.is_sub_agent else {SUBMIT_OUTPUT}
    return tuple(
        replace(block, bad_input=_refusal(services, context, record.principal, block))
        if isinstance(block, ToolUse) and block.name not in others
        else block
        for block in content
    )


def _refusal(services: Services, context: ConvContext, principal: str, call: ToolUse) -> str:
    try:
        tool_for(services, context, call.name, call.input)
    except ports.InvalidToolInputError as invalid:
        return str(invalid)
    mode = requested_mode(call) if call.name == REQUEST_MODE_UPGRADE else context.mode
    if not wider(mode, context.mode):
        return ""
    why = services.sandbox_of(principal).mode_refusal(mode, context.working_dir)
    still = f"The mode is still {context.mode.value}."
    return f"{mode.value.capitalize()} mode is not available: {why}. {still}" if why else ""


def call_subjects(
    services: Services, record: ports.ConversationRecord, content: tuple[Content, ...]
) -> tuple[CallSubject, ...]:
    """The subject of each tool call (commands, paths, a mode); () if no approval can depend on the subjects."""
    calls = tuple(tool_uses(content))
    ruled = record.approval_policy is not ApprovalPolicy.AUTO or record.approval_rules or services.approval_rules
    if not ruled and all(call.name != REQUEST_MODE_UPGRADE for call in calls):
        return ()
    return tuple(_subject(services, record, call) for call in calls)


def _subject(services: Services, record: ports.ConversationRecord, call: ToolUse) -> CallSubject:
    if call.name != REQUEST_MODE_UPGRADE:
        return services.toolbox.subject(call, record.cwd, services.permissions(record.principal).roots)
    narrower = wider(requested_mode(call), Mode.WORKSPACE) and wider(Mode.WORKSPACE, record.mode)
    refusal = services.sandbox_of(record.principal).mode_refusal(Mode.WORKSPACE, record.cwd)
    return CallSubject(workspace=narrower and not refusal)
