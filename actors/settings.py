"""Births and settings: what changes a conversation beside its machine (SEMANTICS §2.12)."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.core.content import Message, MessageType, SystemKind, Text
from actors.core.context import Mode
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ConversationUpdated, MessageAdded
from actors.core.states import TERMINAL, AwaitingToolApproval, Idle, Ledger
from actors.journal import Created, SettingsChanged
from actors.machine import Draft
from actors.ports import CommandRecord, Commit, ConversationRecord, LogEntry
from actors.requests import Continue, Create, Invalid, Update
from actors.runtime import Runtime
from actors.system_prompt import system_prompt

SETTINGS = ("slug", "title", "model", "labels", "approval_policy", "always_approved", "follow_up_policy", "budget")
"""Fields of the record that Update may change."""


def creation(runtime: Runtime, conversation_id: str, request: Create, at: int) -> tuple[ConversationRecord, Commit]:
    """The record of a new conversation and the commit that makes it.

    Raises Rejected (working directory, model, mode).
    """
    cwd = _directory(runtime, request.working_directory)
    model = request.model or runtime.models.default
    _served(runtime, model)
    mode = _mode(runtime, request.mode)
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
        system_prompt=system_prompt(runtime.workspace.surroundings(cwd), mode, at),
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
    runtime: Runtime, draft: Draft, request: Continue, summary: str, at: int
) -> tuple[ConversationRecord, Commit]:
    """The successor of the draft's conversation; the draft gets the link to it. Both go into one commit."""
    parent = draft.record
    _served(runtime, parent.model)
    successor = msgspec.structs.replace(
        parent,
        id=runtime.ids.conversation(),
        slug=runtime.ids.slug(),
        state=Idle(),
        state_updated_at=at,
        created_at=at,
        updated_at=at,
        archived_at=None,
        system_prompt=system_prompt(runtime.workspace.surroundings(parent.cwd), parent.mode, at),
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
        seed = Message(f"{successor.id}:0:1", 1, MessageType.SYSTEM, (Text(text),), at, kind=SystemKind.SUMMARY)
        messages = (seed,)
        successor = msgspec.structs.replace(successor, state=Idle(Ledger(seq=1)), last_seq=1)
    change(draft, at, continued_by=successor.id)
    return successor, _birth(successor, None, messages)


def update(runtime: Runtime, draft: Draft, request: Update, at: int) -> None:
    """Put the wanted settings into the draft; nothing if they are there already. Raises Rejected or Invalid."""
    record = draft.record
    wanted: dict[str, Any] = {
        name: value
        for name in SETTINGS
        if (value := getattr(request, name)) is not None and value != getattr(record, name)
    }
    if "model" in wanted:
        if isinstance(record.state, TERMINAL):
            raise Rejected(Reason.TERMINAL)
        _served(runtime, wanted["model"])
    if not set(wanted.get("always_approved", ())) <= set(record.always_approved):
        raise Invalid("always_approved_tools", "tools can only be left out; approving one is the answer to a question")
    if wanted:
        change(draft, at, **wanted)
        draft.recontext(runtime.context_of(draft.record))


def approve_always(runtime: Runtime, draft: Draft, tool_use_id: str, at: int) -> None:
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


def _directory(runtime: Runtime, path: str) -> str:
    try:
        return runtime.workspace.check(path)
    except ValueError as error:
        raise Rejected(Reason.WORKING_DIRECTORY_INVALID, f"working_directory: {error}") from None


def _served(runtime: Runtime, model: str) -> None:
    if runtime.models.get(model) is None:
        offered = ", ".join(info.name for info in runtime.models.list())
        raise Rejected(Reason.MODEL_UNAVAILABLE, f"the model {model!r} is not available; there are: {offered}")


def _mode(runtime: Runtime, wanted: Mode | None) -> Mode:
    report = runtime.sandbox.report
    if wanted is None:
        return Mode.RESTRICTED if report.restriction_available else Mode.UNRESTRICTED
    if wanted is Mode.RESTRICTED and not report.restriction_available:
        raise mode_unavailable(runtime)
    return wanted


def mode_unavailable(runtime: Runtime) -> Rejected:
    """Why nothing can be restricted on this machine."""
    reason = runtime.sandbox.report.reason
    return Rejected(Reason.MODE_UNAVAILABLE, f"restricted mode cannot be kept here: {reason}")
