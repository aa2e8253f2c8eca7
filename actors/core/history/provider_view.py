"""Builds the turns of a model request from a history: roles alternate, and each answer directly follows its request."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from actors.core.content import (
    Content,
    Image,
    Message,
    MessageType,
    Reasoning,
    SubAgentComplete,
    SystemKind,
    Text,
    ToolCancelled,
    ToolError,
    ToolSuccess,
    ToolUse,
    content_tokens,
    images_of,
    is_tool_result,
    text_of,
    tool_uses,
)
from actors.core.history.result_budget import UNLIMITED, Room, bounded, cut_text, image_remark, shares
from actors.core.steps import texts

# The text that asks a model to continue an unfinished answer if there is no new message.
CONTINUE = "Continue."


class Turn(Struct, frozen=True, gc=False):
    """One turn of a request; the model adapters convert its blocks into the provider's JSON."""

    role: str
    """"user" or "assistant"."""
    content: tuple[Content, ...]
    """User turns have tool results first, then text and images; assistant turns keep the model's order."""


class Prefix(NamedTuple):
    """Identifies the beginning of a view, so that a later view of the same history is recognised in constant time."""

    settled: int = 0
    """The number of turns in this beginning."""
    lineage: object = None
    """Views that have the same object here (compared by identity) begin with the same turns."""


class ProviderView(Struct, frozen=True):
    """The part of a history that a request contains, as turns."""

    turns: tuple[Turn, ...]
    settled: int = 0
    """The number of leading turns with which every later view of the same history also begins."""
    lineage: object = None
    settled_calls: AbstractSet[str] = frozenset()
    """Ids of the tool calls in the first `settled` turns. The set is shared with later views, so it may grow."""

    @property
    def prefix(self) -> Prefix:
        return Prefix(self.settled, self.lineage)

    def begins_with(self, prefix: Prefix) -> bool:
        return not prefix.settled or (prefix.lineage is self.lineage and prefix.settled <= self.settled)


def provider_view(
    messages: Iterable[Message], through_sequence: int, *, protocol: str = "", model: str = "", room: Room = UNLIMITED
) -> tuple[Turn, ...]:
    """Build the turns of a request from the messages up to number `through_sequence`.

    Roles alternate; the last turn is the user's. System messages become user content inside a tag; the same tag in
    texts from users and tools is escaped. Reasoning from a wire protocol or model other than `protocol` and `model` is
    omitted; "" includes all. Results that need too much of `room` are cut. The turns are append-only, as the docstring
    of `actors.core.history` explains. Returns () for a history with nothing to send.
    """
    placed, _ = bounded(in_provider_order(messages, through_sequence), room, room.fixed)
    return turns_of(placed, protocol, model)


def turns_of(placed: Iterable[Message], protocol: str, model: str) -> tuple[Turn, ...]:
    turns = TurnBuilder()
    for message in placed:
        if message.type is MessageType.AGENT:
            turns.add("assistant", answer_content(message, protocol, model))
        else:
            turns.add("user", user_content(message))
    return turns.closed()


class TurnBuilder:
    """Builds turns: joins blocks in order, and begins a turn when the role changes."""

    def __init__(self) -> None:
        self._turns: list[tuple[str, list[Content]]] = []

    def add(self, role: str, content: Iterable[Content]) -> None:
        """Add the blocks that are not blank to the current turn, or to a new one if the role changes."""
        blocks = [block for block in content if not is_blank(block)]
        if not blocks:
            return
        if self._turns and self._turns[-1][0] == role:
            if role == "user":
                self._turns[-1][1].extend(blocks)
                return
            # Two answers without a message between them: the request for the second one ended with this user turn.
            self._turns.append(("user", [Text(CONTINUE)]))
        self._turns.append((role, blocks))

    def closed(self) -> tuple[Turn, ...]:
        """The turns so far; if the last is the assistant's, a user turn that asks the model to continue is added."""
        if self._turns and self._turns[-1][0] == "assistant":
            self._turns.append(("user", [Text(CONTINUE)]))
        return tuple(Turn(role, tuple(blocks)) for role, blocks in self._turns)


