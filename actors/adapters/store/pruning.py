"""Decides which of the oldest rows of an event log are pruned (deleted) in one batch, and where the log then begins.

The store records that position, which distinguishes a pruned log from a log whose beginning is missing for another
reason. A log with rows that fail verification is not pruned, so that they are kept as evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from actors.adapters.store.log_rows import LogRow, hash_of
from actors.ports import StoreDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable

ROWS = 256
"""Maximum rows per batch. While a batch is deleted, no other change can be written."""
CHARACTERS = 4 * 1024 * 1024
"""Approximate maximum of characters per batch.

The limit is needed because a large row occupies several pages, each of which the database has to free.
"""


class LogPosition(NamedTuple):
    """A position between two rows of an event log: the step, last revision and hash of the row before it.

    Zeros and "" mean the beginning of a log from which nothing was pruned.
    """

    step: int = 0
    revision: int = 0
    hash: str = ""


BEGINNING = LogPosition()


def place_after(row: LogRow) -> LogPosition:
    """Return the position after `row`."""
    return LogPosition(row.step, row.first_revision + row.event_count - 1, row.hash)


class Bounds(NamedTuple):
    """The limits of a pruning: only rows that both limits allow may be removed."""

    before_revision: int
    """Rows may be removed if all their events precede this revision."""
    older_than: int | None = None
    """Rows may be removed if they were written before this time, in milliseconds since 1970; None for any age."""

    def hold(self, row: LogRow) -> bool:
        """Return whether this row and all later ones must be kept."""
        if row.first_revision + row.event_count > self.before_revision:
            return True
        return self.older_than is not None and row.at >= self.older_than


def prunable(begins: LogPosition, rows: Iterable[LogRow], bounds: Bounds) -> list[LogRow]:
    """Return the rows to prune in the next batch, oldest first; [] if there are none.

    `rows` are the rows of the event log after the position `begins`. Raises StoreDamagedError if a row to prune does
    not follow the row before it, or does not match its hash.
    """
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
