"""Prunes the log: removes its oldest rows in batches and records the position where the remaining rows begin.

The record distinguishes a pruned log from one whose beginning is missing for another reason. Rows that fail
verification are kept, as evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from actors.adapters.store.log_rows import LogRow, hash_of
from actors.ports import StoreDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable

ROWS = 256
"""Maximum rows per batch, which blocks the writer."""
CHARACTERS = 4 * 1024 * 1024
"""Approximate maximum of characters per batch: a large row has overflow pages, each of which must be freed."""


class LogPosition(NamedTuple):
    """A position in the log: after a row, or at the very beginning."""

    step: int = 0
    revision: int = 0
    hash: str = ""


BEGINNING = LogPosition()


def place_after(row: LogRow) -> LogPosition:
    """Return the position after `row`."""
    return LogPosition(row.step, row.first_revision + row.event_count - 1, row.hash)


class Bounds(NamedTuple):
    """The limits of a pruning: which rows may be removed."""

    before_revision: int
    """Only rows whose events all precede this revision."""
    older_than: int | None = None
    """Only rows written before this time in milliseconds since the epoch; None: of any age."""

    def hold(self, row: LogRow) -> bool:
        """Return whether this row and all later ones must be kept."""
        if row.first_revision + row.event_count > self.before_revision:
            return True
        return self.older_than is not None and row.at >= self.older_than


def prunable(begins: LogPosition, rows: Iterable[LogRow], bounds: Bounds) -> list[LogRow]:
    """Return the rows to prune now, oldest first. Raises StoreDamagedError for rows that fail verification."""
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
