"""Transitions of several conversations in a few long statements.

Every statement gives up the interpreter's lock and takes it again, and costs more than the rows it carries: one by one
the same rows take about twice as long, and many times that with busy threads around. Only what surely fits is
written here; the rest, and everything if a constraint is violated after all, is written one by one, where it is
refused for the right reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain

from actors.store import rows
from actors.store.changes import COMMAND, Change, Part, Transition, heads, insert
from actors.store.engine import sqlite3
from actors.store.journal import LogRow

MAX_ROWS = 128
"""Rows of one statement. Smaller powers of two follow for the rest, so that few statements are ever prepared."""


def write_together(connection: sqlite3.Connection, changes: Sequence[Change]) -> list[Change]:
    """Write what can be written at once, all of it or nothing; return what is left to be written one by one."""
    plain = {change: change.only for change in changes if isinstance(change, Transition)}
    found = heads(connection, (part.id for part in plain.values() if part)) if len(plain) > 1 else {}
    taken: list[tuple[Part, str]] = []
    left: list[Change] = []
    for change in changes:
        part = plain.get(change)
        head = found.pop(part.id, None) if part else None  # a second change of a conversation finds it gone
        if part and head and part.fits(head):
            taken.append((part, head.log_hash))
        else:
            left.append(change)
    return left if _written(connection, taken) else list(changes)


def _written(connection: sqlite3.Connection, taken: list[tuple[Part, str]]) -> bool:
    """Whether everything of `taken` could be written; if not, the transaction has begun anew, without it."""
    try:
        if _write(connection, taken):
            return True
    except sqlite3.IntegrityError:
        pass
    connection.execute("ROLLBACK")
    connection.execute("BEGIN IMMEDIATE")
    return False


def _write(connection: sqlite3.Connection, taken: list[tuple[Part, str]]) -> bool:
    updates: list[rows.Row] = []
    log: list[rows.Row] = []
    for part, head_hash in taken:
        links, log_hash = part.links(head_hash)
        updates.append((part.id, *part.changing, log_hash))
        log += links
    updated = _in_chunks(connection, updates, _update)
    _in_chunks(connection, [row for part, _ in taken for row in part.messages], _insert_messages)
    _in_chunks(connection, log, _insert_log)
    _in_chunks(connection, [part.command for part, _ in taken if part.command], _insert_commands)
    return updated == len(updates)


def _in_chunks(connection: sqlite3.Connection, values: list[rows.Row], statement: Callable[[int], str]) -> int:
    """Run `statement(number of rows)` until all rows are used; return how many it touched."""
    touched = 0
    for start in range(0, len(values), MAX_ROWS):
        chunk = values[start : start + MAX_ROWS]
        size = 1 << (len(chunk) - 1).bit_length()
        empty = (None,) * (len(chunk[0]) * (size - len(chunk)))
        touched += connection.execute(statement(size), (*chain.from_iterable(chunk), *empty)).rowcount
    return touched


@lru_cache
def _update(count: int) -> str:
    columns = (*rows.CHANGING, "log_hash")
    settings = ", ".join(f"{name} = new.column{place}" for place, name in enumerate(columns, 2))
    return f"UPDATE conversations SET {settings} FROM {_values(len(columns) + 1, count)} AS new WHERE id = new.column1"  # noqa: S608 -- our names


@lru_cache
def _insert_messages(count: int) -> str:
    return _insert("messages", rows.MESSAGE, count)


@lru_cache
def _insert_log(count: int) -> str:
    return _insert("log", LogRow._fields, count)


@lru_cache
def _insert_commands(count: int) -> str:
    return _insert("commands", COMMAND, count)


def _insert(table: str, columns: Sequence[str], count: int) -> str:
    """Inserts rows; one whose request or sequence is NULL fills the statement up and is left out."""
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM {_values(len(columns), count)} WHERE column3 IS NOT NULL"  # noqa: S608


def _values(columns: int, count: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"(VALUES {', '.join([row] * count)})"
