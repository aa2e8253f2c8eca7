"""Builds the beginning of a fork: a conversation that starts with a copy of the history of another one, the origin.

The copy ends with a whole run. The copied messages keep their content, order and call ids; only their own ids change.
What a model receives of them is therefore byte for byte the same, and the provider's cache of the origin's history also
serves the fork. Notices after the copied messages tell the model about the fork.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core import window
from actors.core.content import Message, MessageType, SystemKind, has_image, text_of
from actors.core.notifications import StopReason
from actors.core.states import Ledger, Notice
from actors.core.steps import texts
from actors.core.steps.modes import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from actors.core.context import ConvContext, Mode
    from actors.core.notifications import RunStop

SUMMARIES = (SystemKind.SUMMARY, SystemKind.SUMMARY_FALLBACK)
"""The kinds of summaries that end a conversation whose context is full."""


def copied_message(message: Message, origin: str, fork: str) -> Message:
    """Return a copy of the origin's message for the fork: the same content with new ids."""
    run = _renamed(message.run, origin, fork)
    return replace(
        message,
        id=_renamed(message.id, origin, fork, otherwise=f"{fork}:{run_number(run)}:{message.sequence}"),
        run=run,
        request_id=_renamed(message.request_id, origin, fork),
    )


def copied_stop(stop: RunStop, origin: str, fork: str) -> RunStop:
    """Return a copy of the event that ended the origin's run, with the id of the fork's copy of that run."""
    return replace(stop, run=_renamed(stop.run, origin, fork))


def run_number(run: str) -> int:
    """Return the number of a run in its conversation, given the run's id; 0 for "", which means no run."""
    return int(run.rpartition(":")[2] or 0)


def used_tokens(messages: Sequence[Message]) -> int:
    """Return how many tokens of the context window were in use after the last answer; 0 if unknown."""
    answers = (message.usage for message in reversed(messages) if message.type is MessageType.AGENT and message.usage)
    return next((usage.context_tokens for usage in answers), 0)


def first_ledger(
    context: ConvContext, messages: Sequence[Message], last_run: str, notices: tuple[Notice, ...], date: str
) -> Ledger:
    """Return the ledger (counters and queues) with which a fork begins.

    The numbers of runs, requests and messages continue after the copied ones, so that no id is used twice. The fork's
    usage begins at zero.

    Args:
        context: The context of the fork.
        messages: The messages that were copied to the fork.
        last_run: The id of the last copied run.
        notices: What the model learns at the fork's first request.
        date: The date that the model knows, as YYYY-MM-DD.
    """
    used = used_tokens(messages)
    return Ledger(
        run=run_number(last_run),
        req=max((_request_number(message) for message in messages), default=0),
        seq=len(messages),
        pending_notices=notices,
        warned=window.near_full(used, context),
        used_tokens=used,
        date=date,
        hidden_from="" if any(has_image(message.content) for message in messages) else None,
    )


def first_notices(
    mode: Mode, copied: Sequence[Message], ended: StopReason, later: Iterable[Message | Notice], at: int
) -> tuple[Notice, ...]:
    """Return what the model is told at the fork's first request: what is missing or outdated in the copied history.

    Args:
        mode: The mode of the fork.
        copied: The copied messages.
        ended: How the last copied run ended.
        later: What the origin's model was told after the copied part: later messages and waiting notices.
        at: The time, in milliseconds since the epoch.
    """
    after = tuple(later)
    return (
        *_interruption(ended, after),
        *_mode_notice(mode, copied, after, at),
        Notice(SystemKind.FORKED, texts.FORKED, at),
    )


def _interruption(ended: StopReason, after: Iterable[Message | Notice]) -> Iterator[Notice]:
    """If the last copied run was interrupted, yield the notice about that from the origin.

    The notice is written only when the next run begins, so it is not among the copied messages.
    """
    if ended is not StopReason.INTERRUPTED:
        return
    for each in after:
        if isinstance(each, Message) and each.type is MessageType.USER:
            return
        if each.kind is SystemKind.INTERRUPTED:
            yield each if isinstance(each, Notice) else Notice(each.kind, text_of(each.content), each.created_at)
            return


def _mode_notice(mode: Mode, copied: Sequence[Message], after: Iterable[Message | Notice], at: int) -> Iterator[Notice]:
    """Yield a notice that names the fork's mode, unless the copied history already tells the model the right mode.

    The system prompt names the first mode, and a notice follows every change. If there is no such notice, neither in
    the copy nor in the origin after it, the mode that the system prompt names is still valid.
    """
    told = next((message.kind for message in reversed(copied) if message.kind in KINDS.values()), None)
    changed = told is not None or any(each.kind in KINDS.values() for each in after)
    if changed and told is not KINDS[mode]:
        yield Notice(KINDS[mode], texts.MODES[mode], at)


def _renamed(name: str, origin: str, fork: str, otherwise: str = "") -> str:
    """If an id begins with the origin's id, replace that part by the fork's id; otherwise return `otherwise`."""
    return fork + name.removeprefix(origin) if name.startswith(f"{origin}:") else otherwise


def _request_number(message: Message) -> int:
    """Return the request number in a request id such as "c:r12"; 0 if the message answers no request."""
    return int(message.request_id.rpartition(":r")[2] or 0)
