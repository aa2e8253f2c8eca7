"""Checks that a history is valid: its sequence numbers, tool calls and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from actors.core import content
from actors.core.context import ConvContext, Mode
from actors.core.notifications import RunStop, StopReason
from actors.core.states import Ledger, Notice
from actors.core.steps import texts
from actors.core.steps.notices import KINDS


class ChainCheck:
    """Checks a history message by message, in order. Remembers only the ids of tool calls."""

    def __init__(self) -> None:
        self._sequence = 0
        # The sequence number of the last agent or tool message so far; every later request contains that message.
        self._chained = 0
        self._calls: set[str] = set()
        self._open: list[str] = []

    @property
    def open_calls(self) -> tuple[str, ...]:
        return tuple(self._open)

    def feed(self, message: content.Message) -> tuple[str, ...]:
        """Check the next message; return findings as human-readable text."""
        found = [*self._number(message), *self._interruption(message)]
        for block in message.content:
            match block:
                case content.ToolUse():
                    found += self._call(message, block)
                case content.ToolSuccess() | content.ToolError() | content.ToolCancelled() | content.SubAgentComplete():
                    found += self._result(message, block)
                case content.Text() | content.Reasoning() | content.Image():
                    pass
        if message.type in (content.MessageType.AGENT, content.MessageType.TOOL):
            self._chained = message.sequence
        return tuple(f"message {message.sequence}: {text}" for text in found)

    def _number(self, message: content.Message) -> Iterable[str]:
        expected, self._sequence = self._sequence + 1, message.sequence
        if message.sequence != expected:
            yield f"its sequence should be {expected}"
        through = message.through_sequence
        if message.type is content.MessageType.AGENT and through and not self._chained <= through < message.sequence:
            yield f"its request cannot have contained the messages up to {through}"

    def _interruption(self, message: content.Message) -> Iterable[str]:
        if self._open and message.type is not content.MessageType.TOOL:
            yield f"a message of type {message.type.value} precedes the results of {', '.join(self._open)}"
            self._open.clear()

    def _call(self, message: content.Message, call: content.ToolUse) -> Iterable[str]:
        if message.type is not content.MessageType.AGENT:
            yield f"only agent messages hold tool calls, not {message.type.value}"
        if call.id in self._calls:
            yield f"tool call id {call.id} was used before"
        self._calls.add(call.id)
        self._open.append(call.id)

    def _result(self, message: content.Message, result: content.ToolResult) -> Iterable[str]:
        if message.type is not content.MessageType.TOOL:
            yield f"only tool messages hold results, not {message.type.value}"
        if result.tool_use_id not in self._open:
            known = result.tool_use_id in self._calls
            yield f"the result of {result.tool_use_id} belongs to {'an answered call' if known else 'no call'}"
            return
        if result.tool_use_id != self._open[0]:
            yield f"the result of {result.tool_use_id} precedes that of {self._open[0]}"
        self._open.remove(result.tool_use_id)


def violations(messages: Iterable[content.Message]) -> tuple[str, ...]:
    """A description of each violation in a stored history; () if the history is valid.

    Sequence numbers must be 1, 2, 3, … and tool call ids unique. Each call must have exactly one result; the results
    directly follow the message with the calls, in the same order. Calls at the end may lack results: see `open_calls`.
    """
    check = ChainCheck()
    return tuple(text for message in messages for text in check.feed(message))


def open_calls(messages: Sequence[content.Message]) -> tuple[content.ToolUse, ...]:
    """The calls without a result. The history must be valid: only its end is read, from the last agent message on."""
    answered: set[str] = set()
    for message in reversed(messages):
        answered.update(block.tool_use_id for block in message.content if content.is_tool_result(block))
        if message.type is content.MessageType.AGENT:
            return tuple(call for call in content.tool_uses(message.content) if call.id not in answered)
    return ()


SUMMARIES = (content.SystemKind.SUMMARY, content.SystemKind.SUMMARY_FALLBACK)


def copied_message(message: content.Message, origin: str, fork: str) -> content.Message:
    run = _renamed(message.run, origin, fork)
    return replace(
        message,
        id=_renamed(message.id, origin, fork, otherwise=f"{fork}:{run_number(run)}:{message.sequence}"),
        run=run,
        request_id=_renamed(message.request_id, origin, fork),
    )


def copied_stop(stop: RunStop, origin: str, fork: str) -> RunStop:
    return replace(stop, run=_renamed(stop.run, origin, fork))


def run_number(run: str) -> int:
    """The number of a run in its conversation, given the run's id; 0 for "", which means no run."""
    return int(run.rpartition(":")[2] or 0)


