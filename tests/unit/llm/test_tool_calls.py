"""Ids that are unique and fit every provider; inputs that are JSON objects."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.adapters.llm.protocols.answer_builder import accepted_calls, call_arguments, call_name
from actors.core.content import Content, Text, ToolUse, call_id, distinct_calls, tool_uses
from tests.support.model_requests import assistant, request, user

IDS = st.one_of(st.sampled_from(["", "a", "b", "c1-r7-1", "x.y"]), st.text(max_size=50))


@settings(deadline=None)
@given(st.lists(IDS, max_size=6), st.lists(IDS, max_size=4))
def test_ids_end_up_unique_and_fit_every_provider(new: list[str], old: list[str]) -> None:
    asked = request(user("a"), assistant(*(ToolUse(identity, "bash", "{}") for identity in old)), user("b"))
    calls = tuple(ToolUse(identity, "bash", str(i)) for i, identity in enumerate(new))
    calls = tool_uses(accepted_calls((Text("first"), *calls), asked))
    assert distinct_calls(calls, asked.request_id) == calls, "the core has nothing to change"
    ids = [call.id for call in calls]
    assert len(set(ids) | set(old)) == len(ids) + len(set(old))
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,40}", identity) for identity in ids)
    assert [call.input for call in calls] == [str(i) for i in range(len(new))]


def test_a_good_id_stays() -> None:
    content: tuple[Content, ...] = (Text("a"), ToolUse("toolu_01", "bash", "{}"))
    assert accepted_calls(content, request()) == content


def test_made_ids_are_deterministic_and_short() -> None:
    assert call_id("c1:r7", 0) == "c1-r7-0"
    long = call_id("conversation-" * 10 + ":r7", 0)
    assert long == call_id("conversation-" * 10 + ":r7", 0)
    assert len(long) <= 40
    assert long != call_id("conversation-" * 10 + ":r7", 1)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=30), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2).map(json.dumps)))
def test_arguments_are_always_an_object_and_verbatim_if_they_were(raw: str) -> None:
    arguments = call_arguments(ToolUse("t", "bash", raw))
    decoded = json.loads(arguments)
    assert isinstance(decoded, dict)
    assert arguments == raw.encode() or decoded in ({}, {"INVALID_JSON": raw})


def test_a_good_name_stays_and_a_made_up_one_becomes_one_that_providers_take() -> None:
    names = ["spawn_sub_agent", "functions.bash", "", "rm -rf /\n", "n" * 65]
    told = [call_name(ToolUse("t", name, "{}")) for name in names]
    assert told == ["spawn_sub_agent", "functions_bash", "unnamed", "rm_-rf___", "n" * 64]
