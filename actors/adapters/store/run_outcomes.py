"""How runs and waits ended: read off a commit's events, and kept when the log is pruned.

`runs` has a row for every run that stopped, `fates` one for every steer and follow-up that waits no more. Together with
the messages they say what the whole log would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import json

from actors.adapters.store.rows import digest_of, refuse_non_numbers
from actors.core.notifications import Fate, MessageAdded, QueueChanged, RunStop, StopReason
from actors.core.states import QueuedInput
from actors.ports import Commit, SettledInput, StoppedRun

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = ("conversation_id", "revision", "run", "reason", "detail", "message", "last_sequence", "at", "digest")
"""Columns of a run."""
FATE = ("conversation_id", "revision", "message_id", "delivery", "fate", "input", "run", "at", "digest")
"""Columns of a fate."""

_encode = json.Encoder().encode
_INPUT = json.Decoder(QueuedInput)


def stopped_runs(part: Commit) -> Iterator[StoppedRun]:
    """The runs that stopped in this commit, in order."""
    sequence = part.messages[0].sequence - 1 if part.messages else part.record.state.ledger.seq
    for entry in part.log:
        for revision, told in enumerate(entry.notifications, entry.first_revision):
            if isinstance(told, MessageAdded):
                sequence = told.message.sequence
            elif isinstance(told, RunStop):
                yield StoppedRun(revision, entry.at, told, sequence)


def settled_inputs(part: Commit) -> Iterator[SettledInput]:
    """The waits that ended in this commit, in order."""
    runs = {message.id: message.run for message in part.messages}
    for entry in part.log:
        for revision, told in enumerate(entry.notifications, entry.first_revision):
            if isinstance(told, QueueChanged) and told.fate is not Fate.QUEUED:
                yield SettledInput(revision, entry.at, told, runs.get(told.input.message_id, ""))


def run_values(conversation_id: str, ended: StoppedRun) -> tuple[str | int, ...]:
    """The values of RUN."""
    stop = ended.stop
    values = (
        conversation_id, ended.revision, stop.run, stop.reason.value, stop.detail, stop.message, ended.last_sequence,
        ended.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def run_of(row: tuple[Any, ...]) -> StoppedRun:
    """A run from a row of RUN. Raises ValueError."""
    _, revision, run, reason, detail, message, last_sequence, at, _ = row
    refuse_non_numbers(revision, last_sequence, at)
    return StoppedRun(revision, at, RunStop(run, StopReason(reason), detail, message), last_sequence)


def fate_values(conversation_id: str, settled: SettledInput) -> tuple[str | int, ...]:
    """The values of FATE."""
    told = settled.outcome
    waited = _encode(told.input).decode()
    values = (
        conversation_id, settled.revision, told.input.message_id, told.delivery, told.fate.value, waited, settled.run,
        settled.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def fate_of(row: tuple[Any, ...]) -> SettledInput:
    """A fate from a row of FATE. Raises msgspec.DecodeError or ValueError."""
    _, revision, _, delivery, fate, waited, run, at, _ = row
    refuse_non_numbers(revision, at)
    return SettledInput(revision, at, QueueChanged(_INPUT.decode(waited), delivery, Fate(fate)), run)
