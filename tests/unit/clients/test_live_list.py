"""`bedrock watch` without a name: a line for each change of the list of conversations."""

from bedrock import v1
from bedrock.cli.commands import inspect as live_list
from bedrock.cli.text.style import Paint
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


def test_a_line_names_a_conversation_by_its_slug_as_long_as_it_is_known() -> None:
    gone = [
        v1.WatchConversationsResponse(conversation_unmatched="conversations/c1"),
        v1.WatchConversationsResponse(conversation_deleted="conversations/c1"),
    ]
    line, slugs = live_list._line, {"conversations/c1": "calm-otter"}
    assert line(ConversationListEvent.from_proto(gone[0]), PLAIN, slugs) == "calm-otter  no longer matches"
    assert line(ConversationListEvent.from_proto(gone[1]), PLAIN, slugs) == "conversations/c1  deleted"
    assert line(changed("calm-otter", 1), PLAIN, slugs) == "calm-otter  running a tool"
    assert slugs == {"conversations/calm-otter": "calm-otter"}


def test_a_title_cannot_control_the_terminal() -> None:
    assert "\x1b" not in live_list._line(changed("a", 1, title="\x1b]0;x\x07evil"), PLAIN, {})
