"""Peewee queries as statements: compiled once for each kind of database, and executed with values bound by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from peewee import AutoField, ColumnBase, Database, Node, Select, fn

from actors.adapters.store.models import SHARED, Deletions, fields

MOST_ROWS = 64  # of one statement; SQLite allows 32,766 parameters
ALL = (1 << 63) - 1  # a LIMIT, or an upper bound, that is greater than any number


class Param(Node):
    """A parameter of a statement; its value is given, by this name, when the statement is executed."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __sql__(self, ctx: Any) -> Any:
        """Write a placeholder, and this object in the place of its value."""
        ctx._values.append(self)
        return ctx.literal(ctx.state.param or "?")


class PerDatabase(ColumnBase):
    """An expression that differs between SQLite and PostgreSQL."""

    def __init__(self, sqlite: Any, postgres: Any) -> None:
        self._sqlite = sqlite
        self._postgres = postgres

    def __sql__(self, ctx: Any) -> Any:
        """Write the expression of the database for which the statement is compiled."""
        return ctx.sql(self._sqlite if on_sqlite(ctx.state.param) else self._postgres)


def on_sqlite(placeholder: str) -> bool:
    """Return whether statements with this placeholder are for SQLite; those for PostgreSQL have "%s"."""
    return placeholder == "?"


class Statement:
    """A query, compiled once for each kind of database: that takes as long as executing it ten times."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self._compiled: dict[str, tuple[str, tuple[Any, ...]]] = {}

    def on(self, dialect: Database) -> tuple[str, tuple[Any, ...]]:
        """Return the statement's text and its parameters in order: Params, and constants."""
        found = self._compiled.get(dialect.param)
        if found is None:
            sql, values = self._query.clone().bind(dialect).sql()
            found = self._compiled[dialect.param] = sql, tuple(values)
        return found


class Insert:
    """Inserts rows: tuples of a model's columns, and then of those that only PostgreSQL has, which SQLite ignores.

    Many rows make one statement, since PostgreSQL does not end an idle transaction whose last statements it got at once
    (libpq's pipeline, which `executemany` uses).
    """

    def __init__(self, model: Any, condition: Any = None, **conflict: Any) -> None:
        """Insert only while `condition` holds; `conflict` is for rows that exist (see `on_conflict` of peewee)."""
        self._model = model
        self._condition = condition
        self._conflict = conflict
        self._compiled: dict[tuple[str, int], tuple[str, int, int]] = {}

    def of(self, dialect: Database, count: int) -> tuple[str, int, int]:
        """Return the text for `count` rows, the number of columns, and how often "me" follows as a parameter."""
        found = self._compiled.get((dialect.param, count))
        if found is None:
            columns = [each for each in fields(self._model) if not isinstance(each, AutoField)]
            columns += () if on_sqlite(dialect.param) else SHARED.get(self._model, ())
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
    """A connection to a database, which executes statements. Used by one thread at a time."""

    dialect: Database
    me = 1  # the number of this server; SQLite has only one
    shared = False  # whether several servers use the database, so that conversations have owners
    # What the database raises if it refuses a row, which makes none of a batch's rows be written.
    refusals: tuple[type[Exception], ...] = ()

    def execute(self, statement: Statement, **values: Any) -> Any:
        """Execute a statement, and return the cursor. Raises what the database raises."""
        sql, slots = statement.on(self.dialect)
        values["me"] = self.me
        return self.run(sql, [values[slot.name] if isinstance(slot, Param) else slot for slot in slots])

    def executemany(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> Any:
        """Execute a statement once for each row; the cursor counts the changed rows of all."""
        sql, slots = statement.on(self.dialect)
        return self.run_many(
            sql, [[self.me if slot.name == "me" else row[slot.name] for slot in slots] for row in rows]
        )

    def insert(self, statement: Insert, rows: Sequence[Sequence[Any]]) -> int:
        """Insert rows with few statements, of 64, 32, 16 … rows, of which few texts are compiled; return how many."""
        done = written = 0
        while done < len(rows):
            count = min(MOST_ROWS, 1 << ((len(rows) - done).bit_length() - 1))
            sql, width, more = statement.of(self.dialect, count)
            values = [value for row in rows[done : done + count] for value in row[:width]]
            written += self.run(sql, values + [self.me] * more).rowcount
            done += count
        return written

    @abstractmethod
    def run(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = (), /) -> Any:
        """Execute SQL that is written by hand, with the placeholders of this database, and return the cursor."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Idempotent."""

    def recovered(self) -> bool:
        """Return whether the connection can be used on after a read that failed."""
        return False

    @abstractmethod
    def run_many(self, sql: str, rows: Sequence[Sequence[Any]], /) -> Any:
        """Execute SQL once for each row; the cursor counts the changed rows of all."""


def undeleted(column: Any) -> Any:
    """Return the condition that a conversation is not deleted; `column` has its id.

    A deleted conversation is listed in the table `deletions` until its rows are removed.
    """
    return column.not_in(Deletions.select(Deletions.conversation_id))


def of_conversation(model: Any) -> Any:
    """Return the query for the rows of a table that belong to the conversation `id`, unless it is deleted."""
    return model.select().where(model.conversation_id == Param("id"), undeleted(model.conversation_id))


def exists(query: Any) -> Any:
    """Return the condition that a query finds a row."""
    return fn.EXISTS(query)
