"""Builds the turns of a model request from a history: roles alternate, and each answer directly follows its request."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from actors.core import tags
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
    is_tool_result,
    text_of,
    tool_uses,
)
from actors.core.history.result_budget import UNLIMITED, Room, bounded

if TYPE_CHECKING:
    from collections.abc import Iterable

CONTINUE = "Continue."
"""The text that asks a model to continue an unfinished answer if there is no new message."""


class Turn(Struct, frozen=True, gc=False):
    """One turn of a request; the model adapters convert its blocks into the provider's JSON."""

    role: str
    """"user" or "assistant"."""
    content: tuple[Content, ...]
    """The blocks of the turn.

    User turns have tool results first, then text and images; assistant turns keep the model's order.
    """


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
        """Identifies the first `settled` turns, so that `begins_with` of a later view can recognise them."""
        return Prefix(self.settled, self.lineage)

    def begins_with(self, prefix: Prefix) -> bool:
        """Return whether the view begins with the turns that `prefix`, taken from an earlier view, identifies."""
        return not prefix.settled or (prefix.lineage is self.lineage and prefix.settled <= self.settled)


def provider_view(
    messages: Iterable[Message], through_sequence: int, *, protocol: str = "", model: str = "", room: Room = UNLIMITED
) -> tuple[Turn, ...]:
    """Build the turns of a request from the messages up to number `through_sequence`.

    Roles alternate; the last turn is the user's. System messages become user content inside a tag; the same tag in
    texts of people and tools is escaped. Reasoning of a wire protocol or model other than `protocol` and `model` is
    omitted; "" includes all. Results that need too much of `room` are cut. The turns are append-only, as the docstring
    of `actors.core.history` explains. Returns () for a history with nothing to send.
    """
    placed, _ = bounded(in_provider_order(messages, through_sequence), room, room.fixed)
    return turns_of(placed, protocol, model)


def turns_of(placed: Iterable[Message], protocol: str, model: str) -> tuple[Turn, ...]:
    """Build the turns of messages that `ProviderOrder` has ordered; the last turn is always the user's."""
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
        """Return the turns, ending with a user turn: one that asks the model to continue is added if necessary."""
        if self._turns and self._turns[-1][0] == "assistant":
            self._turns.append(("user", [Text(CONTINUE)]))
        return tuple(Turn(role, tuple(blocks)) for role, blocks in self._turns)


class ProviderOrder:
    """Puts messages into the provider's order one by one: each answer directly follows the messages that it answers.

    Messages that were stored while the model was answering follow that answer and its tool results.
    """

    def __init__(self) -> None:
        self._placed: list[Message] = []
        self._late: list[Message] = []
        self._unanswered = 0
        """Number of tool calls of the last answer that have no result."""
        self._answer = 0
        """Index of the last answer in `_placed`."""

    @property
    def placed(self) -> list[Message]:
        """The messages in order, without error messages."""
        return self._placed + self._late

    def add(self, message: Message) -> None:
        """Insert the next message of the history."""
        if message.type is MessageType.ERROR:
            return
        if message.type is MessageType.AGENT:
            self._placed += self._late
            self._late = self._take_later(message)
            self._answer = len(self._placed)
            self._unanswered = len(tool_uses(message.content))
        elif message.type is MessageType.TOOL:
            self._unanswered -= sum(is_tool_result(block) for block in message.content)
        self._placed.append(message)
        if self._late and not self._unanswered:
            self._placed += self._late
            self._late = []

    def take_settled(self) -> list[Message]:
        """Remove and return the messages before the last answer.

        Their order is final: no later answer is placed there.
        """
        settled, self._placed = self._placed[: self._answer], self._placed[self._answer :]
        self._answer = 0
        return settled

    def _take_later(self, answer: Message) -> list[Message]:
        placed, through = self._placed, answer.through_sequence
        end = len(placed)
        while through and end and placed[end - 1].sequence > through:
            end -= 1
        later = placed[end:]
        del placed[end:]
        return later


def in_provider_order(messages: Iterable[Message], through_sequence: int) -> list[Message]:
    """Return the messages up to number `through_sequence`, in the order that `ProviderOrder` describes."""
    order = ProviderOrder()
    for message in messages:
        if message.sequence > through_sequence:
            break
        order.add(message)
    return order.placed


def is_blank(block: Content) -> bool:
    """Return whether a block is a text without a visible character; requests contain no such blocks."""
    return isinstance(block, Text) and not block.text.strip()


def answer_content(message: Message, protocol: str, model: str) -> tuple[Content, ...]:
    """Return an answer's blocks, without reasoning that another protocol or model produced; "" stands for any."""
    return tuple([
        block
        for block in message.content
        if not isinstance(block, Reasoning)
        or ((not protocol or block.protocol == protocol) and (not model or block.model == model))
    ])  # fmt: skip


def user_content(message: Message) -> tuple[Content, ...]:
    """Return the blocks with which a message appears in a user turn.

    The text of a system message is put inside a tag, and that tag is escaped in all other messages.
    """
    if message.type is not MessageType.SYSTEM or message.kind is SystemKind.CONTINUE:
        return tuple(map(_escaped, message.content))
    return (Text(tags.notice(text_of(message.content))),)


def _escaped(block: Content) -> Content:
    """Return the block with Bedrock's tags escaped. Most blocks contain none; then the same object is returned."""
    match block:
        case Text():
            text = tags.escape(block.text)
            return block if text == block.text else Text(text)
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            output = tags.escape(block.output)
            return block if output == block.output else replace(block, output=output)
        case ToolUse() | Reasoning() | Image():
            return block
