"""Creates conversations: for a client, as a sub-agent, or as the successor of one whose context is full.

Call only on the actor's thread.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from actors import messages, ports
from actors.conversation import command_results, settings
from actors.conversation.command_results import command_record, created_by, known_command, known_create
from actors.conversation.forking import forked_conversation, stored_bytes
from actors.conversation.pipeline import ConversationPipeline, LoadedConversation
from actors.conversation.system_prompt import left_out, sub_agent_prompt, system_prompt
from actors.conversation.unit_of_work import UnitOfWork, attributed
from actors.core.content import Message, MessageType, SystemKind, Text, most_tokens, text_of
from actors.core.context import Budget, Mode, Profile
from actors.core.errors import Reason, Rejected
from actors.core.events import SpawnSubAgents, StartSubAgent
from actors.core.history.result_budget import cut_text, shares
from actors.core.notifications import MessageAdded
from actors.core.states import AgentTask, AwaitingContinuation, AwaitingSubAgents, ContextExhausted, Idle, Ledger
from actors.core.steps import runs
from actors.runners.sub_agents import agent_task, checked, task_refusal
from actors.runtime.offered_tools import check_generation, supported
from actors.runtime.services import Services, initial_mode, offered_model, served_model, working_directory

log = logging.getLogger(__name__)

MAX_TITLE = 80


def new_conversation(
    services: Services, conversation_id: str, request: messages.CreateConversationCommand, at: int
) -> tuple[ports.ConversationRecord, ports.Commit]:
    """A new conversation's record and commit.

    Raises Rejected (for the directory, model, generation, mode, tools or MCP servers) or InvalidFieldError (for tools
    or MCP servers).
    """
    profile = settings.checked_profile(services, request.profile)
    cwd = working_directory(services, request.working_directory, request.principal)
    model = request.model or services.models.default
    info = offered_model(services, model, request.principal).info
    check_generation(profile.generation, info)
    mode = initial_mode(services, request.mode, cwd, request.principal)
    if request.refuse_unoffered_tools:
        settings.check_offered(profile.client_tools, mode)
    surroundings = services.workspace.surroundings(cwd, services.permissions(request.principal).roots)
    record = ports.ConversationRecord(
        id=conversation_id,
        slug=request.slug or services.ids.slug(),
        cwd=cwd,
        state=Idle(),
        state_updated_at=at,
        created_at=at,
        updated_at=at,
        mode=mode,
        model=model,
        principal=request.principal,
        title=request.title,
        labels=request.labels,
        system_prompt=system_prompt(surroundings, mode, at, profile, lean=info.lean, small=info.small),
        profile=profile,
        approval_policy=request.approval_policy,
        follow_up_policy=request.follow_up_policy,
        budget=request.budget,
        node=services.node,
        epoch=1,
        step=1,
        workspace_label=services.cluster.label_of(cwd),
    )
    command = None
    if request.request_id:
        command = ports.CommandRecord(request.request_id, request.body_hash, conversation_id.encode(), at)
    return _created(record, left_out(surroundings, profile, lean=info.lean), command=command)


def new_successor(
    services: Services, unit: UnitOfWork, request: messages.ContinueConversationCommand, summary: str, at: int
) -> tuple[ports.ConversationRecord, ports.Commit]:
    """The successor's record and commit. The unit gets a link to the successor; the caller must commit both at once."""
    parent = unit.record
    info = served_model(services, parent.model).info
    surroundings = services.workspace.surroundings(parent.cwd, services.permissions(parent.principal).roots)
    successor = msgspec.structs.replace(
        parent,
        id=services.ids.conversation(),
        slug=services.ids.slug(),
        state=Idle(),
        state_updated_at=at,
        created_at=at,
        updated_at=at,
        archived_at=None,
        system_prompt=system_prompt(surroundings, parent.mode, at, parent.profile, lean=info.lean, small=info.small),
        continued_from=parent.id,
        continued_by="",
        epoch=1,
        step=1,
        revision=0,
        log_hash="",
    )
    summarised = ""
    if request.include_summary:
        summarised = f"This conversation continues an earlier one. Its summary:\n\n{summary}"
        if unanswered := _unanswered(services, unit, info.usable_window // _PART_LEFT_OVER):
            summarised += f"\n\n{_LEFT_OVER}\n\n{unanswered}"
    settings.change(unit, at, continued_by=successor.id)
    return _created(successor, left_out(surroundings, parent.profile, lean=info.lean), summarised)


_LEFT_OVER = (
    "These messages from the user were still waiting when the earlier conversation ran out of context. They have not "
    "been answered or acted on. Take them up when the user comes back to them:"
)


# The unanswered messages may fill a quarter of the usable window: its size divided by this.
_PART_LEFT_OVER = 4


def _unanswered(services: Services, unit: UnitOfWork, room: int) -> str:
    """The user messages after the last answer, as a Markdown list, cut to `room` tokens; "" if there are none."""
    last = unit.record.state.ledger.seq
    most = services.limits.max_queue + 1
    texts: list[str] = []
    stored = services.store.messages(unit.record.id, after=max(0, last - most), limit=most)
    for message in reversed((*stored, *unit.messages)):
        if message.type is not MessageType.USER:
            break
        texts.append(text_of(message.content) or "(an image)")
    given = shares([most_tokens(text) for text in texts], room)
    fitting = [cut_text(text, share) for text, share in zip(texts, given, strict=True)]
    return "\n\n".join(f"- {text}" for text in reversed(fitting))


def new_sub_agent(
    services: Services, parent: ports.ConversationRecord, task: AgentTask, at: int
) -> tuple[ports.ConversationRecord, ports.Commit]:
    """A sub-agent's record and commit. Raises Rejected (for the budget, working directory or model).

    The sub-agent's mode is restricted if the server can enforce that, because no user watches a sub-agent.
    """
    cwd = working_directory(services, task.cwd, parent.principal)
    info = served_model(services, task.model).info
    mode = Mode.RESTRICTED if services.sandbox.report.restriction_available else parent.mode
    surroundings = services.workspace.surroundings(cwd, services.permissions(parent.principal).roots)
    record = ports.ConversationRecord(
        id=task.agent_id,
        slug="",
        cwd=cwd,
        state=Idle(),
        state_updated_at=at,
        created_at=at,
        updated_at=at,
        mode=mode,
        model=task.model,
        principal=parent.principal,
        parent_conversation_id=parent.id,
        user_initiated=False,
        title=task.task.strip().partition("\n")[0][:MAX_TITLE],
        system_prompt=sub_agent_prompt(
            surroundings, mode, at, task.max_turns, task.timeout_ms, lean=info.lean, small=info.small
        ),
        profile=Profile(generation=supported(parent.profile.generation, info)),
        approval_policy=parent.approval_policy,
        approval_rules=parent.approval_rules,
        budget=_share(parent),
        node=services.node,
        epoch=1,
        step=1,
        workspace_label=parent.workspace_label,
    )
    return _created(record)


def _share(parent: ports.ConversationRecord) -> Budget:
    """The parent's remaining budget, divided among the new sub-agents. Raises Rejected if nothing is left."""
    ledger, state = parent.state.ledger, parent.state
    if spent := runs.spent(parent.budget, ledger):
        raise Rejected(Reason.BUDGET_REACHED, f"the budget of {spent} is spent")
    return runs.share(parent.budget, ledger, len(state.pending) if isinstance(state, AwaitingSubAgents) else 1)


def _created(
    record: ports.ConversationRecord,
    warning: str = "",
    summary: str = "",
    *,
    command: ports.CommandRecord | None = None,
) -> tuple[ports.ConversationRecord, ports.Commit]:
    """The record and the commit that creates it. Its history begins with `warning` and `summary`, if not empty."""
    begin = [(kind, text) for kind, text in ((SystemKind.NONE, warning), (SystemKind.SUMMARY, summary)) if text]
    added = tuple(
        Message(f"{record.id}:0:{n}", n, MessageType.SYSTEM, (Text(text),), record.created_at, kind=kind)
        for n, (kind, text) in enumerate(begin, 1)
    )
    if added:
        count = len(added)
        record = msgspec.structs.replace(record, state=Idle(Ledger(seq=count)), revision=count)
    notifications = tuple(MessageAdded(message) for message in added)
    chosen = None if record.profile == Profile() else record.profile
    created = msgspec.json.encode(messages.Created(record.created_at, record.principal, chosen))
    entry = ports.LogEntry(1, record.created_at, created, 1, notifications)
    return record, ports.Commit(
        record=record,
        expected_step=0,
        messages=added,
        log=(entry,),
        command=command,
        create=True,
        create_command=command is not None,
    )


def spawn_from_command(
    pipeline: ConversationPipeline, loaded: LoadedConversation, request: messages.SpawnSubAgentsCommand, at: int
) -> tuple[UnitOfWork, messages.SpawnSubAgentsResult]:
    """Begin a run with these sub-agents; the files named in their tasks have already been read.

    Raises Rejected, InvalidFieldError or TaskRefusedError.
    """
    record = loaded.record
    try:
        tasks = checked(
            pipeline.services, tuple(map(agent_task, request.tasks)), record.cwd, record.model, record.principal
        )
    except ports.SubAgentsRefusedError as refused:
        raise task_refusal(refused) from None
    unit, message_id = loaded.begin(), pipeline.services.ids.message()
    unit.run(SpawnSubAgents(at, message_id, tasks))
    if spent := runs.spent_for_good(record.budget, record.state.ledger):
        raise Rejected(Reason.BUDGET_REACHED, f"the budget of {spent} is spent: raise it to continue")
    return unit, command_results.spawn_result(unit, message_id)


def create_sub_agent(pipeline: ConversationPipeline, request: messages.CreateSubAgent) -> ports.ConversationRecord:
    """Create a sub-agent and start its task. Raises Rejected or StoreError."""
    services, task, at = pipeline.services, request.task, pipeline.now()
    services.faults.hit("create_sub_agent.before")
    record, commit = new_sub_agent(services, request.parent, task, at)
    services.store.commit(commit, urgent=True)
    pipeline.loaded = LoadedConversation(services, record)
    services.faults.hit("create_sub_agent.after")
    text = f"{task.task}\n\n{task.given}" if task.given else task.task
    pipeline.advance(StartSubAgent(at, services.ids.message(), text, task.max_turns))
    return record


# How many generated slugs are tried before creation fails because all of them are taken.
SLUG_TRIES = 10


def create(pipeline: ConversationPipeline, request: messages.CreatingCommand) -> ports.ConversationRecord:
    """Create the conversation, or return the one that the same request has created. Call only on the actor's thread.

    Raises Rejected, InvalidFieldError, SlugTakenError, UnknownConversationError or StoreError.
    """
    services = pipeline.services
    counted = not services.quotas.limits_stored
    for _ in range(SLUG_TRIES):
        known = known_create(services.store, request)
        if known is not None:
            return created_by(services.store, known)
        if not counted:
            services.quotas.check_stored(request.principal)
        record, commit = _first_commit(pipeline, request)
        if not counted:
            services.quotas.reserve_bytes(request.principal, stored_bytes(services.store, commit))
            counted = True
        if pipeline.origin is not None:
            first, *others = commit.log
            commit = replace(commit, log=(attributed(first, pipeline.origin), *others))
        try:
            services.store.commit(commit)
        except ports.CommandExistsError:
            continue
        except ports.FencedError:
            if commit.fork is None:
                raise
            raise messages.UnknownConversationError("the conversation to fork has been deleted") from None
        except ports.SlugTakenError:
            if request.slug:
                raise
            continue
        pipeline.loaded = LoadedConversation(services, record)
        services.bus.created(record)
        services.mcp.prepare(record)
        return record
    raise ports.SlugTakenError


def _first_commit(
    pipeline: ConversationPipeline, request: messages.CreatingCommand
) -> tuple[ports.ConversationRecord, ports.Commit]:
    services, new_id, at = pipeline.services, pipeline.conversation_id, pipeline.now()
    if isinstance(request, messages.ForkConversationCommand):
        try:
            return forked_conversation(services, new_id, request, at)
        except (Rejected, messages.InvalidFieldError):
            if services.store.load(request.origin) is None:  # the conversation was deleted while it was being read
                raise messages.UnknownConversationError("the conversation to fork has been deleted") from None
            raise
    return new_conversation(services, new_id, request, at)


def continue_exhausted(
    pipeline: ConversationPipeline, loaded: LoadedConversation, request: messages.ContinueConversationCommand
) -> ports.ConversationRecord:
    """Create the successor of an exhausted conversation, or return it if it exists. Call only on the actor's thread.

    Raises Rejected, SlugTakenError, UnknownConversationError or StoreError.
    """
    store = pipeline.services.store
    known = known_command(store, pipeline.conversation_id, request)
    if known is not None:
        return created_by(store, known)
    linked = loaded.record.continued_by
    successor = store.load(linked) if linked else None
    if successor is not None:
        return successor
    if not isinstance(loaded.state, ContextExhausted):
        raise Rejected(_why_not_continued(loaded))
    return _create_successor(pipeline, loaded, request, loaded.state.summary)


def _create_successor(
    pipeline: ConversationPipeline,
    loaded: LoadedConversation,
    request: messages.ContinueConversationCommand,
    summary: str,
) -> ports.ConversationRecord:
    for _ in range(SLUG_TRIES):
        unit, at = loaded.begin(), pipeline.now()
        successor, commit = new_successor(pipeline.services, unit, request, summary, at)
        try:
            pipeline.perform(loaded, unit, commit, command=command_record(request, successor.id.encode(), at))
        except ports.SlugTakenError:
            continue
        pipeline.services.bus.created(successor)
        pipeline.services.mcp.prepare(successor)
        return successor
    raise ports.SlugTakenError


def perform_exhausting(
    pipeline: ConversationPipeline, loaded: LoadedConversation, unit: UnitOfWork, *, urgent: bool
) -> None:
    """Commit outcomes that exhaust a conversation. Call only on the actor's thread. Raises StoreError.

    If the conversation continues automatically, the same commit creates its successor, so that there is exactly one
    even if the server crashes.
    """
    services = pipeline.services
    successor = _own_successor(services, unit)
    try:
        pipeline.perform(loaded, unit, *successor, urgent=urgent)
    except ports.SlugTakenError:
        raise ports.StoreUnavailableError("the successor's slug is taken; the next attempt uses another one") from None
    with suppress(ports.StoreUnavailableError):  # the commit has succeeded, and must not seem to have failed
        created = services.store.load(loaded.record.continued_by) if successor else None
        if created is not None:
            services.bus.created(created)
            services.mcp.prepare(created)


def _own_successor(services: Services, unit: UnitOfWork) -> tuple[ports.Commit, ...]:
    record, state = unit.record, unit.record.state
    if not isinstance(state, ContextExhausted) or isinstance(unit.before.state, ContextExhausted):
        return ()
    if not record.profile.auto_continue:
        return ()
    request = messages.ContinueConversationCommand(include_summary=True)
    try:
        return (new_successor(services, unit, request, state.summary, record.updated_at)[1],)
    except ports.StoreUnavailableError:
        raise
    except Exception:
        log.exception("the conversation's successor could not be created", extra={"conversation": record.id})
        return ()


def _why_not_continued(loaded: LoadedConversation) -> Reason:
    if not loaded.record.user_initiated:
        return Reason.SUB_AGENT
    summarising = isinstance(loaded.state, AwaitingContinuation)
    return Reason.CONTINUATION_IN_PROGRESS if summarising else Reason.NOT_EXHAUSTED
