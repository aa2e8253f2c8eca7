"""A journal run again: what a faulty machine wrote is found, although every row of it is whole."""

from __future__ import annotations

import random
import re
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec.structs import replace

from actors.adapters.store.sqlite.store import open_store
from actors.core.context import Mode
from actors.core.notifications import MessageAdded, RunStop, StateChanged, StopReason
from actors.maintenance.verify import Replay
from actors.messages import Created, TreeReaped
from actors.ports import ConversationRecord, StoredTransition
from tests.property.drive import a_context
from tests.property.tape import Tape
from tests.property.test_verify_and_replay import live
from tests.property.written import WrittenWorld

if TYPE_CHECKING:
    from collections.abc import Callable

Row = StoredTransition
Journal = list[StoredTransition]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> tuple[Journal, ConversationRecord]:
    with closing(open_store(tmp_path_factory.mktemp("life"))) as store:
        world = WrittenWorld(store, a_context(tape := Tape(random.Random(22).randbytes(700))))
        live(world, tape)
        return list(store.transitions("c", after_step=0, limit=10_000)), world.record


def replayed(journal: Journal) -> tuple[Replay, dict[int, str]]:
    """The replay at its end, and the differences by step."""
    replay = Replay()
    steps = [replay.step(row) for row in journal]
    return replay, {step.step: step.difference for step in steps if step.difference}


def altered(journal: Journal, index: int, **fields: object) -> dict[int, str]:
    """The differences of a journal in which one row says something else."""
    return replayed([*journal[:index], replace(journal[index], **fields), *journal[index + 1 :]])[1]


def index_of(journal: Journal, fits: Callable[[Row], bool]) -> int:
    return next(index for index, row in enumerate(journal) if fits(row))


def tells(kind: type) -> Callable[[Row], bool]:
    return lambda row: any(isinstance(told, kind) for told in row.notifications)


def input_is(tag: str) -> Callable[[Row], bool]:
    return lambda row: msgspec.json.decode(row.event)["type"] == tag


def test_a_faithful_journal_has_no_differences_and_leads_to_the_state(
    life: tuple[Journal, ConversationRecord],
) -> None:
    journal, record = life
    replay, differences = replayed(journal)
    assert differences == {}
    assert replay.end(record) == ""


@pytest.mark.parametrize("kind", [MessageAdded, RunStop, StateChanged])
def test_other_events_than_the_machines_are_shown(life: tuple[Journal, ConversationRecord], kind: type) -> None:
    journal, _ = life
    index = index_of(journal, tells(kind))
    row = journal[index]
    without = tuple(told for told in row.notifications if not isinstance(told, kind))
    missing = altered(journal, index, notifications=without)
    assert list(missing) == [row.step]
    stop = RunStop("c:77", StopReason.COMPLETED)
    wrong = tuple(stop if isinstance(told, kind) else told for told in row.notifications)
    assert "differs: replayed" in altered(journal, index, notifications=wrong)[row.step]
    more = altered(journal, index, notifications=(*row.notifications, stop))
    assert more == {row.step: f"it has {len(row.notifications) + 1} events instead of {len(row.notifications)}"}


def test_a_row_that_was_left_out_changes_what_follows(life: tuple[Journal, ConversationRecord]) -> None:
    journal, record = life
    index = index_of(journal, tells(MessageAdded))
    replay, differences = replayed([*journal[:index], *journal[index + 1 :]])
    assert differences
    assert replay.end(record)


def test_what_settles_a_state_must_follow_at_once(life: tuple[Journal, ConversationRecord]) -> None:
    journal, _ = life
    index = index_of(journal, input_is("begin_llm"))
    assert "BeginLlm was due, not" in replayed([*journal[:index], *journal[index + 1 :]])[1][journal[index + 1].step]


def test_an_input_that_changes_nothing_or_is_refused_does_not_belong_there(
    life: tuple[Journal, ConversationRecord],
) -> None:
    journal, _ = life
    begin, start = (journal[index_of(journal, input_is(tag))] for tag in ("begin_llm", "user_message"))
    assert replayed([journal[0], begin])[1][begin.step] == "the state or the context before it is not known"
    late = replace(start, event=b'{"type":"retry_timeout","at":%d,"request_id":"c:r9","attempt":9}' % start.at)
    assert replayed([journal[0], late])[1][start.step].startswith("RetryTimeout changes nothing")
    busy = replace(start, step=journal[-1].step + 1)
    until = index_of(journal, input_is("begin_llm")) + 1
    assert "UserMessage is refused: agent is busy" in replayed([*journal[:until], busy])[1][busy.step]


def test_a_context_with_another_mode_is_shown(life: tuple[Journal, ConversationRecord]) -> None:
    journal, record = life
    index = [index for index, row in enumerate(journal) if row.context is not None][1]
    context = journal[index].context
    assert context is not None
    there = b"restricted" if b'"mode":"unrestricted"' in context else b"unrestricted"
    other = re.sub(rb'"mode":"\w+"', b'"mode":"%s"' % there, context)
    differences = altered(journal, index, context=other)
    assert "its context has the mode" in differences[journal[index].step]
    mode = Mode.RESTRICTED if record.mode is Mode.UNRESTRICTED else Mode.UNRESTRICTED
    assert "the stored mode is" in replayed(journal)[0].end(replace(record, mode=mode))


@pytest.mark.parametrize("event", [b"{", b'{"type":"nonsense","at":1}', b'{"type":"user_cancel"}', b"[]"])
def test_what_cannot_be_read_is_a_difference(life: tuple[Journal, ConversationRecord], event: bytes) -> None:
    journal, _ = life
    assert altered(journal, 3, event=event)[journal[3].step] == "its input or context cannot be read"


def test_creations_and_kill_receipts_report_only_what_they_may(life: tuple[Journal, ConversationRecord]) -> None:
    journal, _ = life
    stop = next(told for row in journal for told in row.notifications if isinstance(told, RunStop))
    born = msgspec.json.encode(Created(journal[4].at, "local"))
    assert "created only once" in altered(journal, 4, event=born)[journal[4].step]
    assert "nothing but messages" in altered(journal, 0, notifications=(stop,))[1]
    index = index_of(journal, input_is("tree_reaped"))
    receipt = msgspec.json.encode(TreeReaped(journal[index].at, "another"))
    assert "differs" in altered(journal, index, event=receipt)[journal[index].step]
