"""Removes deleted conversations in the background, in small slices; finds the log rows that may be pruned.

A deletion only hides conversations: they are recorded in the `deletions` table, lose their slug, and get an epoch so
high that every later change is refused. Their rows are removed afterwards in slices, so that no caller waits for the
removal of a conversation with many sub-agents. After a crash, the removal is resumed by this server at its next start,
or by another server.

An unfinished fork is hidden in the same way. The fork's rows are removed if it is abandoned, after a crash, or once the
server that was making it is dead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from peewee import SQL, Tuple

from actors.adapters.store.models import (
    FAMILY,
    Attachments,
    Commands,
    Deletions,
    Fates,
    Log,
    Messages,
    Nodes,
    Profiles,
    Prompts,
    Prunings,
    Records,
    Runs,
)
from actors.adapters.store.query import Insert, Param, PerDatabase, Session, Statement, exists, owned_head
from actors.adapters.store.rows import LogPosition, LogRow, hash_of, place_after
from actors.ports import FencedError, StoreDamagedError

# The limits of a slice, which is one transaction. They are low because waiting changes are written only between slices,
# and a slice's commit may have to write a page for each removed row.
SLICE_SECONDS, SLICE_ROWS = 0.005, 64
_NO_EPOCH = (1 << 63) - 1  # greater than the epoch of any actor, so that all its commits are refused

_ID = Param("id")
_IS_DELETED = Deletions.conversation_id == _ID


def _removing(model: Any, count: int, *keys: Any) -> Statement:
    """The statement that removes up to `count` rows of a deleted conversation; `keys` are the primary key's columns."""
    some = model.select(*keys).where(model.conversation_id == _ID).limit(count)
    still = exists(Deletions.select(SQL("1")).where(_IS_DELETED))  # false if the id now belongs to a new conversation
    return Statement(model.delete().where(Tuple(*keys).in_(some), still))


# A slice's limits are checked only after each statement, so each statement removes only a few rows, or a single
# attachment, because attachments may be large.
_REMOVE = (
    _removing(Messages, 16, Messages.id),
    _removing(Log, 16, Log.conversation_id, Log.first_revision, Log.step),
    *(_removing(each, 16, each.conversation_id, each.revision) for each in (Runs, Fates)),
    _removing(Commands, 16, Commands.conversation_id, Commands.request_id),
    _removing(Attachments, 1, Attachments.conversation_id, Attachments.id),
    *(_removing(each, 1, each.conversation_id) for each in (Prunings, Prompts, Profiles)),
)
_REMOVE_CONVERSATION = Statement(
    Records.delete().where(Records.id == _ID, exists(Deletions.select(SQL("1")).where(_IS_DELETED)))
)
_FORGET = Statement(Deletions.delete().where(_IS_DELETED))  # in SQLite, a cascade has already done this

_DELETED = Deletions.select(Deletions.conversation_id)
_NEXT = Statement(_DELETED.where(Deletions.depth >= 0).order_by(Deletions.depth.desc()).limit(1))
_FIND = Statement(_DELETED.where(_IS_DELETED))
_LOCK_FAMILY = Statement(
    Records.select(Records.id)
    .where(FAMILY.in_(Records.select(FAMILY).where(Records.id == _ID)))
    .order_by(Records.id)
    .for_update()
)
_TOP = (
    Records.select(Records.id, SQL("CAST(0 AS bigint)"))
    .where(Records.id == _ID)
    .cte("tree", recursive=True, columns=("id", "depth"))
)
_CHILD: Any = Records.alias()
_TREE = _TOP.union(
    _CHILD.select(_CHILD.id, _TOP.c.depth + SQL("1")).join(_TOP, on=_CHILD.parent_conversation_id == _TOP.c.id)
)
_NOTE = Statement(
    Deletions.insert_from(
        _TREE.select_from(_TREE.c.id, _TREE.c.depth), (Deletions.conversation_id, Deletions.depth)
    ).on_conflict_ignore()
)
_HIDE = Statement(
    Records.update({Records.slug: None, Records.epoch: _NO_EPOCH}).where(
        Records.id.in_(_DELETED.where(Deletions.depth >= 0)), Records.epoch < _NO_EPOCH
    )
)
_HIDE_UNFINISHED = Insert(Deletions)
_UNFINISHED = _IS_DELETED & (Deletions.depth == Param("mark"))
# Locks the row: in both databases, an update does so even if it changes nothing.
_HELD = Statement(Deletions.update({Deletions.depth: Param("mark")}).where(_UNFINISHED))
_SHOW_UNFINISHED = Statement(Deletions.delete().where(_UNFINISHED))
_ABANDON = Deletions.update({Deletions.depth: 0})
_ABANDON_UNFINISHED = Statement(_ABANDON.where(_UNFINISHED))
_MAKER_LIVES = exists(Nodes.select(SQL("1")).where(Nodes.incarnation + Deletions.depth == 0, ~Nodes.dead))
_ABANDON_OF_THE_DEAD = Statement(_ABANDON.where(Deletions.depth < 0, PerDatabase(SQL("(1 = 1)"), ~_MAKER_LIVES)))