class ProviderOrder:
    """Puts each answer directly after the messages in its request; messages stored later follow its tool results."""

    def __init__(self) -> None:
        self._placed: list[Message] = []
        self._late: list[Message] = []
        # The number of tool calls in the last answer that have no result yet.
        self._unanswered = 0
        # The index of the last answer in `_placed`.
        self._answer = 0

    @property
    def placed(self) -> list[Message]:
        return self._placed + self._late

    def add(self, message: Message) -> None:
        if message.type is MessageType.ERROR:
            return
        if message.type is MessageType.AGENT:
            self._placed += self._late
            self._late = self._pop_later(message)
            self._answer = len(self._placed)
            self._unanswered = len(tool_uses(message.content))
        elif message.type is MessageType.TOOL:
            self._unanswered -= sum(is_tool_result(block) for block in message.content)
        self._placed.append(message)
        if self._late and not self._unanswered:
            self._placed += self._late
            self._late = []

    def pop_settled(self) -> list[Message]:
        """Remove and return the messages before the last answer, whose order is final."""
        settled, self._placed = self._placed[: self._answer], self._placed[self._answer :]
        self._answer = 0
        return settled

    def _pop_later(self, answer: Message) -> list[Message]:
        placed, through = self._placed, answer.through_sequence
        end = len(placed)
        while through and end and placed[end - 1].sequence > through:
            end -= 1
        later = placed[end:]
        del placed[end:]
        return later


def in_provider_order(messages: Iterable[Message], through_sequence: int) -> list[Message]:
    """The messages up to number `through_sequence`, in the order that `ProviderOrder` describes."""
    order = ProviderOrder()
    for message in messages:
        if message.sequence > through_sequence:
            break
        order.add(message)
    return order.placed


def is_blank(block: Content) -> bool:
    """Whether a block is a text without a visible character; requests omit such blocks."""
    return isinstance(block, Text) and not block.text.strip()


def answer_content(message: Message, protocol: str, model: str) -> tuple[Content, ...]:
    """An answer's blocks, without reasoning from another protocol or model; "" accepts any protocol or model."""
    return tuple([
        block
        for block in message.content
        if not isinstance(block, Reasoning)
        or ((not protocol or block.protocol == protocol) and (not model or block.model == model))
    ])  # fmt: skip


def user_content(message: Message) -> tuple[Content, ...]:
    """The blocks for a user turn. System messages are enclosed in a tag; in all other text, this tag is escaped."""
    if message.type is not MessageType.SYSTEM or message.kind is SystemKind.CONTINUE:
        return tuple(map(_escaped, message.content))
    return (Text(texts.notice(text_of(message.content))),)


def _escaped(block: Content) -> Content:
    """The block with Bedrock's tags escaped."""
    match block:
        case Text():
            return Text(texts.escape(block.text)) if "<" in block.text else block
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            return replace(block, output=texts.escape(block.output)) if "<" in block.output else block
        case ToolUse() | Reasoning() | Image():
            return block


class GrowingView:
    """The turns of a history that grows message by message: `view` returns what `provider_view` would return.

    An answer begins a new turn, and no later answer is placed before it. The turns before the last answer are therefore
    settled: they no longer change, and are built only once. The history must be valid.
    """

    def __init__(self, protocol: str = "", model: str = "", room: Room = UNLIMITED) -> None:
        self._protocol = protocol
        self._model = model
        self._room = room
        # The tokens of the settled turns, and of what precedes them in a request.
        self._used = room.fixed
        self._lineage = object()
        self._order = ProviderOrder()
        self._settled: list[Turn] = []
        # Ids of the tool calls in the settled turns (those that no longer change).
        self._calls: set[str] = set()
        # The number of the last added message in its conversation; 0 before the first one.
        self.sequence = 0

    def add(self, message: Message) -> None:
        self._order.add(message)
        self.sequence = message.sequence
        if message.type is MessageType.AGENT and self._is_visible(message):
            self._settle()

    def view(self) -> ProviderView:
        placed, _ = bounded(self._order.placed, self._room, self._used)
        tail = turns_of(placed, self._protocol, self._model)
        return ProviderView((*self._settled, *tail), len(self._settled), self._lineage, self._calls)

    def _is_visible(self, answer: Message) -> bool:
        return not all(map(is_blank, answer_content(answer, self._protocol, self._model)))

    def _settle(self) -> None:
        placed, self._used = bounded(self._order.pop_settled(), self._room, self._used)
        turns = turns_of(placed, self._protocol, self._model)
        self._settled += turns
        self._calls.update(block.id for turn in turns for block in turn.content if isinstance(block, ToolUse))


