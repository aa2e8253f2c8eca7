"""Checks that a history is valid: its sequence numbers, tool calls and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.content import (
    Image,
    Message,
    MessageType,
    Reasoning,
    SubAgentComplete,
    Text,
    ToolCancelled,
    ToolError,
    ToolResult,
    ToolSuccess,
    ToolUse,
    is_tool_result,
    tool_uses,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class ChainCheck:
    """Checks a history message by message, in order. Remembers only the ids of tool calls."""

    def __init__(self) -> None:
        self._sequence = 0
        self._chained = 0
        """The sequence number of the last agent or tool message so far; every later model request contains it."""
        self._calls: set[str] = set()
        self._open: list[str] = []

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of the calls without a result, in the order of the calls."""
        return tuple(self._open)

    def feed(self, message: Message) -> tuple[str, ...]:
        """Check the next message; return findings as human-readable text."""
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
            yield f"a message of type {message.type.value} is before the results of {', '.join(self._open)}"
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
            yield f"the result of {result.tool_use_id} is before that of {self._open[0]}"
        self._open.remove(result.tool_use_id)


def violations(messages: Iterable[Message]) -> tuple[str, ...]:
    """Return a description of each violation in a stored history; () if the history is valid.

    Sequence numbers must be 1, 2, 3, … and tool call ids unique. Each call must have exactly one result; the results
    directly follow the message with the calls, in the same order. Calls at the end may lack results: see `open_calls`.
    """
    check = ChainCheck()
    return tuple(text for message in messages for text in check.feed(message))


def open_calls(messages: Sequence[Message]) -> tuple[ToolUse, ...]:
    """Return the calls that have no result, in the order of the calls.

    `messages` must be a valid history: only the last agent message and those after it are read.
    """
    answered: set[str] = set()
    for message in reversed(messages):
        answered.update(block.tool_use_id for block in message.content if is_tool_result(block))
        if message.type is MessageType.AGENT:
            return tuple(call for call in tool_uses(message.content) if call.id not in answered)
    return ()
