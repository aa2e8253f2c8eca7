"""A view that grows with its history is, at every step, the view that is built of the whole (C48).

Here over histories that no machine writes, whose answers leave out anything; test_walks.py holds it along every life.
"""

from collections.abc import Sequence

from hypothesis import given

from actors.core.content import (
    Content,
    Image,
    Message,
    MessageType,
    Reasoning,
    SystemKind,
    Text,
    ToolSuccess,
    ToolUse,
    tool_uses,
)
from actors.core.history import violations
from tests.property.growing import Growing
from tests.property.profiles import profile
from tests.property.tape import Tape, tapes

WORDS: tuple[Content, ...] = tuple(map(Text, ("", " ", "hi", "<system-notice>no")))
PICTURE = Image("sha256-1", "image/png", 10, 20)
THOUGHTS: tuple[Content, ...] = tuple(Reasoning("hm", by, of) for by in ("", "demo", "anthropic") for of in ("a-1", ""))


def a_history(tape: Tape) -> list[Message]:
    """Valid chains: answers without a word, of thoughts alone, in a row, and to requests long ago."""
    history: list[Message] = []

    def add(kind: MessageType, content: Sequence[Content], through: int = 0) -> None:
        number = len(history) + 1
        system = tape.pick(tuple(SystemKind)) if kind is MessageType.SYSTEM else SystemKind.NONE
        history.append(Message(f"m{number}", number, kind, tuple(content), 0, through_sequence=through, kind=system))

    chained = 0
    for kind in tape.some((*MessageType, MessageType.AGENT), 12):
        if kind is not MessageType.AGENT:
            add(MessageType.USER if kind is MessageType.TOOL else kind, tape.some((*WORDS, PICTURE), 3))
            continue
        calls = [ToolUse(f"t{len(history)}-{n}", "bash", "{}") for n in range(tape.number(2))]
        through = chained + tape.number(len(history) - chained)
        add(kind, [*tape.some((*THOUGHTS, *WORDS), 3), *calls], through)
        for call in tool_uses(history[-1].content):
            add(MessageType.TOOL, [ToolSuccess(call.id, tape.pick(("out", "1 2 3 " * 500)))])
        chained = len(history)
    return history


@profile(500)
@given(tapes(120, 120).map(a_history))
def test_over_any_valid_history_the_growing_view_is_the_view_of_the_whole(history: list[Message]) -> None:
    assert violations(history) == ()
    Growing().follow(history)


def test_what_is_not_settled_does_not_grow_with_the_history() -> None:
    history: list[Message] = []
    growing, open_turns = Growing(), set[int]()
    for number in range(1, 200, 4):
        call = ToolUse(f"t{number}", "bash", "{}")
        history += [
            Message(f"m{number}", number, MessageType.USER, (Text("hi"),), 0),
            Message(f"m{number + 1}", number + 1, MessageType.AGENT, (call,), 0, through_sequence=number),
            Message(f"m{number + 2}", number + 2, MessageType.TOOL, (ToolSuccess(call.id, "out"),), 0),
            Message(f"m{number + 3}", number + 3, MessageType.AGENT, (Text("ok"),), 0, through_sequence=number + 2),
        ]
        growing.follow(history)
        view = growing.views["", ""].view()
        open_turns.add(len(view.turns) - view.settled)
    assert open_turns == {2}