def used_tokens(messages: Sequence[content.Message]) -> int:
    """How many tokens of the context window were in use after the last answer; 0 if unknown."""
    answers = (
        message.usage for message in reversed(messages) if message.type is content.MessageType.AGENT and message.usage
    )
    return next((usage.context_tokens for usage in answers), 0)


def first_ledger(
    context: ConvContext, messages: Sequence[content.Message], last_run: str, notices: tuple[Notice, ...], date: str
) -> Ledger:
    """The ledger of a fork.

    Numbers of runs, requests and messages continue after the copied ones, so that no id is used twice; usage begins at
    zero. `date` is the date that the model knows, as YYYY-MM-DD.
    """
    used = used_tokens(messages)
    return Ledger(
        run=run_number(last_run),
        req=max((_request_number(message) for message in messages), default=0),
        seq=len(messages),
        pending_notices=notices,
        warned=context.near_full(used),
        used_tokens=used,
        date=date,
        hidden_from="" if any(content.has_image(message.content) for message in messages) else None,
    )


def first_notices(
    mode: Mode, copied: Sequence[content.Message], ended: StopReason, later: Iterable[content.Message | Notice], at: int
) -> tuple[Notice, ...]:
    """Notices for the fork's first request, which say what is missing from the copied history or outdated in it.

    `ended` is how the last copied run ended; `later` are messages and notices of the origin after the copied part.
    """
    after = tuple(later)
    return (
        *_interruption(ended, after),
        *_mode_notice(mode, copied, after, at),
        Notice(content.SystemKind.FORKED, texts.FORKED, at),
    )


def _interruption(ended: StopReason, after: Iterable[content.Message | Notice]) -> Iterator[Notice]:
    """Yield the notice of an interrupted last run; the copy lacks it, since it is written when the next run begins."""
    if ended is not StopReason.INTERRUPTED:
        return
    for each in after:
        if isinstance(each, content.Message) and each.type is content.MessageType.USER:
            return
        if each.kind is content.SystemKind.INTERRUPTED:
            yield (
                each if isinstance(each, Notice) else Notice(each.kind, content.text_of(each.content), each.created_at)
            )
            return


def _mode_notice(
    mode: Mode, copied: Sequence[content.Message], after: Iterable[content.Message | Notice], at: int
) -> Iterator[Notice]:
    """A notice that names the fork's mode, unless the history names it already.

    The system prompt names the first mode; each change is named by a notice. If neither the copied messages nor the
    later ones of the origin contain such a notice, the prompt is still right.
    """
    told = next((message.kind for message in reversed(copied) if message.kind in KINDS.values()), None)
    changed = told is not None or any(each.kind in KINDS.values() for each in after)
    if changed and told is not KINDS[mode]:
        yield Notice(KINDS[mode], texts.MODES[mode], at)


def _renamed(name: str, origin: str, fork: str, otherwise: str = "") -> str:
    """If an id begins with the origin's id, replace that part with the fork's id; otherwise return `otherwise`."""
    return fork + name.removeprefix(origin) if name.startswith(f"{origin}:") else otherwise


def _request_number(message: content.Message) -> int:
    """The request number in a request id such as "c:r12"; 0 if the message answers no request."""
    return int(message.request_id.rpartition(":r")[2] or 0)
