"""`bedrock watch` without a name: a table that follows the list of conversations."""

from __future__ import annotations

from bedrock import v1
from bedrock.cli.commands import watch as live_list
from bedrock.cli.commands.watch import Listing
from bedrock.cli.text.style import Paint, cells
from bedrock.conversations import ConversationListEvent
from google.protobuf.timestamp_pb2 import Timestamp

PLAIN = Paint(False)


def changed(slug: str, seconds: int, **fields: object) -> ConversationListEvent:
    conversation = v1.Conversation(
        name=f"conversations/{slug}",
        slug=slug,
        mode=v1.MODE_RESTRICTED,
        state=v1.ConversationState(kind=v1.STATE_KIND_TOOL_EXECUTING),
        update_time=Timestamp(seconds=seconds),
        working_directory="/work",
        **fields,  # type: ignore[arg-type]
    )
    return ConversationListEvent.from_proto(v1.WatchConversationsResponse(conversation_changed=conversation))


def table(*entries: ConversationListEvent, width: int = 100, height: int = 20) -> list[str]:
    listing = Listing()
    for entry in entries:
        listing.apply(entry)
    return [*listing.lines(PLAIN, width, height)]


def test_no_line_is_wider_than_the_terminal_whatever_it_makes_of_wide_characters() -> None:
    titles = ["漢字" * 40, "\N{WOMAN}\u200d\N{GIRL}" * 30, "\N{HEAVY BLACK HEART}\ufe0f" * 50]
    lines = table(*(changed(f"s-{number}", number, title=title) for number, title in enumerate(titles)), width=70)
    assert [cells(line) in (69, 70) for line in lines[1:]] == [True] * 3


def test_the_latest_changed_is_first_and_each_conversation_once() -> None:
    usage = v1.ContextUsage(used_tokens=250, usable_window_tokens=1_000)
    lines = table(changed("a", 1), changed("b", 2), changed("a", 3, title="New title", context_usage=usage))
    assert lines == [
        "slug  state           mode        context  directory  title",
        "a     tool executing  restricted  25 %     /work      New title",
        "b     tool executing  restricted           /work",
    ]


def test_what_is_deleted_or_archived_leaves_the_table() -> None:
    deleted = v1.WatchConversationsResponse(conversation_deleted="conversations/a")
    gone = ConversationListEvent.from_proto(deleted)
    archived = changed("b", 3, archive_time=Timestamp(seconds=3))
    assert table(changed("a", 1), changed("b", 2), gone, archived) == ["No conversations. Start one: `bedrock chat`."]
    assert "b" in table(archived, changed("b", 4))[1]


def test_a_table_fits_the_terminal_and_counts_what_it_leaves_out() -> None:
    lines = table(*(changed(f"c{number}", number, title="x" * 300) for number in range(30)), width=40, height=6)
    assert len(lines) == 6
    assert max(map(len, lines)) <= 40
    assert lines[-1] == "and 26 more"
    assert lines[1].startswith("c29 ")


def test_a_title_cannot_control_the_terminal() -> None:
    assert "\x1b" not in "".join(table(changed("a", 1, title="\x1b]0;x\x07evil")))


def test_a_line_names_a_conversation_by_its_slug_as_long_as_it_is_known() -> None:
    gone = [
        v1.WatchConversationsResponse(conversation_unmatched="conversations/c1"),
        v1.WatchConversationsResponse(conversation_deleted="conversations/c1"),
    ]
    line, slugs = live_list._line, {"conversations/c1": "calm-otter"}
    assert line(ConversationListEvent.from_proto(gone[0]), PLAIN, slugs) == "calm-otter  no longer matches"
    assert line(ConversationListEvent.from_proto(gone[1]), PLAIN, slugs) == "conversations/c1  deleted"
    assert line(changed("calm-otter", 1), PLAIN, slugs) == "calm-otter  tool executing"
    assert slugs == {"conversations/calm-otter": "calm-otter"}
