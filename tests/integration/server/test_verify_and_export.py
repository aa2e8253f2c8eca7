"""VerifyConversation, ReplayConversation, ListTransitions and ExportConversation over a real channel."""

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bedrock import v1

from actors.adapters.store.sqlite.engine import FILE, sqlite3
from actors.adapters.store.sqlite.store import open_store
from actors.core.content import Usage
from actors.core.context import Mode
from actors.core.notifications import ConversationUpdated, ModeChanged, UsageChanged
from actors.ports import Store
from server.contract import limits
from server.queries import audit as audits
from server.queries import audit as exports
from tests.integration.server.grpc_harness import AUTHORIZED, SECONDS, GrpcHarness, refused
from tests.integration.server.watch_harness import Author
from tests.property.drive import a_context
from tests.property.tape import Tape
from tests.property.test_verify_and_replay import live
from tests.property.written import WrittenWorld
from tests.support.stores import new_store

NAME = "conversations/c"


def lived(store: Store, conversation_id: str = "c", seed: int = 52) -> WrittenWorld:
    """A conversation of some hundred steps."""
    tape = Tape(random.Random(seed).randbytes(700))
    world = WrittenWorld(store, a_context(tape, conversation_id))
    live(world, tape)
    return world


def verify(harness: GrpcHarness, name: str = NAME) -> v1.VerifyConversationResponse:
    return harness.stub.VerifyConversation(
        v1.VerifyConversationRequest(name=name), metadata=AUTHORIZED, timeout=SECONDS
    )


def replay(harness: GrpcHarness, **fields: Any) -> list[v1.ReplayConversationResponse]:
    request = v1.ReplayConversationRequest(**{"name": NAME, **fields})
    return list(harness.stub.ReplayConversation(request, metadata=AUTHORIZED, timeout=SECONDS))


def export(harness: GrpcHarness) -> list[dict[str, Any]]:
    request = v1.ExportConversationRequest(name=NAME)
    answer = harness.stub.ExportConversation(request, metadata=AUTHORIZED, timeout=SECONDS)
    return [json.loads(piece.line) for piece in answer]


@pytest.fixture
def store() -> Store:
    return new_store()


@pytest.fixture
def harness(open_harness: Callable[..., GrpcHarness], store: Store) -> GrpcHarness:
    return open_harness(store=store)


def test_a_conversation_that_is_whole_has_no_violations(harness: GrpcHarness, store: Store) -> None:
    world = lived(store)
    answer = verify(harness)
    assert list(answer.violations) == []
    assert answer.revision == world.record.revision > 100


def test_a_slug_names_it_too(harness: GrpcHarness, store: Store) -> None:
    world = lived(store)
    assert verify(harness, "conversations/slug-c").revision == world.record.revision


def test_every_step_is_run_again_in_order(harness: GrpcHarness, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "ROWS", 7)
    world = lived(store)
    steps = replay(harness)
    assert [step.step for step in steps] == list(range(1, world.record.step + 1))
    assert {step.difference for step in steps} == {""}
    assert steps[-1].revision == world.record.revision
    assert json.loads(steps[0].event_json)["type"] == "created"
    assert json.loads(steps[0].state_json)["type"] == "idle"
    assert json.loads(steps[-1].state_json) == json.loads(msgspec.json.encode(world.record.state))


def test_a_replay_stops_at_the_given_revision(harness: GrpcHarness, store: Store) -> None:
    lived(store)
    whole = replay(harness)
    until = whole[40].revision
    assert [step.step for step in replay(harness, until_revision=until)] == [
        step.step for step in whole if step.revision <= until
    ]


