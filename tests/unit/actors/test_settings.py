"""Births and settings: what is refused, what is written, what the machine is told afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from actors.conversation import creation, settings
from actors.conversation.pipeline import LoadedConversation
from actors.conversation.system_prompt import system_prompt
from actors.core.content import SystemKind
from actors.core.context import ApprovalPolicy, Budget, FollowUpPolicy, Mode
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ConversationUpdated
from actors.core.states import INACTIVE, TERMINAL, ContextExhausted, Idle, Ledger
from actors.messages import ContinueConversationCommand, CreateConversationCommand, UpdateConversationCommand
from actors.ports import ConversationRecord, SandboxReport
from tests.machine.columns import Column, parent_columns

if TYPE_CHECKING:
    from pathlib import Path

    from actors.conversation.unit_of_work import UnitOfWork
    from actors.runtime.services import Services


def refused(reason: Reason) -> Any:
    return pytest.raises(Rejected, check=lambda error: error.reason is reason)


class Sandbox:
    protected: tuple[str, ...] = ()

    def __init__(self, tier: str) -> None:
        self.report = SandboxReport(tier, 5, pid_namespace=True, reason="no Landlock here")

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        if mode is Mode.RESTRICTED:
            return "" if self.report.restriction_available else self.report.reason
        kept = self.report.workspace_available and directory != "/"
        return "" if mode is Mode.UNRESTRICTED or kept else f"no broker for {directory}"

    def start(self, launch: object, on_output: object) -> Any:
        raise AssertionError


def born(services: Services, **fields: Any) -> ConversationRecord:
    record, commit = creation.new_conversation(
        services, "c1", CreateConversationCommand("p", fields.pop("directory", "/tmp"), **fields), 5
    )
    services.store.commit(commit)
    return record


def unit_of(services: Services, record: ConversationRecord) -> UnitOfWork:
    return LoadedConversation(services, record).begin()


def test_a_creation_is_one_step_without_events_and_has_the_requested_values(services: Services) -> None:
    wanted = {
        "title": "T",
        "slug": "s",
        "labels": {"a": "b"},
        "approval_policy": ApprovalPolicy.ASK_ALL,
        "follow_up_policy": FollowUpPolicy.COMPLETED_ONLY,
        "budget": Budget(run_tokens=5),
    }
    record = born(services, **wanted)
    assert {name: getattr(record, name) for name in wanted} == wanted
    assert (record.state, record.step, record.last_seq, record.epoch) == (Idle(), 1, 0, 1)
    assert record.system_prompt == system_prompt(services.workspace.surroundings("/tmp"), Mode.UNRESTRICTED, 5)
    stored = services.store.load("c1")
    assert stored is not None
    assert msgspec.structs.replace(stored, log_hash="") == record
    assert [row.event for row in services.store.transitions("c1", after_step=0, limit=9)] == [
        b'{"type":"created","at":5,"principal":"p"}'
    ]
    assert services.store.verify("c1") == ()


def test_a_creation_without_a_slug_or_a_model_gets_defaults(services: Services) -> None:
    record = born(services)
    assert record.slug.startswith("slug-")
    assert record.model == "known"


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
def test_a_new_conversation_is_restricted_where_that_is_available(
    services: Services, tier: str, wanted: Mode | None, mode: Mode
) -> None:
    assert born(replace(services, sandbox=Sandbox(tier)), mode=wanted).mode is mode


def test_a_restriction_that_cannot_be_kept_is_refused(services: Services) -> None:
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(services, sandbox=Sandbox("none")), mode=Mode.RESTRICTED)
    assert str(refusal.value) == "restricted mode cannot be kept here: no Landlock here"


def test_a_workspace_that_cannot_be_kept_is_refused_with_the_reason(services: Services) -> None:
    sandbox = Sandbox("A")
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(services, sandbox=sandbox), mode=Mode.WORKSPACE)
    assert str(refusal.value) == "workspace mode cannot be kept here: no broker for /tmp"
    assert refusal.value.cause == "", "it is the machine that cannot"
    sandbox.report = msgspec.structs.replace(sandbox.report, workspace_available=True)
    assert born(replace(services, sandbox=sandbox), mode=Mode.WORKSPACE).mode is Mode.WORKSPACE
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(services, sandbox=sandbox), mode=Mode.WORKSPACE, directory="/")
    assert refusal.value.cause == "directory"


def test_a_restriction_that_is_switched_off_is_not_said_to_be_impossible(services: Services) -> None:
    sandbox = Sandbox("none")
    sandbox.report = msgspec.structs.replace(sandbox.report, reason="the setting says so", by_setting=True)
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(services, sandbox=sandbox), mode=Mode.RESTRICTED)
    assert str(refusal.value) == "restricted mode is not offered here: the setting says so"


def test_a_successor_reads_its_directory_again(services: Services, tmp_path: Path) -> None:
    record, commit = creation.new_conversation(services, "c1", CreateConversationCommand("p", str(tmp_path)), 5)
    services.store.commit(commit)
    assert "Be kind." not in record.system_prompt
    (tmp_path / "AGENTS.md").write_text("Be kind.")
    exhausted = msgspec.structs.replace(record, state=ContextExhausted(Ledger(run=3, seq=9), "Milk."))
    day = 86_400_000
    child, _ = creation.new_successor(
        services, unit_of(services, exhausted), ContinueConversationCommand(), "Milk.", day
    )
    assert "Be kind." in child.system_prompt
    assert "- date: 1970-01-02 (UTC)" in child.system_prompt
    (tmp_path / "AGENTS.md").unlink()
    tmp_path.rmdir()
    child, _ = creation.new_successor(
        services, unit_of(services, exhausted), ContinueConversationCommand(), "Milk.", day
    )
    assert f"- working directory: {tmp_path}" in child.system_prompt


@pytest.mark.parametrize("include_summary", [True, False])
def test_a_successor_takes_over_the_settings_and_is_linked_both_ways(services: Services, include_summary: bool) -> None:
    parent = born(services, title="T", labels={"a": "b"}, budget=Budget(run_tokens=5))
    parent = msgspec.structs.replace(parent, state=ContextExhausted(Ledger(run=3, seq=9), "Milk."), archived_at=7)
    unit = unit_of(services, parent)
    child, birth = creation.new_successor(
        services, unit, ContinueConversationCommand(include_summary=include_summary), "Milk.", 8
    )
    services.store.commit(unit.commit(), birth)
    assert (child.continued_from, unit.record.continued_by) == ("c1", child.id)
    assert (child.title, child.labels, child.budget, child.cwd) == ("T", {"a": "b"}, Budget(run_tokens=5), "/tmp")
    assert (child.archived_at, child.step, child.created_at) == (None, 1, 8)
    assert child.slug != parent.slug
    messages = services.store.history(child.id, 10)
    assert child.state == Idle(Ledger(seq=len(messages)))
    assert [(message.kind, "Milk." in str(message.content)) for message in messages] == (
        [(SystemKind.SUMMARY, True)] if include_summary else []
    )
    assert services.store.verify(child.id) == ()
    assert services.store.verify("c1") == ()


def test_an_update_changes_what_is_named_and_says_so_once(services: Services) -> None:
    record = born(services, title="old")
    unit = unit_of(services, record)
    settings.update(
        services, unit, UpdateConversationCommand(title="new", slug=record.slug, budget=Budget(run_tokens=1)), 6
    )
    assert unit.notifications == (ConversationUpdated(("title", "budget")),)
    assert (unit.record.title, unit.record.budget) == ("new", Budget(run_tokens=1))
    assert unit.context.budget == Budget(run_tokens=1)
    again = unit_of(services, unit.record)
    settings.update(services, again, UpdateConversationCommand(title="new"), 6)
    assert again.empty


def test_what_update_may_change_is_in_the_record_and_in_the_request() -> None:
    for name in settings.SETTINGS:
        assert name in ConversationRecord.__struct_fields__
        assert name in UpdateConversationCommand.__struct_fields__
    parts = {"some_labels", "some_amounts", "some_generation"}
    of_profile = {"client_tools", "generation", "mcp_servers", "auto_continue"}
    assert set(UpdateConversationCommand.__struct_fields__) == {
        "etag",
        "refuse_unoffered_tools",
        *of_profile,
        *parts,
        *settings.SETTINGS,
    }


def test_an_unknown_model_and_one_for_a_conversation_that_is_over_are_refused(services: Services) -> None:
    record = born(services)
    with refused(Reason.MODEL_UNAVAILABLE):
        settings.update(services, unit_of(services, record), UpdateConversationCommand(model="unheard-of"), 6)
    over = msgspec.structs.replace(record, state=ContextExhausted(Ledger(), "x"), model="old")
    with refused(Reason.TERMINAL):
        settings.update(services, unit_of(services, over), UpdateConversationCommand(model="known"), 6)


@pytest.mark.parametrize("column", parent_columns(), ids=lambda column: column.name)
def test_the_model_changes_only_while_no_run_is_in_progress(services: Services, column: Column) -> None:
    """In a backoff and during a summary too: one run never talks to two models."""
    record = msgspec.structs.replace(born(services), state=column.state, model="old")
    busy, over = not isinstance(column.state, INACTIVE), isinstance(column.state, TERMINAL)
    unit = unit_of(services, record)
    if busy or over:
        with refused(Reason.AGENT_BUSY if busy else Reason.TERMINAL):
            settings.update(services, unit, UpdateConversationCommand(model="known"), 6)
        assert unit.record == record
    else:
        settings.update(services, unit, UpdateConversationCommand(model="known"), 6)
        assert unit.record.model == "known"
    unchanged = unit_of(services, record)
    settings.update(services, unchanged, UpdateConversationCommand(model="old"), 6)
    assert unchanged.empty, "the model that it has is no change"
    settings.update(
        services,
        unchanged,
        UpdateConversationCommand(title="T", approval_policy=ApprovalPolicy.ASK_ALL, budget=Budget(9)),
        6,
    )
    assert unchanged.record.title == "T"


def test_the_archive_flag_is_set_and_cleared(services: Services) -> None:
    unit = unit_of(services, born(services))
    settings.archive(unit, True, 6)
    assert unit.record.archived_at == 6
    settings.archive(unit, False, 7)
    assert unit.record.archived_at is None
    assert unit.notifications == (ConversationUpdated(("archived_at",)),) * 2