# Blocks are left out rather than cut to fewer tokens than this.
_SMALLEST_PART = 64
_FEWEST_PARTS = 8
_LEFT_OUT = "[{count} parts of the conversation are left out here, because the context window has no room for them]"


def summary_view(
    messages: Iterable[Message],
    through_sequence: int,
    rejected: Sequence[str],
    *,
    room: Room = UNLIMITED,
    used: int = 0,
    halved: int = 0,
) -> tuple[Turn, ...]:
    """Build the turns of the summary request (REQ-BED-020), with calls and results as text and without reasoning.

    Therefore every provider accepts the turns without tool definitions. `rejected` names tools whose calls did not run.
    The longest blocks are cut until the history fits `room`, which is halved `halved` times: once for each time that
    the provider found the request too long. If the provider counted more tokens in the window (`used`) than are
    estimated here, the estimate is corrected.
    """
    names, parts = dict[str, str](), list[_Part]()
    placed, _ = bounded(in_provider_order(messages, through_sequence), room, room.fixed)
    for message in placed:
        names.update((call.id, call.name) for call in tool_uses(message.content))
        role = "assistant" if message.type is MessageType.AGENT else "user"
        plain = (_plain(block, names) for block in user_content(message) if not isinstance(block, Reasoning))
        parts += (_Part(message.sequence, role, block) for block in plain)
    instruction = Text(_summary_instruction(rejected))
    if room.usable:
        estimate = room.fixed + _tokens(parts, room)
        fitting = room.usable * estimate // max(estimate, used, 1)
        if halved:
            fitting = min(fitting, estimate) >> halved
        parts = _shortened(parts, fitting - room.fixed - content_tokens((instruction,)), room)
    turns = TurnBuilder()
    for (_, role), of_message in itertools.groupby(parts, key=operator.itemgetter(0, 1)):
        turns.add(role, (part.block for part in of_message))
    turns.add("user", (instruction,))
    return turns.closed()


class _Part(NamedTuple):
    sequence: int
    """The number of the message that the part comes from; 0 for the remark that parts were left out."""
    role: str
    block: Content


def _tokens(parts: Iterable[_Part], room: Room) -> int:
    return content_tokens((part.block for part in parts), images=room.images)


