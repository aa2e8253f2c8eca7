"""What a request has room for, and what a run may spend."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

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
    content_tokens,
    images_of,
    is_tool_result,
    most_tokens,
    text_of,
)
from actors.core.context import Budget, Limits
from actors.core.effects import NotifyClient, PersistState, RequestLlm
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import Event, LlmAborted, LlmError, LlmResponse, TriggerContinuation, UsageReported
from actors.core.history import (
    ImageBudget,
    Prefix,
    ProviderView,
    Room,
    Turn,
    provider_view,
    summary_view,
    within_limits,
)
from actors.core.history.provider_view import MAX_BYTES, MAX_IMAGES
from actors.core.history.result_budget import cut_text, shares
from actors.core.notifications import RunStop, UsageChanged
from actors.core.states import TERMINAL, AwaitingContinuation, Ledger
from actors.core.steps.runs import share, spent, spent_for_good
from tests.machine.columns import PARENT, Column, parent_columns, sub_agent_columns
from tests.machine.talk import OPEN, Talk

# Results of tools in requests: what is left of the window is shared by those of a round.


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


@given(text=st.text(max_size=600), tokens=st.integers(0, 500))
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


# Which images a request still shows.


def image(number: int) -> Image:
    return Image(f"sha256-{number}", "image/png", 10, 20)


def history(count: int) -> tuple[Turn, ...]:
    """Every second image is a tool's."""
    turns = []
    for number in range(count):
        shot = image(number)
        result = ToolSuccess(f"t{number}", "seen", (shot,))
        turns.append(Turn("user", (Text(f"{number}"), shot) if number % 2 else (result, Text(f"{number}"))))
        turns.append(Turn("assistant", (Text("ok"),)))
    return tuple(turns)


def shown(turns: tuple[Turn, ...]) -> Iterator[int]:
    for turn in turns:
        for block in turn.content:
            images = (block,) if isinstance(block, Image) else getattr(block, "images", ())
            yield from (int(each.attachment[7:]) for each in images)


