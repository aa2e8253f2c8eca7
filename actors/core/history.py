"""The history of a conversation: is its chain valid, and what does a provider see of it.

A provider's view is append-only. Read as a row of (role, block) pairs, the view of a request that was answered is the
beginning of every later view, block for block and in the same order; so what a provider cached or signed stays valid.
Turns are that row cut where the role changes: only the last turn of a view, always the user's, can grow, at its end,
by what was said after a request that was cancelled or failed. Two rules keep it that way: an answer is placed right
behind what its request contained (`Message.through_sequence`, C48), and what never reached a model, error
messages, is left out. One block of an unanswered request can vanish: the "Continue." that closed its view when
nothing else did. Changing the model changes the view once, because the former model's reasoning goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    ToolResult,
    ToolSuccess,
    ToolUse,
    text_of,
    tool_uses,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONTINUE = "Continue."
"""The message to a model that continues an unfinished answer when nothing else is new."""

_RESULTS = (ToolSuccess, ToolError, ToolCancelled, SubAgentComplete)


class Turn(Struct, frozen=True):
    """One turn of a request; adapters convert its blocks into their JSON."""

    role: str
    """"user" or "assistant"."""
    content: tuple[Content, ...]
    """User turns: tool results first, then text and images. Assistant turns: as the model wrote them."""


# --- is the chain valid --------------------------------------------------------------------------------------------


class ChainCheck:
    """Check a history message by message, in order; keeps the ids of its tool calls and nothing else."""

    def __init__(self) -> None:
        self._sequence = 0
        self._chained = 0
        """Sequence of the last agent or tool message, which every later request contains."""
        self._calls: set[str] = set()
        self._open: list[str] = []

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of calls without a result, in request order."""
        return tuple(self._open)

    def feed(self, message: Message) -> tuple[str, ...]:
        """Check the next message; returns findings as text for people."""
        found = [*self._number(message), *self._interruption(message)]
        for block in message.content:
            match block:
                case ToolUse():
                    found += self._call(message, block)
                case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
                    found += self._result(message, block)
                case Text() | Reasoning() | Image():
                    pass
        if message.type in (MessageType.AGENT, MessageType.TOOL):
            self._chained = message.sequence
        return tuple(f"message {message.sequence}: {text}" for text in found)

    def _number(self, message: Message) -> Iterable[str]:
        expected, self._sequence = self._sequence + 1, message.sequence
        if message.sequence != expected:
            yield f"its sequence should be {expected}"
        through = message.through_sequence
        if message.type is MessageType.AGENT and through and not self._chained <= through < message.sequence:
            yield f"its request cannot have contained the messages up to {through}"

    def _interruption(self, message: Message) -> Iterable[str]:
        if self._open and message.type is not MessageType.TOOL:
            yield f"a message of type {message.type.value} stands before the results of {', '.join(self._open)}"
            self._open.clear()

    def _call(self, message: Message, call: ToolUse) -> Iterable[str]:
        if message.type is not MessageType.AGENT:
            yield f"only agent messages hold tool calls, not {message.type.value}"
        if call.id in self._calls:
            yield f"tool call id {call.id} was used before"
        self._calls.add(call.id)
        self._open.append(call.id)

    def _result(self, message: Message, result: ToolResult) -> Iterable[str]:
        if message.type is not MessageType.TOOL:
            yield f"only tool messages hold results, not {message.type.value}"
        if result.tool_use_id not in self._open:
            known = result.tool_use_id in self._calls
            yield f"the result of {result.tool_use_id} answers " + ("an answered call" if known else "no call")
            return
        if result.tool_use_id != self._open[0]:
            yield f"the result of {result.tool_use_id} stands before that of {self._open[0]}"
        self._open.remove(result.tool_use_id)


def violations(messages: Iterable[Message]) -> tuple[str, ...]:
    """Say what is wrong with a stored history; () if its chain is valid (I23).

    Sequences count from 1 without a gap; tool call ids are unique; every call has exactly one result, after it, in
    request order and before any other message. Calls at the end that still wait are no violation: see `open_calls`.
    """
    check = ChainCheck()
    return tuple(text for message in messages for text in check.feed(message))


def open_calls(messages: Sequence[Message]) -> tuple[ToolUse, ...]:
    """Return the calls without a result, in request order. Reads only the end of a valid history."""
    answered: set[str] = set()
    for message in reversed(messages):
        answered.update(block.tool_use_id for block in message.content if isinstance(block, _RESULTS))
        if message.type is MessageType.AGENT:
            return tuple(call for call in tool_uses(message.content) if call.id not in answered)
    return ()


# --- what a provider sees ------------------------------------------------------------------------------------------