class _Budget(Struct):
    """How many rows a slice may still remove, and when it must end (in seconds of time.monotonic)."""

    rows: int
    until: float

    @property
    def spent(self) -> bool:
        return self.rows <= 0 or time.monotonic() > self.until


def hide(session: Session, conversation_id: str) -> bool:
    """Mark a conversation and its sub-agents for removal; False if it does not exist. Raises NotOwnerError."""
    try:
        if session.shared:  # locks the family, so that no other server can add a sub-agent
            session.execute(_LOCK_FAMILY, id=conversation_id).fetchall()
        owned_head(session, conversation_id)
    except FencedError:
        return False
    session.execute(_NOTE, id=conversation_id)
    session.execute(_HIDE)
    return True


def remove_slice(session: Session) -> bool:
    """Remove some rows of deleted conversations, sub-agents before their parents; return False if no rows are left."""
    if session.shared:
        abandon_of_the_dead(session)
    budget = _Budget(SLICE_ROWS, time.monotonic() + SLICE_SECONDS)
    while (found := session.execute(_NEXT).fetchone()) is not None:
        if not _remove(session, found[0], budget) or budget.spent:
            return True
    return False


def abandon_of_the_dead(session: Session) -> None:
    """Mark the unfinished forks of dead servers for removal.

    With SQLite, this marks all of them, so call it only before the store is used.
    """
    session.execute(_ABANDON_OF_THE_DEAD)


def hide_unfinished(session: Session, conversation_id: str) -> None:
    session.insert(_HIDE_UNFINISHED, [(conversation_id, -session.me)])


def hold_unfinished(session: Session, conversation_id: str) -> bool:
    """Whether this server's fork is unfinished. If so, no other server can abandon it before this transaction ends."""
    return bool(session.execute(_HELD, id=conversation_id, mark=-session.me).rowcount)


def show_unfinished(session: Session, conversation_id: str) -> bool:
    """Make a fork visible that this server has just finished; return False if it was not hidden (it was abandoned)."""
    return bool(session.execute(_SHOW_UNFINISHED, id=conversation_id, mark=-session.me).rowcount)


def abandon_unfinished(session: Session, conversation_id: str) -> None:
    """Mark a fork for removal if this server has not finished it."""
    session.execute(_ABANDON_UNFINISHED, id=conversation_id, mark=-session.me)


def remove_all(session: Session, conversation_id: str) -> None:
    """Remove all remaining rows of a deleted conversation in one step; do nothing if it is not deleted."""
    if session.execute(_FIND, id=conversation_id).fetchone() is not None:
        _remove(session, conversation_id, _Budget(sys.maxsize, float("inf")))


def _remove(session: Session, conversation_id: str, budget: _Budget) -> bool:
    """Remove rows of a conversation until the budget is spent; return whether none are left."""
    for statement in _REMOVE:
        while removed := session.execute(statement, id=conversation_id).rowcount:
            budget.rows -= removed
            if budget.spent:
                return False
    session.execute(_REMOVE_CONVERSATION, id=conversation_id)
    session.execute(_FORGET, id=conversation_id)
    return True


# --- the pruning of logs ------------------------------------------------------------------------------------------

PRUNED_ROWS = 256  # maximum rows per batch. It is low because no other change can be written while a batch is deleted.
# Approximate maximum number of characters per batch. A large row occupies several pages, all of which must be freed.
CHARACTERS = 4 * 1024 * 1024


def prunable(begins: LogPosition, log: Iterable[LogRow], before_revision: int, older_than: int | None) -> list[LogRow]:
    """The next log rows to prune, oldest first, after the position `begins`.

    Their events precede `before_revision`, and they are older than `older_than` (ms since 1970). Raises
    StoreDamagedError if the log fails verification; a damaged log is not pruned, because it is evidence.
    """
    going: list[LogRow] = []
    characters, place = 0, begins
    for row in log:
        held = row.first_revision + row.event_count > before_revision or (
            older_than is not None and row.at >= older_than
        )
        if held or len(going) == PRUNED_ROWS or characters > CHARACTERS:
            break
        if (row.step, row.first_revision, row.prev_hash) != (place.step + 1, place.revision + 1, place.hash):
            raise StoreDamagedError(f"step {row.step} of {row.conversation_id} is out of order; not pruning the log")
        if hash_of(row) != row.hash:
            raise StoreDamagedError(f"step {row.step} of {row.conversation_id} has been modified; not pruning the log")
        going.append(row)
        characters += len(row.notifications) + len(row.event) + len(row.context or "")
        place = place_after(row)
    return going
