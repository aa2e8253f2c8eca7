"""A conversation is made once for each commit, whoever shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from actors.core.context import Limits
from actors.core.states import Idle
from server.wire import conversation_messages
from server.wire.conversation_messages import KEPT, KEPT_BYTES, EncodedConversations, conversation, state_of
from server.wire.values import ConversionContext
from tests.support.samples import FACTS, STATES, record

if TYPE_CHECKING:
    from bedrock import v1

    from actors.ports import ConversationRecord


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the conversations that were made, in order."""
    ids: list[str] = []

    def counted(conversion: ConversionContext, row: ConversationRecord, *known: Any) -> v1.Conversation:
        ids.append(row.id)
        return conversation(conversion, row, *known)

    monkeypatch.setattr(conversation_messages, "conversation", counted)
    return ids


def test_one_version_is_made_once(made: list[str]) -> None:
    encoded, row = EncodedConversations(FACTS), record(Idle())
    assert encoded.message(row) is encoded.message(row)
    assert encoded.wire(row) is encoded.wire(row)
    assert encoded.wire(row) == conversation(FACTS, row).SerializeToString()
    assert made == [row.id]


def test_every_commit_is_a_version_of_its_own(made: list[str]) -> None:
    encoded, row = EncodedConversations(FACTS), record(Idle())
    changed = replace(row, title="another")
    assert encoded.message(row).title != encoded.message(changed).title == "another"
    assert len(made) == 2


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_state_that_a_commit_leaves_as_it_is_is_not_made_again(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, row = EncodedConversations(FACTS), record(state)
    encoded.message(row)
    changed = replace(row, title="another")
    expected = conversation(FACTS, changed)
    monkeypatch.setattr("server.wire.conversation_messages.state_of", lambda *_: pytest.fail("it was made again"))
    assert encoded.message(changed) == expected


def test_a_state_that_was_entered_again_is_made_again() -> None:
    encoded, row = EncodedConversations(FACTS), record(Idle())
    encoded.message(row)
    entered = replace(row, state_updated_at=row.state_updated_at + 1)
    assert encoded.message(entered).state == state_of(FACTS, entered)


def test_a_window_that_has_become_known_is_shown() -> None:
    windows = [1_000]
    encoded = EncodedConversations(ConversionContext({}, lambda model: windows[0], Limits()))
    row = record(Idle())
    assert encoded.message(row).context_usage.usable_window_tokens == 1_000
    windows[0] = 2_000
    assert encoded.message(row).context_usage.usable_window_tokens == 2_000


def test_only_so_many_are_kept(made: list[str]) -> None:
    encoded, rows = EncodedConversations(FACTS), [replace(record(Idle()), id=f"c{n}") for n in range(KEPT + 1)]
    for row in rows:
        encoded.message(row)
    encoded.message(rows[-1])
    assert len(made) == KEPT + 1
    encoded.message(rows[0])
    assert len(made) == KEPT + 2


def test_a_large_one_is_not_kept(made: list[str]) -> None:
    encoded, row = EncodedConversations(FACTS), record(Idle(), labels={"a": "x" * KEPT_BYTES})
    encoded.message(row)
    encoded.message(row)
    assert len(made) == 2