def provider_view(
    messages: Iterable[Message], through_sequence: int, *, protocol: str = "", model: str = ""
) -> tuple[Turn, ...]:
    """Build what a request over the history up to `through_sequence` contains.

    Roles alternate; the last turn is the user's. System messages become user content that is marked as the system's;
    the same tag in what people and tools wrote is escaped.
    Reasoning of another wire protocol or model than `protocol` and `model` is left out; "" lets all pass. Append-only:
    see the head of this module. A history that never had anything to send gives ().
    """
    turns = _Turns()
    for message in _in_provider_order(messages, through_sequence):
        if message.type is MessageType.AGENT:
            turns.add("assistant", _said(message.content, protocol, model))
        else:
            turns.add("user", _told(message))
    return turns.closed()


def summary_view(messages: Iterable[Message], through_sequence: int, rejected: Sequence[str]) -> tuple[Turn, ...]:
    """Build the tool-less summary request (REQ-BED-020): no tool or reasoning block is left in it.

    Calls and results are rendered as text, so that every provider takes them without tool definitions. The last
    block asks for the summary and names the tools in `rejected`, which the full context kept from running.
    """
    turns, names = _Turns(), dict[str, str]()
    for message in _in_provider_order(messages, through_sequence):
        names.update((call.id, call.name) for call in tool_uses(message.content))
        role = "assistant" if message.type is MessageType.AGENT else "user"
        turns.add(role, tuple(_plain(block, names) for block in _told(message) if not isinstance(block, Reasoning)))
    turns.add("user", (Text(_summary_instruction(rejected)),))
    return turns.closed()


class _Turns:
    """Builder of turns: joins blocks in order, and begins a turn where the role changes."""

    def __init__(self) -> None:
        self._turns: list[tuple[str, list[Content]]] = []

    def add(self, role: str, content: Iterable[Content]) -> None:
        blocks = [block for block in content if not (isinstance(block, Text) and not block.text.strip())]
        if not blocks:
            return
        if self._turns and self._turns[-1][0] == role:
            if role == "user":
                self._turns[-1][1].extend(blocks)
                return
            # Two answers in a row: the second one's request was closed like this when it was sent.
            self._turns.append(("user", [Text(CONTINUE)]))
        self._turns.append((role, blocks))

    def closed(self) -> tuple[Turn, ...]:
        if self._turns and self._turns[-1][0] == "assistant":
            self._turns.append(("user", [Text(CONTINUE)]))
        return tuple(Turn(role, tuple(blocks)) for role, blocks in self._turns)


def _in_provider_order(messages: Iterable[Message], through_sequence: int) -> list[Message]:
    """Return the messages in the provider's order, each answer right behind what its request contained.

    Messages that were stored while a request was in flight follow its answer and that answer's tool results.
    """
    placed: list[Message] = []
    late: list[Message] = []
    unanswered = 0
    for message in messages:
        if message.sequence > through_sequence:
            break
        if message.type is MessageType.ERROR:
            continue
        if message.type is MessageType.AGENT:
            placed += late
            late = _take_later(placed, message)
            unanswered = len(tool_uses(message.content))
        elif message.type is MessageType.TOOL:
            unanswered -= sum(isinstance(block, _RESULTS) for block in message.content)
        placed.append(message)
        if late and not unanswered:
            placed += late
            late = []
    return placed + late


def _take_later(placed: list[Message], answer: Message) -> list[Message]:
    """Remove the messages from `placed` that the answer's request did not contain."""
    end = len(placed)
    while answer.through_sequence and end and placed[end - 1].sequence > answer.through_sequence:
        end -= 1
    later = placed[end:]
    del placed[end:]
    return later


def _said(content: tuple[Content, ...], protocol: str, model: str) -> Iterable[Content]:
    for block in content:
        if isinstance(block, Reasoning) and (
            (protocol and block.protocol != protocol) or (model and block.model != model)
        ):
            continue
        yield block


def _told(message: Message) -> tuple[Content, ...]:
    """Return a message's blocks: a system message's text in a tag, and that tag escaped in all others."""
    if message.type is not MessageType.SYSTEM or message.kind is SystemKind.CONTINUE:
        return tuple(map(_escaped, message.content))
    return (Text(tags.notice(text_of(message.content))),)


def _escaped(block: Content) -> Content:
    """Return the block with Bedrock's tags escaped; the very same object if it has none, which is the common case."""
    match block:
        case Text():
            text = tags.escape(block.text)
            return block if text == block.text else Text(text)
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            output = tags.escape(block.output)
            return block if output == block.output else replace(block, output=output)
        case ToolUse() | Reasoning() | Image():
            return block


def _plain(block: Content, names: dict[str, str]) -> Content:
    match block:
        case ToolUse():
            return Text(f'<{tags.CALL} name="{block.name}">\n{tags.escape_calls(block.input)}\n</{tags.CALL}>')
        case ToolSuccess() | ToolError() | ToolCancelled() | SubAgentComplete():
            name = names.get(block.tool_use_id, "")
            images = len(block.images) if isinstance(block, ToolSuccess) else 0
            output = tags.escape_calls(block.output) + (f"\n[{images} image(s) left out]" if images else "")
            return Text(f'<{tags.RESULT} name="{name}" outcome="{block.outcome.value}">\n{output}\n</{tags.RESULT}>')
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
