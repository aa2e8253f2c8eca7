"""Who owns a conversation, in a database that several servers share.

A top-level conversation and all its sub-agents (a family) have one owner. With SQLite, this server owns everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from peewee import SQL, fn

from actors.adapters.store.models import OWNER, Nodes, Records
from actors.adapters.store.query import Param, PerDatabase, Session, Statement, exists, undeleted
from actors.ports import FencedError, NotOwnerError, Owner

_ME = Param("me")
_THEIRS: Any = Nodes.alias()

# The condition that this server was not declared dead, after which it changes no conversation any more.
ALIVE = exists(Nodes.select(SQL("1")).where(Nodes.incarnation == _ME, ~Nodes.dead))
# The condition that no living server owns a row of `conversations`.
#
# An owner without a row in `nodes` has left. But if its number is greater than this server's, it may be a new server
# whose row is not visible to this statement yet, so it counts as living.
FREE = (
    OWNER.is_null()
    | exists(_THEIRS.select(SQL("1")).where(_THEIRS.incarnation == OWNER, _THEIRS.dead))
    | ((OWNER < _ME) & ~exists(_THEIRS.select(SQL("1")).where(_THEIRS.incarnation == OWNER)))
)
# The condition that this server owns a row of `conversations`; and that it may write to the conversation, too.
MINE = PerDatabase(SQL("(1 = 1)"), OWNER == _ME)
OWNED = PerDatabase(SQL("(1 = 1)"), (OWNER == _ME) & ALIVE)

_OWNER_OF = Statement(
    Records.select(Nodes.incarnation, Nodes.name, Nodes.address)
    .join(Nodes, on=(Nodes.incarnation == OWNER) & ~Nodes.dead)
    .where(Records.id == Param("id"), Nodes.incarnation != _ME)
)


class Head(NamedTuple):
    """The step, revision and hash at which a stored conversation is now; its next commit must continue from there."""

    id: str
    epoch: int
    step: int
    last_seq: int
    log_hash: str
    slug: str
    owned: bool


def _heads(count: int) -> Statement:
    ids = [Param(f"id{place}") for place in range(count)]
    where = Records.id.in_(ids), undeleted(Records.id)
    slug = fn.coalesce(Records.slug, "")
    columns = [getattr(Records, name) for name in Head._fields[:5]]
    return Statement(Records.select(*columns, slug, OWNED).where(*where))


_HEADS = [_heads(1 << power) for power in range(8)]  # a text for each size that a batch may be rounded up to


def look(session: Session, ids: list[str]) -> Any:
    """Query the heads of those conversations in `ids`, at most 128, that exist."""
    power = (len(ids) - 1).bit_length()
    padded = [*ids, *[""] * ((1 << power) - len(ids))]
    return session.execute(_HEADS[power], **{f"id{place}": id_ for place, id_ in enumerate(padded)})


def by_id(looked: Iterable[Any]) -> dict[str, Head]:
    """Return the heads that `look` found, by the id of the conversation."""
    return {head.id: head for head in map(Head._make, looked)}


def head_of(session: Session, conversation_id: str) -> Head | None:
    """Return a conversation's head; None if it does not exist."""
    return by_id(look(session, [conversation_id])).get(conversation_id)


def owned_head(session: Session, conversation_id: str) -> Head:
    """Return a conversation's head.

    Raises FencedError if the conversation does not exist, NotOwnerError if this server does not own it.
    """
    head = head_of(session, conversation_id)
    if head is None:
        raise FencedError(f"{conversation_id} does not exist")
    if not head.owned:
        raise not_owner(session, conversation_id)
    return head


def not_owner(session: Session, conversation_id: str) -> NotOwnerError:
    """Return the error to raise for a conversation that this server does not own.

    The error contains the owner if the owner is alive.
    """
    row = session.execute(_OWNER_OF, id=conversation_id).fetchone()
    owner = None if row is None else Owner(*row)
    said = "no live node owns it" if owner is None else f"node {owner.incarnation} owns it"
    return NotOwnerError(f"{conversation_id} does not belong to this node: {said}", owner=owner)
