"""Results of tools in requests: what is left of the window is shared by those of a round."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.core.content import (
    Content,
    Image,
    Message,
    MessageType,
    SubAgentComplete,
    SystemKind,
    Text,
    ToolCancelled,
    ToolError,
    ToolSuccess,
    ToolUse,
    Usage,
    images_of,
    is_tool_result,
    text_of,
)
from actors.core.history import Room, provider_view, summary_view
from actors.core.history.result_budget import cut_text, shares
from actors.core.thresholds import content_tokens, most_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.core.history import Turn

ROOM = Room(usable=6_000, fixed=1_000)
NUMBERS = "\n".join(map(str, range(1, 40_001)))
"""What `seq 1 40000` prints; every digit is a token to many models."""
SHOT = Image("sha256-1", "image/png", 10, 20)

MUCH: dict[str, Content] = {
    "bash": ToolSuccess("t", NUMBERS),
    "read_file": ToolSuccess("t", NUMBERS),
    "search": ToolSuccess("t", NUMBERS),
    "keyword_search": ToolError("t", NUMBERS),
    "mcp__server__tool": ToolSuccess("t", NUMBERS, display="{}"),
    "a_clients_tool": ToolSuccess("t", NUMBERS),
    "read_image": ToolSuccess("t", "seen", (SHOT,) * 9),
    "spawn_sub_agent": SubAgentComplete("t", NUMBERS),
    "stopped": ToolCancelled("t", NUMBERS),
}
"""By tool: a result that the window has no room for."""


class Script:
    """A conversation: each round is an answer with calls, and their results."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.heads: list[int] = []
        """The last message of each request."""
        self.say(MessageType.USER, Text("go"))

    def say(self, speaker: MessageType, *content: Content, **fields: object) -> None:
        number = len(self.messages) + 1
        self.messages.append(replace(Message(f"m{number}", number, speaker, content, 0), **fields))

    def round(self, *results: Content, names: Iterable[str] = (), used: int = 0) -> None:
        head = len(self.messages)
        self.heads.append(head)
        named = [*names] or ["bash"] * len(results)
        calls = [ToolUse(f"t{head}-{n}", name, "{}") for n, name in enumerate(named)]
        usage = Usage(used) if used else None
        self.say(MessageType.AGENT, Text("look"), *calls, through_sequence=head, usage=usage)
        for call, result in zip(calls, results, strict=True):
            assert is_tool_result(result)
            self.say(MessageType.TOOL, replace(result, tool_use_id=call.id))

    def view(self, room: Room = ROOM, through: int = 0) -> tuple[Turn, ...]:
        return provider_view(self.messages, through or len(self.messages), room=room)

    def outputs(self, room: Room = ROOM) -> list[str]:
        return [block.output for turn in self.view(room) for block in turn.content if is_tool_result(block)]


def most(turns: Iterable[Turn]) -> int:
    """The tokens of the turns at most: a text of theirs in bytes, since no tokenizer has more."""
    blocks = [block for turn in turns for block in turn.content]
    texts = [block.output if is_tool_result(block) else text_of((block,)) for block in blocks]
    return sum(len(text.encode()) for text in texts) + 1_600 * sum(1 for _ in images_of(blocks))


@given(wanted=st.lists(st.integers(0, 10_000), max_size=30), total=st.integers(-10, 20_000))
def test_shares_are_fair_and_use_what_there_is(wanted: list[int], total: int) -> None:
    given_ = shares(wanted, total)
    assert len(given_) == len(wanted)
    assert all(0 <= share <= want for share, want in zip(given_, wanted, strict=True))
    assert sum(given_) == min(sum(wanted), max(total, 0)) or not wanted
    short = [share for share, want in zip(given_, wanted, strict=True) if share < want]
    assert all(share >= max(given_) - 1 for share in short), "another got more than one that wanted more"


@given(wanted=st.lists(st.integers(0, 1_000), min_size=1, max_size=9), total=st.integers(0, 9_000), data=st.data())
def test_a_share_does_not_depend_on_the_order_by_more_than_what_cannot_be_divided(
    wanted: list[int], total: int, data: st.DataObject
) -> None:
    mixed = data.draw(st.permutations(wanted))
    assert all(
        abs(a - b) <= 1 for a, b in zip(sorted(shares(wanted, total)), sorted(shares(mixed, total)), strict=True)
    )