def _shortened(parts: list[_Part], tokens: int, room: Room) -> list[_Part]:
    """Drop parts from the middle if there are too many, and cut the longest of the others.

    At least _FEWEST_PARTS parts stay, and none is cut to fewer than _SMALLEST_PART tokens.
    """
    if _tokens(parts, room) <= tokens:
        return parts
    most = max(tokens // _SMALLEST_PART, _FEWEST_PARTS)
    if (lost := len(parts) - most) > 0:
        first = most // 4
        parts = [*parts[:first], _Part(0, "user", Text(_LEFT_OUT.format(count=lost))), *parts[first + lost :]]
    wanted = [_tokens((part,), room) for part in parts]
    given = [max(share, _SMALLEST_PART) for share in shares(wanted, tokens)]
    return [
        part if want <= share else part._replace(block=_cut(part.block, share))
        for part, want, share in zip(parts, wanted, given, strict=True)
    ]


def _cut(block: Content, tokens: int) -> Content:
    return Text(image_remark(block) if isinstance(block, Image) else cut_text(text_of((block,)), tokens))


def _plain(block: Content, names: dict[str, str]) -> Content:
    match block:
        case ToolUse():
            return Text(f'<{texts.CALL} name="{block.name}">\n{texts.escape_calls(block.input)}\n</{texts.CALL}>')
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            name = names.get(block.tool_use_id, "")
            images = len(block.images) if isinstance(block, ToolSuccess) else 0
            output = texts.escape_calls(block.output) + (f"\n[{images} image(s) left out]" if images else "")
            return Text(f'<{texts.RESULT} name="{name}" outcome="{block.outcome.value}">\n{output}\n</{texts.RESULT}>')
        case Text() | Reasoning() | Image():
            return block


def _summary_instruction(rejected: Sequence[str]) -> str:
    asked = (
        "The context of this conversation is full, so it ends here. Write a summary from which the work can be "
        "continued in a new conversation by somebody who sees nothing else: what was asked for, what was done and "
        "decided and why, what was found out (names of files, commands, values), what is still open and the next "
        "step. Answer with the summary only. No tools are available."
    )
    if not rejected:
        return asked
    names = ", ".join(dict.fromkeys(rejected))
    return f"{asked}\nThese tools were called last and were not run, because the context is full: {names}."


MAX_IMAGES = 100
# The maximum bytes of all images in a request. As base64, they take 20 MB of the 32 MB that a request may have.
MAX_BYTES = 15_000_000


def within_limits(turns: Sequence[Turn], size_of: Callable[[Image], int]) -> tuple[Turn, ...]:
    """The turns, with remarks in place of the oldest images if there are too many or they are too large in total.

    `size_of` returns the size in bytes of an image as it is sent. Many images (half the limit) are removed at a time,
    so that the beginning of requests, which providers cache, rarely changes. Which images are removed depends only on
    the history.
    """
    removed = _to_remove(_sizes(turns, size_of))
    return tuple(_without(turns, removed)) if removed else tuple(turns)


class ImageBudget:
    """Applies the limits of `within_limits` to a growing history, looking at new turns only."""

    def __init__(self) -> None:
        self._seen = Prefix()
        self._sizes: list[int] = []
        self._removed = 0
        self._window = _ImageWindow()

    def apply(self, view: ProviderView, size_of: Callable[[Image], int]) -> ProviderView:
        """Replace the oldest images with remarks if the view exceeds the limits.

        The settled turns change only if more images are removed than before. Exceptions from `size_of` propagate.
        """
        if not view.begins_with(self._seen):
            self._seen, self._sizes, self._removed, self._window = Prefix(), [], 0, _ImageWindow()
        tail, before = view.turns[view.settled :], len(self._sizes)
        sizes = self._sizes + _sizes(view.turns[self._seen.settled : view.settled], size_of)
        removed = _to_remove(sizes + _sizes(tail, size_of))
        if min(removed, before) != min(self._removed, before):
            self._window = _ImageWindow()
        self._seen, self._sizes, self._removed = view.prefix, sizes, removed
        if not removed:
            return view
        kept = self._window
        kept.add(view.turns[len(kept.turns) : view.settled], removed)
        turns = (*kept.turns, *_without(tail, max(0, removed - len(sizes))))
        return ProviderView(turns, view.settled, kept.lineage, view.settled_calls)


class _ImageWindow:
    """The settled turns (those that no longer change), without the images that were removed."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.lineage = object()
        self._images = 0

    def add(self, turns: Sequence[Turn], removed: int) -> None:
        """Add turns. The oldest `removed` images of the whole history, not only of these turns, are left out."""
        self.turns += _without(turns, max(0, removed - self._images))
        self._images += sum(1 for turn in turns for _ in images_of(turn.content))


def _to_remove(sizes: Sequence[int]) -> int:
    return max(_surplus([1] * len(sizes), MAX_IMAGES), _surplus(sizes, MAX_BYTES))


def _surplus(costs: Sequence[int], limit: int) -> int:
    """How many leading items to remove: rounded up to a multiple of half the limit, see `within_limits`."""
    excess = sum(costs) - limit
    if excess <= 0:
        return 0
    step = limit // 2
    to_lose = -(-excess // step) * step
    lost = 0
    for index, cost in enumerate(costs):
        if lost >= to_lose:
            return index
        lost += cost
    return len(costs)


def _sizes(turns: Sequence[Turn], size_of: Callable[[Image], int]) -> list[int]:
    return [size_of(image) for turn in turns for image in images_of(turn.content)]


def _without(turns: Sequence[Turn], count: int) -> Iterator[Turn]:
    for turn in turns:
        if not count:
            yield turn
            continue
        content: list[Content] = []
        for block in turn.content:
            if isinstance(block, Image) and count:
                content.append(Text(_image_remark(block)))
                count -= 1
            elif isinstance(block, ToolSuccess) and block.images and count:
                lost = block.images[:count]
                output = "\n".join((block.output, *map(_image_remark, lost)))
                content.append(replace(block, output=output, images=block.images[count:]))
                count -= len(lost)
            else:
                content.append(block)
        yield Turn(turn.role, tuple(content))


def _image_remark(image: Image) -> str:
    return f"[an image, {image.media_type} {image.width}x{image.height}, that is no longer shown]"
