"""Births and settings: what changes a conversation beside its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from actors.conversation.system_prompt import sub_agent_prompt, system_prompt
from actors.core import budget
from actors.core.content import Message, MessageType, SystemKind, Text, text_of
from actors.core.context import Budget, Mode
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ConversationUpdated, MessageAdded
from actors.core.states import QUIET, TERMINAL, AgentTask, AwaitingSubAgents, AwaitingToolApproval, Idle, Ledger
from actors.messages.errors import InvalidFieldError
from actors.messages.log_entries import Created, SettingsChanged
from actors.ports import CommandRecord, Commit, ConversationRecord, LogEntry
from actors.runtime import validation

if TYPE_CHECKING:
    from actors.conversation.pipeline import Draft
    from actors.messages.commands import (
        ContinueConversationCommand,
        CreateConversationCommand,
        UpdateConversationCommand,
    )
    from actors.runtime.services import Services

SETTINGS = ("slug", "title", "model", "labels", "approval_policy", "always_approved", "follow_up_policy", "budget")
"""Fields of the record that Update may change."""
MAX_TITLE = 80
"""Characters of a task that become the title of its sub-agent."""


def creation(
    runtime: Services, conversation_id: str, request: CreateConversationCommand, at: int
) -> tuple[ConversationRecord, Commit]:
    """The record of a new conversation and the commit that makes it.

    Raises Rejected (working directory, model, mode).
    """
    cwd = validation.working_directory(runtime, request.working_directory)
    model = request.model or runtime.models.default
    lean = validation.offered_model(runtime, model).info.lean
    mode = validation.initial_mode(runtime, request.mode)
    record = ConversationRecord(
        id=conversation_id,
        slug=request.slug or runtime.ids.slug(),
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
        system_prompt=system_prompt(runtime.workspace.surroundings(cwd), mode, at, lean=lean),
        approval_policy=request.approval_policy,
        follow_up_policy=request.follow_up_policy,
        budget=request.budget,
        node=runtime.node,
        epoch=1,
        step=1,
    )
    command = None
    if request.request_id:
        command = CommandRecord(request.request_id, request.body_hash, conversation_id.encode(), at)
    return record, _birth(record, command)


def succession(
    runtime: Services, draft: Draft, request: ContinueConversationCommand, summary: str, at: int
) -> tuple[ConversationRecord, Commit]:
    """The successor of the draft's conversation; the draft gets the link to it. Both go into one commit."""
    parent = draft.record
    lean = validation.served_model(runtime, parent.model).info.lean
    surroundings = runtime.workspace.surroundings(parent.cwd)
    successor = msgspec.structs.replace(
        parent,
        id=runtime.ids.conversation(),
        slug=runtime.ids.slug(),
        state=Idle(),
        state_updated_at=at,
        created_at=at,
        updated_at=at,
        archived_at=None,
        system_prompt=system_prompt(surroundings, parent.mode, at, lean=lean),
        continued_from=parent.id,
        continued_by="",
        epoch=1,
        step=1,
        last_seq=0,
        log_hash="",
    )
    messages: tuple[Message, ...] = ()
    if request.include_summary:
        text = f"This conversation goes on from an earlier one, which was summarised:\n\n{summary}"
        if unanswered := _unanswered(runtime, parent):
            text += f"\n\n{_LEFT_OVER}\n\n{unanswered}"
        seed = Message(f"{successor.id}:0:1", 1, MessageType.SYSTEM, (Text(text),), at, kind=SystemKind.SUMMARY)
        messages = (seed,)
        successor = msgspec.structs.replace(successor, state=Idle(Ledger(seq=1)), last_seq=1)
    change(draft, at, continued_by=successor.id)
    return successor, _birth(successor, None, messages)


_LEFT_OVER = (
    "These messages of the user waited when the earlier conversation's context was used up. They have not been "
    "answered, and nothing was done about them. Take them up when the user comes back to them:"
)


def _unanswered(runtime: Services, exhausted: ConversationRecord) -> str:
    """The follow-ups that were discarded when the context was used up: what stands behind the summary."""
    last = exhausted.state.ledger.seq
    most = runtime.limits.max_queue + 1
    texts: list[str] = []
    for message in reversed(runtime.store.messages(exhausted.id, after=max(0, last - most), limit=most)):
        if message.type is not MessageType.USER:
            break
        texts.append(text_of(message.content) or "(an image)")
    return "\n\n".join(f"- {text}" for text in reversed(texts))


