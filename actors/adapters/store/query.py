"""Peewee queries as statements: compiled once for each kind of database, and executed with values bound by name.

Also contains two conditions that most statements need: that a conversation is not deleted, and that this server owns
it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from peewee import SQL, AutoField, ColumnBase, Database, Node, Select, fn

from actors.adapters.store.models import OWNER, POSTGRES_COLUMNS, Deletions, Nodes, Records, fields
from actors.ports import FencedError, NotOwnerError, Owner

MOST_ROWS = 64  # maximum rows per statement; SQLite allows 32,766 parameters
ALL = (1 << 63) - 1  # a LIMIT or upper bound that no number exceeds


class Param(Node):
    """A statement's parameter, whose value is passed under this name when the statement is executed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __sql__(self, ctx: Any) -> Any:
        ctx._values.append(self)
        return ctx.literal(ctx.state.param or "?")


class PerDatabase(ColumnBase):
    """An expression that differs between SQLite and PostgreSQL."""

    def __init__(self, sqlite: Any, postgres: Any) -> None:
        self._sqlite = sqlite
        self._postgres = postgres

    def __sql__(self, ctx: Any) -> Any:
        return ctx.sql(self._sqlite if on_sqlite(ctx.state.param) else self._postgres)


def on_sqlite(placeholder: str) -> bool:
    """Whether statements with this placeholder are for SQLite; PostgreSQL's is "%s"."""
    return placeholder == "?"


class Statement:
    """A query that is compiled once per kind of database, because compiling takes as long as ten executions."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self._compiled: dict[str, tuple[str, tuple[Any, ...]]] = {}

    def on(self, dialect: Database) -> tuple[str, tuple[Any, ...]]:
        """The statement's SQL text, and its parameters in order; each is a Param or a constant."""
        found = self._compiled.get(dialect.param)
        if found is None:
            sql, values = self._query.clone().bind(dialect).sql()
            found = self._compiled[dialect.param] = sql, tuple(values)
        return found


class Insert:
    """Inserts rows. A row is a tuple of a model's columns, followed by the columns that only PostgreSQL has.

    One statement inserts several rows. `executemany` would send a pipeline of statements instead, and PostgreSQL does
    not end an idle transaction whose last statements came through a pipeline.
    """

    def __init__(self, model: Any, condition: Any = None, **conflict: Any) -> None:
        """`condition` must hold for anything to be inserted; `conflict` is passed to peewee's `on_conflict`."""
        self._model = model
        self._condition = condition
        self._conflict = conflict
        self._compiled: dict[tuple[str, int], tuple[str, int, int]] = {}

    def of(self, dialect: Database, count: int) -> tuple[str, int, int]:
        """The SQL for `count` rows, the number of columns, and how many "me" parameters follow the rows."""
        found = self._compiled.get((dialect.param, count))
        if found is None:
            columns = [each for each in fields(self._model) if not isinstance(each, AutoField)]
            columns += () if on_sqlite(dialect.param) else POSTGRES_COLUMNS.get(self._model, ())
            values = [Param(each.name) for each in columns]
            if self._condition is None:
                query = self._model.insert_many([values] * count, fields=columns)
            else:
                query = self._model.insert_from(Select(columns=values).where(self._condition), columns)
            query = query.on_conflict(**self._conflict) if self._conflict else query
            text, slots = query.bind(dialect).sql()
            found = self._compiled[dialect.param, count] = text, len(columns), len(slots) - count * len(columns)
        return found


