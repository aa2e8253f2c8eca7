"""Converts rows that record how runs and queued messages ended. These rows are kept when the event log is pruned.

The table `runs` has a row for every run (request cycle) that has ended. The table `fates` has a row for every message
to a busy agent (steer or follow-up) that no longer waits. Together with the messages these rows contain everything that
clients need from a pruned log.
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
"""The columns of the table `runs`: one row for each run that has ended."""
FATE = ("conversation_id", "revision", "message_id", "delivery", "fate", "input", "run", "at", "digest")
"""The columns of the table `fates`: one row for each message that has left the queue of a busy agent."""

_encode = json.Encoder().encode
_INPUT = json.Decoder(QueuedInput)


def stopped_runs(part: Commit) -> Iterator[StoppedRun]:
    """Yield the runs that stopped in the commit `part`, in order."""
    sequence = part.messages[0].sequence - 1 if part.messages else part.record.state.ledger.seq
    for entry in part.log:
        for revision, event in enumerate(entry.notifications, entry.first_revision):
            if isinstance(event, MessageAdded):
                sequence = event.message.sequence
            elif isinstance(event, RunStop):
                yield StoppedRun(revision, entry.at, event, sequence)


def settled_inputs(part: Commit) -> Iterator[SettledInput]:
    """Yield, in order, what became of queued messages according to the commit `part`, such as "delivered"."""
    runs = {message.id: message.run for message in part.messages}
    for entry in part.log:
        for revision, event in enumerate(entry.notifications, entry.first_revision):
            if isinstance(event, QueueChanged) and event.fate is not Fate.QUEUED:
                yield SettledInput(revision, entry.at, event, runs.get(event.input.message_id, ""))


def run_values(conversation_id: str, ended: StoppedRun) -> tuple[str | int, ...]:
    """Return the values of the columns RUN for a stopped run.

    The column `message` contains the error message of a failed run, and the output of any other run.
    """
    stop = ended.stop
    values = (
        conversation_id, ended.revision, stop.run, stop.reason.value, stop.detail, stop.message or stop.output,
        ended.last_sequence, ended.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def run_of(row: tuple[Any, ...]) -> StoppedRun:
    """Convert a row with the columns RUN to a stopped run. Raises ValueError if the row is damaged."""
    _, revision, run, reason, detail, message, last_sequence, at, _ = row
    refuse_non_numbers(revision, last_sequence, at)
    failed = StopReason(reason) is StopReason.ERROR
    stop = RunStop(run, StopReason(reason), detail, message if failed else "", "" if failed else message)
    return StoppedRun(revision, at, stop, last_sequence)


def fate_values(conversation_id: str, settled: SettledInput) -> tuple[str | int, ...]:
    """Return the values of the columns FATE about what became of a queued message."""
    outcome = settled.outcome
    waited = _encode(outcome.input).decode()
    values = (
        conversation_id, settled.revision, outcome.input.message_id, outcome.delivery, outcome.fate.value, waited,
        settled.run, settled.at,
    )  # fmt: skip
    return (*values, digest_of(values))


def fate_of(row: tuple[Any, ...]) -> SettledInput:
    """Convert a row with the columns FATE to an object that describes what became of a queued message.

    Raises msgspec.DecodeError or ValueError if the row is damaged.
    """
    _, revision, _, delivery, fate, waited, run, at, _ = row
    refuse_non_numbers(revision, at)
    return SettledInput(revision, at, QueueChanged(_INPUT.decode(waited), delivery, Fate(fate)), run)