def sub_agent(
    runtime: Services, parent: ConversationRecord, task: AgentTask, at: int
) -> tuple[ConversationRecord, Commit]:
    """The record of a sub-agent that its parent has just asked for, and the commit that makes it.

    Restricted wherever that can be kept, whatever its parent's mode is (C32). Raises Rejected (budget, working
    directory, model).
    """
    cwd = validation.working_directory(runtime, task.cwd)
    lean = validation.served_model(runtime, task.model).info.lean
    mode = Mode.RESTRICTED if runtime.sandbox.report.restriction_available else parent.mode
    surroundings = runtime.workspace.surroundings(cwd)
    record = ConversationRecord(
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
        system_prompt=sub_agent_prompt(surroundings, mode, at, task.max_turns, task.timeout_ms, lean=lean),
        approval_policy=parent.approval_policy,
        always_approved=parent.always_approved,
        budget=_share(parent),
        node=runtime.node,
        epoch=1,
        step=1,
    )
    return record, _birth(record, None)


def _share(parent: ConversationRecord) -> Budget:
    """What one of the sub-agents that were started together may spend: an equal part of what their parent has left."""
    ledger, state = parent.state.ledger, parent.state
    if spent := budget.spent(parent.budget, ledger):
        raise Rejected(Reason.BUDGET_REACHED, f"the budget of {spent} is spent")
    return budget.share(parent.budget, ledger, len(state.pending) if isinstance(state, AwaitingSubAgents) else 1)


def update(runtime: Services, draft: Draft, request: UpdateConversationCommand, at: int) -> None:
    """Put the wanted settings that differ into the draft. Raises Rejected or InvalidFieldError."""
    record = draft.record
    wanted: dict[str, Any] = {
        name: value
        for name in SETTINGS
        if (value := getattr(request, name)) is not None and value != getattr(record, name)
    }
    if "model" in wanted:
        if isinstance(record.state, TERMINAL):
            raise Rejected(Reason.TERMINAL)
        if not isinstance(record.state, QUIET):
            raise Rejected(
                Reason.AGENT_BUSY, "agent is busy: cancel it or wait until it is done, then change the model"
            )
        validation.offered_model(runtime, wanted["model"])
    if not set(wanted.get("always_approved", ())) <= set(record.always_approved):
        raise InvalidFieldError(
            "always_approved_tools", "tools can only be left out; approving one is the answer to a question"
        )
    if wanted:
        change(draft, at, **wanted)
        draft.recontext(runtime.context_of(draft.record))


def approve_always(runtime: Services, draft: Draft, tool_use_id: str, at: int) -> None:
    """Let the tool of this question run unasked from now on."""
    state = draft.record.state
    if not isinstance(state, AwaitingToolApproval):
        return
    names = {call.name for call in state.calls if call.id == tool_use_id and call.id in state.undecided}
    fresh = names - set(draft.record.always_approved)
    if fresh:
        change(draft, at, always_approved=(*draft.record.always_approved, *sorted(fresh)))
        draft.recontext(runtime.context_of(draft.record))


def archive(draft: Draft, archived: bool, at: int) -> None:
    """Set or clear the archive flag."""
    change(draft, at, archived_at=at if archived else None)


def change(draft: Draft, at: int, **fields: Any) -> None:
    """Change fields of the record, with their event and their line in the journal."""
    names = tuple(fields)
    draft.change(SettingsChanged(at, names), at, (ConversationUpdated(names),), **fields)


def _birth(record: ConversationRecord, command: CommandRecord | None, messages: tuple[Message, ...] = ()) -> Commit:
    notifications = tuple(MessageAdded(message) for message in messages)
    born = msgspec.json.encode(Created(record.created_at, record.principal))
    entry = LogEntry(1, record.created_at, born, 1, notifications)
    return Commit(
        record=record,
        expected_step=0,
        messages=messages,
        log=(entry,),
        command=command,
        create=True,
        create_command=command is not None,
    )
