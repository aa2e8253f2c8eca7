"""The oldest rows of a log, taken off a few at a time; where it begins since then is kept, so that a log that begins
late for any other reason is told from one that was pruned.

Rows that are not what was written stay: they are evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from actors.adapters.store.log_rows import LogRow, hash_of
from actors.ports import StoreDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable

ROWS = 256
"""Rows taken off at a time, at most: the writer does nothing else meanwhile."""
CHARACTERS = 4 * 1024 * 1024
"""Of text in the rows taken off at a time, as a rule: pages beyond a row's own are freed one by one."""


class Place(NamedTuple):
    """A place in the log: after a row, or at the beginning of everything."""

    step: int = 0
    revision: int = 0
    hash: str = ""


BEGINNING = Place()


def place_after(row: LogRow) -> Place:
    """The place that the row after this one follows."""
    return Place(row.step, row.first_revision + row.event_count - 1, row.hash)


class Bounds(NamedTuple):
    """Which rows may go."""

    before_revision: int
    """All of a row's events lie before it."""
    older_than: int | None = None
    """The row was written before this time, milliseconds; None: whenever it was."""

    def hold(self, row: LogRow) -> bool:
        """Whether the row stays, and all that follow it."""
        if row.first_revision + row.event_count > self.before_revision:
            return True
        return self.older_than is not None and row.at >= self.older_than


def prunable(begins: Place, rows: Iterable[LogRow], bounds: Bounds) -> list[LogRow]:
    """The rows to take off now, from the oldest on. Raises StoreDamagedError for rows that are not what was written."""
    going: list[LogRow] = []
    characters, place = 0, begins
    for row in rows:
        if bounds.hold(row) or len(going) == ROWS or characters > CHARACTERS:
            break
        if (row.step, row.first_revision, row.prev_hash) != (place.step + 1, place.revision + 1, place.hash):
            raise StoreDamagedError(f"step {row.step} of {row.conversation_id} does not follow; its log is not pruned")
        if hash_of(row) != row.hash:
            raise StoreDamagedError(f"step {row.step} of {row.conversation_id} was changed; its log is not pruned")
        going.append(row)
        characters += len(row.notifications) + len(row.event) + len(row.context or "")
        place = place_after(row)
    return going
