"""Births and settings: what is refused, what is written, what the machine is told afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from actors.conversation import settings
from actors.conversation.pipeline import Draft, Machine
from actors.conversation.system_prompt import system_prompt
from actors.core.content import SystemKind, ToolUse
from actors.core.context import ApprovalPolicy, Budget, FollowUpPolicy, Mode
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ConversationUpdated
from actors.core.states import QUIET, TERMINAL, ApprovalKind, AwaitingToolApproval, ContextExhausted, Idle, Ledger
from actors.messages.commands import ContinueConversationCommand, CreateConversationCommand, UpdateConversationCommand
from actors.messages.errors import InvalidFieldError
from actors.ports import ConversationRecord, SandboxReport
from tests.machine.columns import Column, parent_columns

if TYPE_CHECKING:
    from pathlib import Path

    from actors.runtime.services import Services


def refused(reason: Reason) -> Any:
    return pytest.raises(Rejected, check=lambda error: error.reason is reason)


class Sandbox:
    protected: tuple[str, ...] = ()

    def __init__(self, tier: str) -> None:
        self.report = SandboxReport(tier, 5, pid_namespace=True, reason="no Landlock here")

    def start(self, launch: object, on_output: object) -> Any:
        raise AssertionError


def born(runtime: Services, **fields: Any) -> ConversationRecord:
    record, commit = settings.creation(runtime, "c1", CreateConversationCommand("p", "/tmp", **fields), 5)
    runtime.store.commit(commit)
    return record


def draft_of(runtime: Services, record: ConversationRecord) -> Draft:
    return Machine(runtime, record).draft()


def test_a_birth_is_one_step_with_no_events_and_is_what_was_asked_for(runtime: Services) -> None:
    wanted = {
        "title": "T",
        "slug": "s",
        "labels": {"a": "b"},
        "approval_policy": ApprovalPolicy.ASK_ALL,
        "follow_up_policy": FollowUpPolicy.COMPLETED_ONLY,
        "budget": Budget(run_tokens=5),
    }
    record = born(runtime, **wanted)
    assert {name: getattr(record, name) for name in wanted} == wanted
    assert (record.state, record.step, record.last_seq, record.epoch) == (Idle(), 1, 0, 1)
    assert record.system_prompt == system_prompt(runtime.workspace.surroundings("/tmp"), Mode.UNRESTRICTED, 5)
    stored = runtime.store.load("c1")
    assert stored is not None
    assert msgspec.structs.replace(stored, log_hash="") == record
    assert [row.event for row in runtime.store.transitions("c1", after_step=0, limit=9)] == [
        b'{"type":"created","at":5,"principal":"p"}'
    ]
    assert runtime.store.verify("c1") == ()


def test_a_birth_without_a_slug_or_a_model_gets_some(runtime: Services) -> None:
    record = born(runtime)
    assert record.slug.startswith("slug-")
    assert record.model == "known"


def test_a_birth_is_remembered_by_its_request_id(runtime: Services) -> None:
    born(runtime, request_id="r", body_hash="h")
    known = runtime.store.create_command("p", "r")
    assert known is not None
    assert (known.body_hash, known.answer) == ("h", b"c1")


@pytest.mark.parametrize(
    ("tier", "wanted", "mode"),
    [
        ("A", None, Mode.RESTRICTED),
        ("B", None, Mode.RESTRICTED),
        ("none", None, Mode.UNRESTRICTED),
        ("A", Mode.UNRESTRICTED, Mode.UNRESTRICTED),
        ("none", Mode.UNRESTRICTED, Mode.UNRESTRICTED),
    ],
)
def test_a_birth_is_restricted_wherever_that_works(
    runtime: Services, tier: str, wanted: Mode | None, mode: Mode
) -> None:
    assert born(replace(runtime, sandbox=Sandbox(tier)), mode=wanted).mode is mode


def test_a_restriction_that_cannot_be_kept_is_refused(runtime: Services) -> None:
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(runtime, sandbox=Sandbox("none")), mode=Mode.RESTRICTED)
    assert str(refusal.value) == "restricted mode cannot be kept here: no Landlock here"


def test_a_restriction_that_is_switched_off_is_not_said_to_be_impossible(runtime: Services) -> None:
    sandbox = Sandbox("none")
    sandbox.report = msgspec.structs.replace(sandbox.report, reason="the setting says so", by_setting=True)
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(runtime, sandbox=sandbox), mode=Mode.RESTRICTED)
    assert str(refusal.value) == "restricted mode is not offered here: the setting says so"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("working_directory", "/nowhere", Reason.WORKING_DIRECTORY_INVALID),
        ("model", "unheard-of", Reason.MODEL_UNAVAILABLE),
    ],
)
def test_a_birth_into_nowhere_is_refused(runtime: Services, field: str, value: str, reason: Reason) -> None:
    with refused(reason):
        settings.creation(
            runtime, "c1", msgspec.structs.replace(CreateConversationCommand("p", "/tmp"), **{field: value}), 5
        )
    assert runtime.store.load("c1") is None


def test_a_successor_looks_at_its_directory_anew(runtime: Services, tmp_path: Path) -> None:
    record, commit = settings.creation(runtime, "c1", CreateConversationCommand("p", str(tmp_path)), 5)
    runtime.store.commit(commit)
    assert "Be kind." not in record.system_prompt
    (tmp_path / "AGENTS.md").write_text("Be kind.")
    exhausted = msgspec.structs.replace(record, state=ContextExhausted(Ledger(run=3, seq=9), "Milk."))
    day = 86_400_000
    child, _ = settings.succession(runtime, draft_of(runtime, exhausted), ContinueConversationCommand(), "Milk.", day)
    assert "Be kind." in child.system_prompt
    assert "- date: 1970-01-02 (UTC)" in child.system_prompt
    (tmp_path / "AGENTS.md").unlink()
    tmp_path.rmdir()
    child, _ = settings.succession(runtime, draft_of(runtime, exhausted), ContinueConversationCommand(), "Milk.", day)
    assert f"- working directory: {tmp_path}" in child.system_prompt


@pytest.mark.parametrize("include_summary", [True, False])
def test_a_successor_takes_over_the_settings_and_is_linked_both_ways(runtime: Services, include_summary: bool) -> None:
    parent = born(runtime, title="T", labels={"a": "b"}, budget=Budget(run_tokens=5))
    parent = msgspec.structs.replace(parent, state=ContextExhausted(Ledger(run=3, seq=9), "Milk."), archived_at=7)
    draft = draft_of(runtime, parent)
    child, birth = settings.succession(
        runtime, draft, ContinueConversationCommand(include_summary=include_summary), "Milk.", 8
    )
    runtime.store.commit(draft.commit(), birth)
    assert (child.continued_from, draft.record.continued_by) == ("c1", child.id)
    assert (child.title, child.labels, child.budget, child.cwd) == ("T", {"a": "b"}, Budget(run_tokens=5), "/tmp")
    assert (child.archived_at, child.step, child.created_at) == (None, 1, 8)
    assert child.slug != parent.slug
    messages = runtime.store.history(child.id, 10)
    assert child.state == Idle(Ledger(seq=len(messages)))
    assert [(message.kind, "Milk." in str(message.content)) for message in messages] == (
        [(SystemKind.SUMMARY, True)] if include_summary else []
    )
    assert runtime.store.verify(child.id) == ()
    assert runtime.store.verify("c1") == ()


def test_an_update_changes_what_is_named_and_says_so_once(runtime: Services) -> None:
    record = born(runtime, title="old")
    draft = draft_of(runtime, record)
    settings.update(
        runtime, draft, UpdateConversationCommand(title="new", slug=record.slug, budget=Budget(run_tokens=1)), 6
    )
    assert draft.notifications == (ConversationUpdated(("title", "budget")),)
    assert (draft.record.title, draft.record.budget) == ("new", Budget(run_tokens=1))
    assert draft.context.budget == Budget(run_tokens=1)
    again = draft_of(runtime, draft.record)
    settings.update(runtime, again, UpdateConversationCommand(title="new"), 6)
    assert again.empty


def test_what_update_may_change_is_in_the_record_and_in_the_request() -> None:
    for name in settings.SETTINGS:
        assert name in ConversationRecord.__struct_fields__
        assert name in UpdateConversationCommand.__struct_fields__
    assert set(UpdateConversationCommand.__struct_fields__) == {"etag", *settings.SETTINGS}


def test_an_unknown_model_and_one_for_a_conversation_that_is_over_are_refused(runtime: Services) -> None:
    record = born(runtime)
    with refused(Reason.MODEL_UNAVAILABLE):
        settings.update(runtime, draft_of(runtime, record), UpdateConversationCommand(model="unheard-of"), 6)
    over = msgspec.structs.replace(record, state=ContextExhausted(Ledger(), "x"), model="old")
    with refused(Reason.TERMINAL):
        settings.update(runtime, draft_of(runtime, over), UpdateConversationCommand(model="known"), 6)


@pytest.mark.parametrize("column", parent_columns(), ids=lambda column: column.name)
def test_the_model_changes_only_while_nothing_is_under_way(runtime: Services, column: Column) -> None:
    """In a backoff and during a summary too: one run never talks to two models."""
    record = msgspec.structs.replace(born(runtime), state=column.state, model="old")
    busy, over = not isinstance(column.state, QUIET), isinstance(column.state, TERMINAL)
    draft = draft_of(runtime, record)
    if busy or over:
        with refused(Reason.AGENT_BUSY if busy else Reason.TERMINAL):
            settings.update(runtime, draft, UpdateConversationCommand(model="known"), 6)
        assert draft.record == record
    else:
        settings.update(runtime, draft, UpdateConversationCommand(model="known"), 6)
        assert draft.record.model == "known"
    unchanged = draft_of(runtime, record)
    settings.update(runtime, unchanged, UpdateConversationCommand(model="old"), 6)
    assert unchanged.empty, "the model that it has is no change"
    settings.update(
        runtime,
        unchanged,
        UpdateConversationCommand(title="T", approval_policy=ApprovalPolicy.ASK_ALL, budget=Budget(9)),
        6,
    )
    assert unchanged.record.title == "T"


def test_approvals_can_be_taken_back_but_not_given_by_an_update(runtime: Services) -> None:
    record = msgspec.structs.replace(born(runtime), always_approved=("bash", "look"))
    draft = draft_of(runtime, record)
    settings.update(runtime, draft, UpdateConversationCommand(always_approved=("look",)), 6)
    assert draft.context.always_approved == ("look",)
    with pytest.raises(InvalidFieldError):
        settings.update(
            runtime, draft_of(runtime, record), UpdateConversationCommand(always_approved=("bash", "patch")), 6
        )


def test_approving_always_adds_the_tool_of_an_open_question_only(runtime: Services) -> None:
    calls = (ToolUse("t1", "bash", "{}"), ToolUse("t2", "look", "{}"))
    asking = AwaitingToolApproval(Ledger(), calls, ("t1",), ApprovalKind.TOOL, "r1", 5)
    record = msgspec.structs.replace(born(runtime), state=asking)
    draft = draft_of(runtime, record)
    settings.approve_always(runtime, draft, "t2", 6)
    settings.approve_always(runtime, draft, "nobody", 6)
    assert draft.empty
    settings.approve_always(runtime, draft, "t1", 6)
    settings.approve_always(runtime, draft, "t1", 6)
    assert draft.record.always_approved == draft.context.always_approved == ("bash",)
    assert len(draft.entries) == 1
    idle = draft_of(runtime, msgspec.structs.replace(record, state=Idle()))
    settings.approve_always(runtime, idle, "t1", 6)
    assert idle.empty


def test_the_archive_flag_is_set_and_cleared(runtime: Services) -> None:
    draft = draft_of(runtime, born(runtime))
    settings.archive(draft, True, 6)
    assert draft.record.archived_at == 6
    settings.archive(draft, False, 7)
    assert draft.record.archived_at is None
    assert draft.notifications == (ConversationUpdated(("archived_at",)),) * 2