def test_a_log_whose_beginning_was_pruned_cannot_be_replayed_and_says_so(harness: GrpcHarness, store: Store) -> None:
    world = lived(store)
    store.prune_log("c", world.record.revision // 2)
    refusal = refused(lambda: replay(harness))
    assert (refusal.code, refusal.reason) == ("OUT_OF_RANGE", "REVISION_TOO_OLD")
    assert int(refusal.info.metadata["oldest_revision"]) > 0
    assert list(verify(harness).violations) == []


def test_a_log_that_is_pruned_while_it_is_run_again_says_so(
    harness: GrpcHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "ROWS", 7)
    world = lived(store)
    read = store.transitions

    def read_and_prune(*args: Any, **options: Any) -> Any:
        found = read(*args, **options)
        store.prune_log("c", world.record.revision // 2)
        return found

    monkeypatch.setattr(store, "transitions", read_and_prune)
    refusal = refused(lambda: replay(harness))
    assert (refusal.code, refusal.reason) == ("OUT_OF_RANGE", "REVISION_TOO_OLD")


def logged(harness: GrpcHarness, **fields: Any) -> list[v1.Transition]:
    """All pages of the log, and each token is one that the next request takes."""
    request, found = v1.ListTransitionsRequest(**{"parent": NAME, **fields}), list[v1.Transition]()
    while True:
        page = harness.stub.ListTransitions(request, metadata=AUTHORIZED, timeout=SECONDS)
        assert len(page.transitions) <= (request.page_size or 100)
        found += page.transitions
        request.page_token = page.next_page_token
        if not page.next_page_token:
            return found


def test_the_log_shows_each_step_as_it_was_stored(harness: GrpcHarness, store: Store) -> None:
    lived(store)
    steps = logged(harness, page_size=7)
    stored = store.transitions("c", after_step=0, limit=10_000)
    assert [(each.step, each.digest) for each in steps] == [(row.step, row.hash) for row in stored]
    assert [each.event_json.encode() for each in steps] == [row.event for row in stored]
    assert [each.context_json.encode() or None for each in steps] == [row.context for row in stored]
    assert [each.time.ToMilliseconds() for each in steps] == [row.at for row in stored]
    assert [each.revision for each in steps] == [step.revision for step in replay(harness)]
    effects = [json.loads(each.effects_json) for each in steps]
    assert [len(each) for each in effects] == [len(row.notifications) for row in stored]
    assert {each.event_type for each in steps} == {json.loads(row.event)["type"] for row in stored}


def test_the_log_is_read_in_both_orders_and_from_a_step_on(
    harness: GrpcHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "ROWS", 5)
    world = lived(store)
    steps = [each.step for each in logged(harness)]
    assert steps == list(range(1, world.record.step + 1))
    assert [each.step for each in logged(harness, page_size=7, descending=True)] == steps[::-1]
    assert [each.step for each in logged(harness, page_size=3, after_step=steps[-4])] == steps[-3:]
    newest = [each.step for each in logged(harness, page_size=3, after_step=20, descending=True)]
    assert newest == steps[:19:-1]
    assert logged(harness, after_step=steps[-1]) == logged(harness, after_step=2**62, descending=True) == []


@pytest.mark.parametrize("descending", [False, True])
def test_of_a_log_whose_beginning_was_pruned_the_rest_is_read(
    harness: GrpcHarness, store: Store, descending: bool
) -> None:
    world = lived(store)
    store.prune_log("c", world.record.revision // 2)
    left = [row.step for row in store.transitions("c", after_step=0, limit=10_000)]
    assert left[0] > 1
    steps = [each.step for each in logged(harness, page_size=9, descending=descending)]
    assert steps == (left[::-1] if descending else left)


def test_a_page_of_the_log_is_limited_in_bytes_and_leaves_out_what_is_too_long(
    harness: GrpcHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(store)
    monkeypatch.setattr(limits, "PAGE_BYTES", 4_000)
    request = v1.ListTransitionsRequest(parent=NAME)
    page = harness.stub.ListTransitions(request, metadata=AUTHORIZED, timeout=SECONDS)
    assert sum(each.ByteSize() for each in page.transitions) <= 4_000
    assert page.next_page_token
    whole = logged(harness)
    monkeypatch.setattr(limits, "REPLAY_JSON_BYTES", 120)
    assert [each.event_json for each in logged(harness)] == [
        each.event_json if len(each.event_json) <= 120 else "" for each in whole
    ]


def test_a_token_of_the_log_belongs_to_its_conversation_and_order(harness: GrpcHarness, store: Store) -> None:
    lived(store)
    request = v1.ListTransitionsRequest(parent=NAME, page_size=1)
    request.page_token = harness.stub.ListTransitions(request, metadata=AUTHORIZED, timeout=SECONDS).next_page_token
    for changed in ({"descending": True}, {"after_step": 1}):
        other = v1.ListTransitionsRequest(parent=NAME, page_token=request.page_token, **changed)
        call = partial(harness.stub.ListTransitions, other, metadata=AUTHORIZED, timeout=SECONDS)
        assert refused(call).fields == ["page_token"]


def test_a_replay_computes_the_effects_that_the_log_has_not(harness: GrpcHarness, store: Store) -> None:
    lived(store)
    effects = [{each["type"] for each in json.loads(step.effects_json or "[]")} for step in replay(harness)]
    assert effects[0] == set()
    assert {"request_llm", "execute_tool", "notify_client"} <= set().union(*effects)
    assert "persist_state" not in set().union(*effects)


@pytest.mark.parametrize(("call", "read"), [(replay, "transitions"), (export, "messages"), (export, "events")])
def test_what_is_deleted_while_it_is_read_does_not_end_as_if_that_were_all(
    harness: GrpcHarness, store: Store, monkeypatch: pytest.MonkeyPatch, call: Callable[[GrpcHarness], Any], read: str
) -> None:
    lived(store)
    original = getattr(store, read)

    def delete_and_read(*args: Any, **options: Any) -> Any:
        store.delete("c")
        return original(*args, **options)

    monkeypatch.setattr(store, read, delete_and_read)
    assert refused(lambda: call(harness)).code == "NOT_FOUND"


def test_long_inputs_and_states_are_left_out(
    harness: GrpcHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived(store)
    monkeypatch.setattr("server.contract.limits.REPLAY_JSON_BYTES", 300)
    assert {bool(step.event_json) for step in replay(harness)} == {True, False}


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(open_harness: Callable[..., GrpcHarness], tmp_path: Path) -> Iterator[Callable[[str], GrpcHarness]]:
    """A server over a conversation that a statement has damaged."""
    stores: list[Store] = []

    def damage(statement: str) -> GrpcHarness:
        store = open_store(tmp_path / "data")
        stores.append(store)
        lived(store)
        connection = sqlite3.connect(tmp_path / "data" / FILE)
        connection.execute(statement)
        connection.commit()
        connection.close()
        return open_harness(store=store)

    yield damage
    for store in stores:
        store.close()


def test_a_row_that_cannot_be_read_is_a_finding(damaged: Callable[[str], GrpcHarness]) -> None:
    harness = damaged("UPDATE conversations SET mode = 'godlike'")
    answer = verify(harness)
    assert "the conversation's row cannot be read" in answer.violations
    assert answer.revision == 0
    assert "godlike" not in str(answer)


def test_a_step_that_cannot_be_read_ends_the_replay_with_a_difference(damaged: Callable[[str], GrpcHarness]) -> None:
    harness = damaged("UPDATE log SET notifications = '[' WHERE step = 60")
    steps = replay(harness)
    assert [step.step for step in steps] == list(range(1, 61))
    assert [step.difference for step in steps if step.difference] == ["the step cannot be read; the replay ends here"]
    assert "step 60 cannot be read" in verify(harness).violations


def test_another_state_is_a_difference_of_the_last_step(damaged: Callable[[str], GrpcHarness]) -> None:
    harness = damaged("""UPDATE conversations SET state_data = replace(state_data, '"req":', '"req":9')""")
    (different,) = [step for step in replay(harness) if step.difference]
    assert "the stored state differs: replayed" in different.difference
    assert "the conversation's row has been modified" in verify(harness).violations


# --- exports ----------------------------------------------------------------------------------------------------------


def test_an_export_has_everything_in_order(harness: GrpcHarness, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "PAGE", 7)
    world = lived(store)
    lines = export(harness)
    first, rest = lines[0], lines[1:]
    assert first["kind"] == "conversation"
    assert first["conversation"]["name"] == NAME
    assert first["system_prompt"] == "You are careful."
    messages = [line["message"] for line in rest if line["kind"] == "message"]
    events = [line["event"] for line in rest if line["kind"] == "event"]
    assert [line["kind"] for line in rest] == ["message"] * len(messages) + ["event"] * len(events)
    assert [int(each["sequence"]) for each in messages] == list(range(1, world.record.state.ledger.seq + 1))
    assert [int(each["revision"]) for each in events] == list(range(1, world.record.revision + 1))
    added = [event["message_added"] for event in events if "message_added" in event]
    assert [each["name"] for each in added] == [each["name"] for each in messages]


def test_every_exported_event_says_what_it_is_about(harness: GrpcHarness, store: Store) -> None:
    author = Author(store, harness.hub, "c")
    told = (UsageChanged(900, 1_000, Usage(800, 100), warning=True), ModeChanged(Mode.RESTRICTED))
    author.commit(*told, ConversationUpdated(("title", "labels")))
    lines = [line for line in export(harness) if line["kind"] == "event"][-3:]
    usage, mode, settings = (line["event"]["conversation_updated"] for line in lines)
    assert usage["context_usage"] == {"used_tokens": "900", "usable_window_tokens": "1000", "warning": True}
    assert usage["total_usage"]["input_tokens"] == "800"
    assert mode == {"name": NAME, "mode": "MODE_RESTRICTED"}
    assert settings == {"name": NAME}
    assert [line.get("settings") for line in lines] == [None, None, ["title", "labels"]]


def test_no_exported_event_is_empty(harness: GrpcHarness, store: Store) -> None:
    lived(store)
    events = [line["event"] for line in export(harness) if line["kind"] == "event"]
    assert all(event.keys() - {"revision", "time"} for event in events)


def test_an_export_names_attachments(harness: GrpcHarness, store: Store) -> None:
    lived(store)
    assert f"{NAME}/attachments/hash" in json.dumps(export(harness))


def test_an_export_of_a_pruned_conversation_has_the_events_that_are_left(harness: GrpcHarness, store: Store) -> None:
    world = lived(store)
    store.prune_log("c", world.record.revision // 2)
    lines = export(harness)
    revisions = [int(line["event"]["revision"]) for line in lines if line["kind"] == "event"]
    assert revisions == list(range(revisions[0], world.record.revision + 1))
    assert revisions[0] > 1
    assert sum(line["kind"] == "message" for line in lines) == world.record.state.ledger.seq


def test_an_export_shows_one_revision_though_the_conversation_goes_on(
    harness: GrpcHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lived(store)
    head = world.record.revision
    read = store.messages

    def go_on_and_read(*args: Any, **options: Any) -> Any:
        world.reap(Tape(b""))
        return read(*args, **options)

    monkeypatch.setattr(store, "messages", go_on_and_read)
    events = [line["event"] for line in export(harness) if line["kind"] == "event"]
    assert int(events[-1]["revision"]) == head
    assert world.record.revision > head
