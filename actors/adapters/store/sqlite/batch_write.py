"""Writes the commits of many conversations in a few long SQL statements.

Every statement releases Python's interpreter lock, and getting the lock back from busy threads costs more time than
writing the rows. Only commits that follow directly on the stored state of their conversation are written here. All
other changes are written one by one, so that each gets its own error if it is refused. If a batch violates a
constraint, all its changes are written one by one, too.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from actors.adapters.store.sql import write_statements
from actors.adapters.store.sqlite import statements
from actors.adapters.store.sqlite.changes import Change, CommitPart, Transition, heads
from actors.adapters.store.sqlite.engine import sqlite3

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.adapters.store import rows

MAX_ROWS = 128
"""Maximum number of rows of one statement.

The number of rows is padded with empty rows to a power of two, so that SQLite prepares only a few different statements.
"""


def write_batch(connection: sqlite3.Connection, changes: Sequence[Change]) -> list[Change]:
    """Write all changes that can be batched, or none of them; return the changes that are to be written one by one.

    Call this at the beginning of a transaction. If the batch cannot be written, the transaction is rolled back and a
    new one is begun.
    """
    plain = {change: change.only for change in changes if isinstance(change, Transition)}
    ids = [part.id for part in plain.values() if part and part.fixed is None]  # the conversations that exist already
    found = heads(connection, ids) if ids else {}
    taken: list[tuple[CommitPart, str]] = []
    left: list[Change] = []
    for change in changes:
        part = plain.get(change) if isinstance(change, Transition) else None
        # The head (the stored position of the conversation) is popped, so that a second change of the same conversation
        # is not in the batch.
        head = found.pop(part.id, None) if part else None
        if part and head and part.fits(head):
            taken.append((part, head.log_hash))
        else:
            left.append(change)
    try:
        if not taken or _write(connection, taken):
            return left
    except sqlite3.IntegrityError:
        pass
    connection.execute("ROLLBACK")
    connection.execute("BEGIN IMMEDIATE")
    return list(changes)


def _write(connection: sqlite3.Connection, taken: list[tuple[CommitPart, str]]) -> bool:
    """Write the rows of all commits; return whether every conversation existed and was updated."""
    updates: list[rows.Row] = []
    messages: list[rows.Row] = []
    log: list[rows.Row] = []
    runs: list[rows.Row] = []
    fates: list[rows.Row] = []
    for part, head_hash in taken:
        links, log_hash = part.links(head_hash)
        updates.append((part.id, *part.changing, log_hash))
        messages += part.messages
        log += links
        runs += part.runs
        fates += part.fates
    updated = _in_chunks(connection, updates, statements.update_conversations)
    _in_chunks(connection, messages, statements.insert_messages)
    _in_chunks(connection, log, statements.insert_log)
    _in_chunks(connection, runs, statements.insert_runs)
    if fates:
        connection.executemany(statements.INSERT_FATE, fates)
    commands = [part.command for part, _ in taken if part.command]
    if commands:
        connection.executemany(statements.INSERT_COMMAND, commands)
    spendings = [part.spending for part, _ in taken if part.spending]
    if spendings:
        connection.executemany(write_statements.ADD_SPENDING, spendings)
    return updated == len(updates)


def _in_chunks(connection: sqlite3.Connection, values: list[rows.Row], statement: Callable[[int], str]) -> int:
    """Execute `statement(number of rows)` for chunks of at most MAX_ROWS rows; return how many rows were changed."""
    touched = 0
    for start in range(0, len(values), MAX_ROWS):
        chunk = values[start : start + MAX_ROWS]
        size = 1 << (len(chunk) - 1).bit_length()
        empty = ("",) * (len(chunk[0]) * (size - len(chunk)))
        touched += connection.execute(statement(size), (*chain.from_iterable(chunk), *empty)).rowcount
    return touched