@given(text=st.text(max_size=3_000), tokens=st.integers(0, 2_000))
def test_a_cut_text_fits_has_its_head_and_tail_and_says_how_much_is_missing(text: str, tokens: int) -> None:
    cut = cut_text(text, tokens, "hint")
    if cut == text:
        return
    head, _, rest = cut.partition("\n[")
    remark, _, tail = rest.partition(": hint]\n")
    assert most_tokens(cut) <= max(tokens, most_tokens(cut_text(text, 0, "hint"))) + 2
    assert text.startswith(head) or "\n[" in text
    assert text.endswith(tail) or "\n[" in text
    missing = int(remark.partition(" ")[0].replace(",", "")) if "\n[" not in text else len(text) - len(head) - len(tail)
    assert len(head) + missing + len(tail) == len(text)


@pytest.mark.parametrize("text", [NUMBERS, "a" * 90_000, "é" * 9_000, "{}[]" * 9_000, "word " * 9_000])
def test_most_tokens_is_no_less_than_the_existing_estimate(text: str) -> None:
    assert most_tokens(text) >= content_tokens((Text(text),))


@pytest.mark.parametrize("name", MUCH)
def test_the_result_of_any_tool_leaves_room_in_the_window(name: str) -> None:
    script = Script()
    script.round(MUCH[name], names=[name])

    (said,) = script.outputs()

    assert most(script.view()) < ROOM.usable - ROOM.fixed
    if name == "read_image":
        assert said.count("is left out here, because the context window has no room") == 8
    else:
        assert said.startswith("1\n2\n3\n")
        assert said.endswith("\n39999\n40000")
        assert "characters are left out here, because the context window has no room for them: " in said


def test_the_results_of_sub_agents_that_a_command_started_are_cut_too() -> None:
    script = Script()
    script.say(MessageType.SYSTEM, Text(NUMBERS), kind=SystemKind.SUB_AGENT_RESULTS)
    assert most(script.view()) < ROOM.usable - ROOM.fixed


def test_a_cut_says_how_the_rest_is_read() -> None:
    script = Script()
    names = ["bash", "read_file", "search", "mcp__server__tool"]
    script.round(*[ToolSuccess("t", NUMBERS)] * 4, names=names)
    ends = [said[said.index("no room for them: ") + 18 :].partition("]")[0] for said in script.outputs()]
    assert ends == [
        "print less at a time, or write the output to a file and read that in parts",
        "read on with offset and limit",
        "search with a narrower pattern or path",
        "ask for less at a time",
    ]


def test_eight_large_results_share_the_room_and_a_small_one_is_whole() -> None:
    script = Script()
    script.round(*[ToolSuccess("t", NUMBERS)] * 4, ToolSuccess("t", "small"), *[ToolSuccess("t", NUMBERS)] * 4)

    said = script.outputs()

    assert said[4] == "small"
    sizes = {len(text) for text in said if text != "small"}
    assert max(sizes) - min(sizes) < 10
    assert most(script.view()) < ROOM.usable - ROOM.fixed


def test_what_fits_and_what_no_window_bounds_is_as_it_was() -> None:
    script = Script()
    script.round(ToolSuccess("t", "x " * 500), ToolSuccess("t", "seen", (SHOT,)))
    assert script.view() == script.view(Room())
    script.round(ToolSuccess("t", NUMBERS))
    assert script.outputs(Room())[-1] == NUMBERS


def test_what_the_provider_counted_decides_how_much_is_left() -> None:
    little, much = Script(), Script()
    little.round(ToolSuccess("t", NUMBERS), used=1_200)
    much.round(ToolSuccess("t", NUMBERS), used=5_000)
    assert len(much.outputs()[0]) < len(little.outputs()[0]) / 2
    assert most(much.view()) < 1_000


def test_what_the_request_contains_beside_the_results_counts() -> None:
    script = Script()
    script.round(ToolSuccess("t", NUMBERS))
    before = len(script.outputs()[0])
    script.say(MessageType.USER, Text("by the way " * 1_000))
    assert len(script.outputs()[0]) < before