def test_what_fits_is_left_as_it_is() -> None:
    turns = history(MAX_IMAGES)
    assert within_limits(turns, lambda image: MAX_BYTES // MAX_IMAGES) == turns
    assert within_limits((), lambda image: 0) == ()


def test_the_oldest_go_half_of_what_is_allowed_at_a_time() -> None:
    left = within_limits(history(MAX_IMAGES + 1), lambda image: 1)
    assert list(shown(left)) == list(range(MAX_IMAGES // 2, MAX_IMAGES + 1))
    assert repr(left[:4]).count("[an image, image/png 10x20, that is no longer shown]") == 2


def test_large_ones_go_too() -> None:
    left = within_limits(history(6), lambda image: MAX_BYTES // 5)
    assert list(shown(left)) == [3, 4, 5]
    assert list(shown(within_limits(history(1), lambda image: MAX_BYTES + 1))) == []


@given(sizes=st.lists(st.integers(0, MAX_BYTES // 2), max_size=40))
def test_what_is_left_always_fits_and_the_beginning_changes_seldom(sizes: list[int]) -> None:
    before: tuple[Turn, ...] = ()
    changes = 0
    for count in range(len(sizes) + 1):
        turns = within_limits(history(count), lambda image: sizes[int(image.attachment[7:])])
        assert sum(sizes[number] for number in shown(turns)) <= MAX_BYTES
        changes += turns[: len(before)] != before
        before = turns
    assert changes <= 2 * sum(sizes) / MAX_BYTES


@given(
    sizes=st.lists(st.integers(0, MAX_BYTES // 2), min_size=1, max_size=40),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30),
)
def test_a_budget_that_grows_gives_what_the_limits_give(sizes: list[int], steps: list[tuple[int, int]]) -> None:
    """However the turns are divided into settled and open ones; and what one prefix stands for never changes."""
    whole, budget, lineage = history(len(sizes)), ImageBudget(), object()
    prefixes: list[tuple[Prefix, tuple[Turn, ...]]] = []
    settled = 0
    for grown, still_open in (*steps, (2 * len(sizes), 0)):
        settled = min(len(whole), settled + grown)
        view = ProviderView(whole[: settled + still_open], settled, lineage)
        limited = budget.apply(view, lambda image: sizes[int(image.attachment[7:])])
        assert limited.turns == within_limits(view.turns, lambda image: sizes[int(image.attachment[7:])])
        for prefix, turns in prefixes:
            if limited.begins_with(prefix):
                assert limited.turns[: prefix.settled] == turns
        prefixes.append((limited.prefix, limited.turns[: limited.settled]))


def test_a_history_of_another_lineage_is_measured_again() -> None:
    budget = ImageBudget()
    for turns in (history(MAX_IMAGES + 1), history(3), history(MAX_IMAGES + 1)[2:]):
        view = ProviderView(turns, len(turns), object())
        assert budget.apply(view, lambda image: 1).turns == within_limits(turns, lambda image: 1)


def test_when_the_budget_cannot_measure_an_image_it_measures_it_next_time() -> None:
    budget, view = ImageBudget(), ProviderView(history(3), 6, object())
    with pytest.raises(ZeroDivisionError):
        budget.apply(view, lambda image: 1 // (image.attachment != "sha256-1"))
    assert budget.apply(view, lambda image: MAX_BYTES).turns == within_limits(view.turns, lambda image: MAX_BYTES)


# The thresholds of the model's window (REQ-BED-012, 019, 023).


@pytest.mark.parametrize("window", [10, 1_000, 30_000, 128_000, 199_990, 1_000_000])
def test_the_thresholds_are_exact(window: int) -> None:
    context = replace(PARENT, usable_window=window)

    assert not context.near_full(window * 8 // 10 - 1)
    assert context.near_full(window * 8 // 10)
    assert not context.full(window * 9 // 10 - 1)
    assert context.full(window * 9 // 10)


def test_the_thresholds_are_settings() -> None:
    context = replace(PARENT, limits=Limits(warn_ratio=0.5, exhaust_ratio=0.625))

    assert context.near_full(500)
    assert not context.full(624)
    assert context.full(625)


def test_an_unknown_window_is_never_full() -> None:
    context = replace(PARENT, usable_window=0)

    assert not context.near_full(10**9)
    assert not context.full(10**9)


def test_what_the_cache_read_and_wrote_fills_the_window_too() -> None:
    assert Usage(1, 10, 100, 1_000, cost_micros=9).context_tokens == 1_111


# Budgets: what is spent, in words, and how what is left is shared.


def used(run: int = 0, whole: int = 0, aside: int = 0, cost: int = 0) -> Ledger:
    return Ledger(
        run_usage=Usage(input_tokens=run),
        total_usage=Usage(output_tokens=whole, cost_micros=cost),
        aside_usage=Usage(cache_read_tokens=aside, cost_micros=cost),
    )


@pytest.mark.parametrize(
    ("budget", "ledger", "words", "for_good"),
    [
        (Budget(), used(9, 9, 9, 9), "", ""),
        (Budget(run_tokens=10), used(run=9), "", ""),
        (Budget(run_tokens=10), used(run=10), "10 tokens per run", ""),
        (Budget(conversation_tokens=10), used(whole=5, aside=4), "", ""),
        (Budget(conversation_tokens=10), used(whole=5, aside=5), "10 tokens", "10 tokens"),
        (Budget(conversation_cost_micros=2_500_000), used(cost=1_249_999), "", ""),
        (Budget(conversation_cost_micros=2_500_000), used(cost=1_250_000), "$2.50", "$2.50"),
    ],
)
def test_what_is_spent_is_named(budget: Budget, ledger: Ledger, words: str, for_good: str) -> None:
    assert spent(budget, ledger) == words
    assert spent_for_good(budget, ledger) == for_good


AMOUNT = st.integers(0, 1_000)


@given(st.builds(Budget, AMOUNT, AMOUNT, AMOUNT), st.builds(used, AMOUNT, AMOUNT, AMOUNT, AMOUNT), st.integers(1, 10))
def test_shares_are_never_more_together_than_what_is_left_nor_no_limit_where_there_was_one(
    budget: Budget, ledger: Ledger, among: int
) -> None:
    if spent(budget, ledger):
        return
    part = share(budget, ledger, among)
    whole = ledger.total_usage + ledger.aside_usage
    if budget.run_tokens:
        left = budget.run_tokens - ledger.run_usage.context_tokens
        assert part.conversation_tokens <= max(1, left // among)
    if budget.conversation_tokens:
        assert part.conversation_tokens <= max(1, (budget.conversation_tokens - whole.context_tokens) // among)
    if budget.conversation_cost_micros:
        money = budget.conversation_cost_micros - whole.cost_micros
        assert 0 < part.conversation_cost_micros <= max(1, money // among)
    assert bool(part.conversation_tokens) == bool(budget.run_tokens or budget.conversation_tokens)
    assert bool(part.conversation_cost_micros) == bool(budget.conversation_cost_micros)
    assert part.run_tokens == 0


def test_what_a_sub_agent_used_counts_for_the_run_that_started_it_while_that_is_live() -> None:
    talk = Talk()
    talk.say("go")
    for run in ("c:1", "c:7", ""):
        talk.tell(UsageReported(talk.at(), Usage(input_tokens=10), aside=False, run=run))
    assert talk.state.ledger.run_usage == Usage(input_tokens=10)
    assert talk.state.ledger.total_usage == Usage(input_tokens=30)
    talk.text("done")
    talk.tell(UsageReported(talk.at(), Usage(input_tokens=10), aside=False, run="c:1"))
    assert talk.state.ledger.run_usage == Usage(input_tokens=10)


@pytest.mark.parametrize(
    ("budget", "ledger", "among", "part"),
    [
        (Budget(), used(9, 9, 9, 9), 3, Budget()),
        (Budget(run_tokens=10), used(run=9), 1, Budget(conversation_tokens=1)),
        (Budget(run_tokens=10), used(run=9), 2, Budget(conversation_tokens=1)),
        (Budget(run_tokens=10), used(run=8), 2, Budget(conversation_tokens=1)),
        (Budget(run_tokens=10), used(run=6), 2, Budget(conversation_tokens=2)),
        (Budget(conversation_tokens=10), used(whole=5, aside=4), 10, Budget(conversation_tokens=1)),
        (Budget(conversation_tokens=10, run_tokens=5), used(run=4), 1, Budget(conversation_tokens=1)),
        (Budget(conversation_cost_micros=3), used(cost=1), 1, Budget(conversation_cost_micros=1)),
        (Budget(conversation_cost_micros=3), used(cost=1), 2, Budget(conversation_cost_micros=1)),
        (Budget(conversation_cost_micros=9), used(cost=1), 2, Budget(conversation_cost_micros=3)),
    ],
)
def test_a_share_of_nearly_nothing_is_still_a_limit(budget: Budget, ledger: Ledger, among: int, part: Budget) -> None:
    """A share of 0 would be no limit at all; one of 1 lets a sub-agent make one request."""
    assert spent(budget, ledger) == ""
    assert share(budget, ledger, among) == part


# What is spent without an answer: small requests beside the conversation, and requests that were abandoned (C44).


COLUMNS = [*parent_columns(), *sub_agent_columns()]


@pytest.mark.parametrize("aside", [True, False])
@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_in_every_state_it_changes_sums_and_nothing_else(column: Column, aside: bool) -> None:
    talk = Talk(column.context, column.state)
    before = column.state.ledger
    talk.tell(UsageReported(500, Usage(100, 10, cost_micros=3), aside=aside))
    first, *settling = talk.steps
    spent = Usage(100, 10, cost_micros=3)
    sums = {"aside_usage": before.aside_usage + spent} if aside else {"total_usage": before.total_usage + spent}
    assert first.new_state == replace(column.state, ledger=replace(before, **sums))
    assert [type(effect) for effect in first.effects] == [PersistState, NotifyClient]
    (told,) = [effect.data for effect in first.effects if isinstance(effect, NotifyClient)]
    assert isinstance(told, UsageChanged)
    assert (told.used_tokens, told.total) == (before.used_tokens, first.new_state.ledger.total_usage)
    assert not (settling and isinstance(column.state, TERMINAL))


@pytest.mark.parametrize("budget", [Budget(conversation_tokens=100), Budget(conversation_cost_micros=50)])
@pytest.mark.parametrize("aside", [True, False])
def test_it_counts_against_the_budget_of_the_conversation(budget: Budget, aside: bool) -> None:
    talk = Talk(replace(OPEN, budget=budget))
    talk.tell(UsageReported(talk.at(), Usage(100, cost_micros=50), aside=aside))
    talk.say("go")
    assert [stop.detail for stop in talk.notes(RunStop)] == ["budget"]


def test_it_does_not_count_against_that_of_a_run() -> None:
    talk = Talk(replace(OPEN, budget=Budget(run_tokens=10)))
    talk.say("go")
    talk.tell(UsageReported(talk.at(), Usage(100), aside=True))
    talk.tell(UsageReported(talk.at(), Usage(100), aside=False))
    assert talk.state.ledger.run_usage == Usage()
    talk.text("done")
    talk.say("more")
    assert talk.acts(RequestLlm)


@pytest.mark.parametrize(
    "outcome",
    [
        LlmResponse(2_000, "c:r2", 1, (Text("Summed up."),), True, Usage(30)),
        LlmResponse(2_000, "c:r2", 1, (), True, Usage(30)),
        LlmError(2_000, "c:r2", 1, LlmFailure(ErrorKind.NETWORK, "cut"), usage=Usage(30)),
        LlmError(2_000, "c:r2", 1, LlmFailure(ErrorKind.INVALID_REQUEST, "no"), usage=Usage(30)),
        LlmAborted(2_000, "c:r2", 1, Usage(30)),
    ],
    ids=["summary", "empty", "network", "refused", "aborted"],
)
def test_every_attempt_of_a_summary_costs_and_leaves_the_window_as_it_is(outcome: Event) -> None:
    talk = Talk(OPEN)
    talk.say("go")
    talk.tell(LlmResponse(talk.at(), "c:r1", 1, (Text("done"),), True, Usage(7)))
    talk.tell(TriggerContinuation(talk.at()))
    assert isinstance(talk.state, AwaitingContinuation)
    asked = talk.state.through_sequence
    talk.tell(outcome)
    assert (talk.state.ledger.total_usage, talk.state.ledger.used_tokens) == (Usage(37), 7)
    for summary in talk.messages:
        if summary.kind is SystemKind.SUMMARY:
            assert (summary.through_sequence, summary.usage) == (asked, Usage(30))
