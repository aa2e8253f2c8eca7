"""Messages as clients see them."""

from __future__ import annotations

import pytest
from bedrock import v1

from actors.core.content import ToolUse
from server.wire.messages import message, queued_message, tool_call
from server.wire.values import MAX_DEPTH, struct
from tests.support.samples import FACTS, FAILURE, MESSAGE, NOTICE, QUEUED, RESULTS


def test_an_agent_message_names_its_request_its_cycle_and_what_it_used() -> None:
    shown = message(FACTS, "c", MESSAGE)
    assert shown.name == "conversations/c/messages/m-7"
    assert (shown.sequence, shown.role, shown.llm_request_id, shown.attempt) == (7, v1.ROLE_AGENT, "c:r5", 1)
    assert shown.request_cycle == "conversations/c/requestCycles/c:3"
    assert shown.usage.cost_micros == 50
    assert shown.create_time.ToMilliseconds() == 1_234
    assert v1.Message.FromString(shown.SerializeToString()) == shown


def test_blocks_come_in_order_without_hidden_reasoning() -> None:
    kinds = [block.WhichOneof("block") for block in message(FACTS, "c", MESSAGE).content]
    assert kinds == ["reasoning", "text", "tool_call", "tool_call"]


def test_input_that_is_no_object_is_shown_as_it_was_written() -> None:
    whole, broken = [each.tool_call for each in message(FACTS, "c", MESSAGE).content if each.HasField("tool_call")]
    assert whole.input["command"] == "ls"
    assert whole.raw_input == ""
    assert not broken.HasField("input")
    assert broken.raw_input == "{broken"


@pytest.mark.parametrize("text", ["", "[]", "1", '{"a": NaN}', "{" * 50, '{"a":1e999}'])
def test_what_is_no_json_object_has_no_struct(text: str) -> None:
    assert struct(text) is None


def test_an_object_too_deep_for_readers_is_shown_as_text_and_survives_the_wire() -> None:
    deep = '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1)
    shown = tool_call(FACTS, ToolUse("x", "bash", deep))
    assert shown.raw_input == deep
    fitting = '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    shown = tool_call(FACTS, ToolUse("x", "bash", fitting))
    event = v1.SubscribeResponse(
        events=[v1.Event(message_added=v1.Message(content=[v1.ContentBlock(tool_call=shown)]))]
    )
    assert v1.SubscribeResponse.FromString(event.SerializeToString()) == event
    assert shown.HasField("input")


def test_an_object_that_takes_many_times_its_text_is_shown_as_text() -> None:
    numbers = '{"a":[' + ",".join(["1"] * 5000) + "]}"
    shown = tool_call(FACTS, ToolUse("x", "bash", numbers))
    assert (shown.HasField("input"), shown.raw_input) == (False, numbers)
    assert tool_call(FACTS, ToolUse("x", "bash", '{"a":[1,1,1]}')).HasField("input")
    words = '{"cmd":"' + "x" * 100_000 + '"}'
    assert tool_call(FACTS, ToolUse("x", "bash", words)).HasField("input")


def test_results_say_how_each_call_ended() -> None:
    results = [block.tool_result for block in message(FACTS, "c", RESULTS).content]
    assert [result.outcome for result in results] == [
        v1.TOOL_OUTCOME_OK, v1.TOOL_OUTCOME_DENIED, v1.TOOL_OUTCOME_SKIPPED, v1.TOOL_OUTCOME_OK,
    ]  # fmt: skip
    first, second = results[:2]
    assert first.output == "a\nb"
    assert first.images[0].attachment == "conversations/c/attachments/hash"
    assert first.display["diff"] == "+a"
    assert first.duration.ToMilliseconds() == 1_500
    assert not second.HasField("display")
    assert not second.HasField("duration")


def test_messages_of_the_server_say_why() -> None:
    notice, failure = message(FACTS, "c", NOTICE), message(FACTS, "c", FAILURE)
    assert (notice.system_kind, notice.meta) == (v1.SYSTEM_MESSAGE_KIND_MODE_RESTRICTED, True)
    assert (failure.role, failure.error_kind) == (v1.ROLE_ERROR, v1.ERROR_KIND_RATE_LIMIT)


def test_a_waiting_message_has_its_name_but_no_place() -> None:
    shown = queued_message("c", QUEUED, "follow_up")
    assert shown.name == "conversations/c/messages/m-11"
    assert (shown.sequence, shown.delivery, shown.role) == (0, v1.DELIVERY_FOLLOW_UP, v1.ROLE_USER)
    assert [block.WhichOneof("block") for block in shown.content] == ["image", "text"]
    assert shown.request_cycle == ""