@pytest.mark.parametrize("used", [0, 1])
def test_what_was_cut_once_stays_cut_so_that_caches_hold(used: int) -> None:
    """Every view of an answered request is the beginning of the next, over many rounds that print too much."""
    script = Script()
    for number in range(1, 12):
        script.round(ToolSuccess("t", NUMBERS), ToolError("t", "e" * 900), used=used * (1_000 + 350 * number))
    views = [script.view(through=head) for head in script.heads]
    assert all(later[: len(view)] == view for view, later in pairwise(views))


def test_a_refusal_cuts_the_results_up_to_it_further_and_no_later_one() -> None:
    script = Script()
    script.round(ToolSuccess("t", NUMBERS), ToolSuccess("t", "x" * 300))
    first = script.outputs()
    narrowed = replace(ROOM, narrowed=len(script.messages))
    assert len(script.outputs(narrowed)[0]) < len(first[0]) / 3
    assert script.outputs(narrowed)[1] == first[1], "what is small stays whole"
    script.round(ToolSuccess("t", NUMBERS))
    assert len(script.outputs(narrowed)[2]) > len(script.outputs(narrowed)[0])


def test_a_smaller_model_gets_what_a_larger_one_got_whole_in_parts() -> None:
    script = Script()
    for used in (10_000, 60_000, 120_000):
        script.round(ToolSuccess("t", "y" * 9_000), used=used)
    assert script.view(Room(usable=200_000)) == script.view(Room())
    assert most(script.view()) < 4 * ROOM.usable


def summary(script: Script, room: Room = ROOM, used: int = 0, halved: int = 0) -> tuple[Turn, ...]:
    return summary_view(script.messages, len(script.messages), ("bash",), room=room, used=used, halved=halved)


def tokens(turns: Iterable[Turn]) -> int:
    return content_tokens(block for turn in turns for block in turn.content)


def long_talk() -> Script:
    script = Script()
    for number in range(60):
        script.say(MessageType.USER, Text(f"question {number} " + "why " * 300))
        script.say(MessageType.AGENT, Text("because " * 20), through_sequence=len(script.messages))
    return script


def test_the_request_for_a_summary_fits_the_window() -> None:
    script = long_talk()
    assert tokens(summary(script, Room())) > 2 * ROOM.usable
    turns = summary(script)
    assert tokens(turns) <= ROOM.usable - ROOM.fixed
    assert "question 0 " in text_of(turns[0].content)
    assert "Answer with the summary only." in text_of(turns[-1].content)
    assert "question 59 " in "".join(text_of(turn.content) for turn in turns)


def test_a_history_that_fits_is_summed_up_whole() -> None:
    script = long_talk()
    wide = Room(usable=50_000)
    assert summary(script, wide) == summary(script, Room())
    assert summary(script, wide, used=45_000) == summary(script, Room())


@pytest.mark.parametrize("halved", [1, 2, 3])
def test_each_refusal_halves_the_history_that_is_summed_up(halved: int) -> None:
    room = Room(usable=30_000)
    whole, turns = summary(long_talk(), room), summary(long_talk(), room, halved=halved)
    assert tokens(whole) >> (halved + 2) < tokens(turns) <= tokens(whole) >> halved


def test_where_the_provider_counts_more_than_is_estimated_the_summary_is_of_less() -> None:
    script = long_talk()
    room = Room(usable=30_000)
    assert tokens(summary(script, room, used=90_000)) < tokens(summary(script, room)) / 2


def test_a_history_of_very_many_parts_loses_those_in_the_middle() -> None:
    script = Script()
    for number in range(3_000):
        script.say(MessageType.USER, Text(f"{number} " + "word " * 100))
    turns = summary(script, Room(usable=4_000))
    assert tokens(turns) <= 4_000
    text = "".join(text_of(turn.content) for turn in turns)
    assert "parts of the conversation are left out here" in text
    assert "2999 word" in text


def test_short_parts_are_summed_up_whole_however_much_the_provider_counts() -> None:
    script = Script()
    script.say(MessageType.USER, Text("Add one and one."))
    script.say(MessageType.AGENT, Text("That is two."))
    room = Room(usable=8_000, fixed=4_000)
    assert summary(script, room, used=80_000) == summary(script, Room())
