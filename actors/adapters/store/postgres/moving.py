"""Copies a stopped server's SQLite database to PostgreSQL, and compares each copied row with the original."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from msgspec import DecodeError, json
from peewee import SQL, fn

from actors.adapters.store import models
from actors.adapters.store.postgres.engine import PostgresConnection, address_of, migrate, reached, words
from actors.adapters.store.query import Session, Statement
from actors.adapters.store.rows import logged_entry
from actors.adapters.store.sqlite.engine import FILE
from actors.adapters.store.sqlite.store import open_store
from actors.core.context import Profile
from actors.ports import StoreDamagedError, StoreError


class MoveError(StoreError):
    """Nothing was moved; the message says why."""


class Moved(NamedTuple):
    conversations: int
    rows: int
    to: str  # the URL of the PostgreSQL database, without the password


# The columns to sort by, for the tables that are not sorted by their first column.
_KEYS: dict[Any, tuple[Any, ...]] = {
    models.Log: (models.Log.conversation_id, models.Log.first_revision, models.Log.step),
    models.Runs: (models.Runs.conversation_id, models.Runs.revision),
    models.Fates: (models.Fates.conversation_id, models.Fates.revision),
    models.Commands: (
        fn.coalesce(models.Commands.conversation_id, SQL("''")),
        fn.coalesce(models.Commands.principal, SQL("''")),
        models.Commands.request_id,
    ),
    models.Attachments: (models.Attachments.conversation_id, models.Attachments.id),
    models.Spendings: (models.Spendings.day, models.Spendings.principal),
}
_PARENTS = Statement(models.Records.select(models.Records.id, models.Records.parent_conversation_id))
_PROFILE = json.Decoder(Profile)
_NO_LIMITS = """
SELECT set_config('statement_timeout', '0', false), set_config('idle_in_transaction_session_timeout', '0', false)
"""
_IN_USE = """
SELECT EXISTS (SELECT FROM conversations) OR EXISTS (SELECT FROM audit),
       EXISTS (SELECT FROM nodes WHERE NOT dead AND expires > clock_timestamp())
"""


def move_to(url: str, directory: Path, documents: Mapping[str, bytes]) -> Moved:
    """Copy the SQLite database in `directory` into an empty PostgreSQL database, in one transaction.

    The old database is not changed, but a mark in its directory then prevents opening it. `documents`, such as the list
    of tokens, are stored, too. Raises MoveError, StoreUnusableError or DataDirectoryBusyError.
    """
    if not (directory / FILE).is_file():
        raise MoveError(f"no database in {directory}")
    address = address_of(url)
    with ExitStack() as opened:
        store = open_store(directory)
        opened.callback(store.close)
        try:
            session = reached(address)
            opened.callback(session.close)
            migrate(address)
            _refuse_used(session, address.redacted)
            with store._readers.lend() as source:
                source.run("BEGIN")
                counts = _copied(source, session, documents)
                source.run("COMMIT")
            store.mark_moved(address.redacted)
        except psycopg.Error as error:
            raise MoveError(f"{address.redacted}: {words(error)}") from None
        except StoreDamagedError as error:
            raise MoveError(f"{directory / FILE} is damaged: {error}") from None
    return Moved(counts["conversations"], sum(counts.values()), address.redacted)


def _refuse_used(session: PostgresConnection, redacted: str) -> None:
    used, alive = session.run(_IN_USE).fetchone()
    if alive:
        raise MoveError(f"{redacted} is in use by a server; stop that server first")
    if used:
        raise MoveError(f"{redacted} is not empty; choose an empty one")


def _copied(source: Session, session: PostgresConnection, documents: Mapping[str, bytes]) -> dict[str, int]:
    more = _more(source)
    session.run(_NO_LIMITS)
    session.run("BEGIN")
    counts: dict[str, int] = {}
    for model in models.TABLES:
        name, extra = model._meta.table_name, more.get(model, lambda _row: ())
        columns = [each.column_name for each in models.fields(model)]
        columns += [each.name for each in models.POSTGRES_COLUMNS.get(model, ())]
        read = (row + extra(row) for row in source.execute(_sorted(model)))
        counts[name] = session.copy_in(name, columns, read)
    for model in models.TABLES:
        _compare(source, session, model)
    session.run("DELETE FROM documents")
    for name, content in documents.items():
        session.run("INSERT INTO documents VALUES (%s, 1, %s)", (name, content))
    session.run("SELECT setval(pg_get_serial_sequence('audit', 'id'), max(id)) FROM audit HAVING max(id) > 0")
    session.run("COMMIT")
    session.run("ANALYZE")
    return counts


def _sorted(model: Any) -> Statement:
    return Statement(model.select().order_by(*_KEYS.get(model, models.fields(model)[:1])))


def _compare(source: Session, session: PostgresConnection, model: Any) -> None:
    """Raise MoveError unless the columns that SQLite has contain the same values in both databases."""
    statement = _sorted(model)
    pairs = zip_longest(source.execute(statement), session.read_all(statement))
    for count, (row, copy) in enumerate(pairs, 1):
        if row != copy:
            raise MoveError(f"row {count} of {model._meta.table_name} differs from its copy; nothing was moved")


def _more(source: Session) -> dict[Any, Callable[[Any], tuple[str | None, ...]]]:
    """For each table with columns that only PostgreSQL has, return a function that computes them from a SQLite row."""
    parents: dict[str, str | None] = dict(source.execute(_PARENTS))

    def family(row: Any) -> tuple[str | None, ...]:
        top = str(row[0])
        while (parent := parents.get(top)) is not None:
            top = parent
        return top, None  # None: at first, the family has no owner

    def forked_from(row: Any) -> tuple[str, ...]:
        try:
            return (_PROFILE.decode(row[1]).forked_from,)
        except DecodeError:
            return ("",)

    def principal(row: Any) -> tuple[str, ...]:
        return (logged_entry(0, "", 0, row[-1] or "{}").origin.principal,)

    return {models.Records: family, models.Profiles: forked_from, models.Log: principal}