class Session(ABC):
    """A database connection that executes statements. Used by one thread at a time."""

    dialect: Database
    me = 1  # the number of this server; with SQLite, there is only one server
    shared = False  # whether several servers use the database, so that conversations have owners
    # The exceptions that the database raises if it refuses a row; no row of the batch is then written.
    refusals: tuple[type[Exception], ...] = ()
    run: Callable[..., Any]
    """Executes SQL with this database's placeholders and the given values, if any, and returns the cursor."""
    run_many: Callable[[str, Sequence[Sequence[Any]]], Any]
    """Executes SQL once for each row; the cursor has the total number of changed rows."""

    def execute(self, statement: Statement, **values: Any) -> Any:
        """Execute a statement, and return the cursor. Raises what the database raises."""
        sql, slots = statement.on(self.dialect)
        values["me"] = self.me
        return self.run(sql, [values[slot.name] if isinstance(slot, Param) else slot for slot in slots])

    def executemany(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> Any:
        """Execute a statement once for each row; the cursor has the total number of changed rows."""
        sql, slots = statement.on(self.dialect)
        return self.run_many(
            sql, [[self.me if slot.name == "me" else row[slot.name] for slot in slots] for row in rows]
        )

    def insert(self, statement: Insert, rows: Sequence[Sequence[Any]]) -> int:
        """Insert rows in batches of 64, 32, 16 … so that few statements are compiled; return how many were inserted."""
        done = written = 0
        while done < len(rows):
            count = min(MOST_ROWS, 1 << ((len(rows) - done).bit_length() - 1))
            sql, width, more = statement.of(self.dialect, count)
            values = [value for row in rows[done : done + count] for value in row[:width]]
            written += self.run(sql, values + [self.me] * more).rowcount
            done += count
        return written

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Idempotent."""

    def recovered(self) -> bool:
        return False


def undeleted(column: Any) -> Any:
    """The condition that the conversation is not deleted; `deletions` lists those whose rows are not removed yet."""
    return column.not_in(Deletions.select(Deletions.conversation_id))


def of_conversation(model: Any) -> Any:
    """Select the rows of a conversation, given as the parameter `id`; no rows if it is deleted."""
    return model.select().where(model.conversation_id == Param("id"), undeleted(model.conversation_id))


def exists(query: Any) -> Any:
    return fn.EXISTS(query)


# --- owners of conversations --------------------------------------------------------------------------------------

# In a database that several servers share, a top-level conversation and all its sub-agents (a family) belong to one of
# the servers, their owner. With SQLite, this server owns everything.

_ME = Param("me")
_THEIRS: Any = Nodes.alias()

# The condition that this server was not declared dead. A server that was declared dead no longer changes any
# conversation.
ALIVE = exists(Nodes.select(SQL("1")).where(Nodes.incarnation == _ME, ~Nodes.dead))
# The condition that no living server owns a row of `conversations`.
#
# An owner that has no row in `nodes` has left the cluster. But an owner whose number is greater than this server's may
# be a new server whose row this statement cannot see yet, so it counts as living.
FREE = (
    OWNER.is_null()
    | exists(_THEIRS.select(SQL("1")).where(_THEIRS.incarnation == OWNER, _THEIRS.dead))
    | ((OWNER < _ME) & ~exists(_THEIRS.select(SQL("1")).where(_THEIRS.incarnation == OWNER)))
)
# The conditions that this server owns a row of `conversations`, and that it may also write to the conversation.
MINE = PerDatabase(SQL("(1 = 1)"), OWNER == _ME)
OWNED = PerDatabase(SQL("(1 = 1)"), (OWNER == _ME) & ALIVE)

_OWNER_OF = Statement(
    Records.select(Nodes.incarnation, Nodes.name, Nodes.address)
    .join(Nodes, on=(Nodes.incarnation == OWNER) & ~Nodes.dead)
    .where(Records.id == Param("id"), Nodes.incarnation != _ME)
)


class Head(NamedTuple):
    """A stored conversation's current step, revision and hash, from which its next commit must continue."""

    id: str
    epoch: int
    step: int
    revision: int
    log_hash: str
    slug: str
    owned: bool


def _heads(count: int) -> Statement:
    ids = [Param(f"id{place}") for place in range(count)]
    where = Records.id.in_(ids), undeleted(Records.id)
    slug = fn.coalesce(Records.slug, "")
    columns = [getattr(Records, name) for name in Head._fields[:5]]
    return Statement(Records.select(*columns, slug, OWNED).where(*where))


_HEADS = [_heads(1 << power) for power in range(8)]  # one for each size (a power of two) to which a batch is rounded up


def heads(session: Session, ids: Sequence[str]) -> dict[str, Head]:
    """The heads of those conversations in `ids` that exist; at most 128 ids."""
    power = (len(ids) - 1).bit_length()
    padded = [*ids, *[""] * ((1 << power) - len(ids))]
    found = session.execute(_HEADS[power], **{f"id{place}": id_ for place, id_ in enumerate(padded)})
    return {head.id: head for head in map(Head._make, found)}


def owned_head(session: Session, conversation_id: str) -> Head:
    """A conversation's head. Raises FencedError (no such conversation) or NotOwnerError (it is not this server's)."""
    head = heads(session, [conversation_id]).get(conversation_id)
    if head is None:
        raise FencedError(f"{conversation_id} does not exist")
    if not head.owned:
        raise not_owner(session, conversation_id)
    return head


def not_owner(session: Session, conversation_id: str) -> NotOwnerError:
    """The error for a conversation that does not belong to this server; names the owner if that is a living server."""
    row = session.execute(_OWNER_OF, id=conversation_id).fetchone()
    owner = None if row is None else Owner(*row)
    held = "no live node owns it" if owner is None else f"node {owner.incarnation} owns it"
    return NotOwnerError(f"{conversation_id} does not belong to this node: {held}", owner=owner)
