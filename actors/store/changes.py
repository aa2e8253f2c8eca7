"""What can be written: each change is one caller's, and is written whole or not at all.

A change is built, and everything of it encoded, on the thread that asks for it; `apply` runs on the writer's thread
inside a savepoint of its own. What it raises is what the caller gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from actors.ports import Attachment, Commit, CommandExists, Fenced, SlugTaken, StoreError
from actors.store import rows
from actors.store.engine import sqlite3
from actors.store.journal import LogRow, check_shape, next_revision, seal


def _insert(table: str, columns: Iterable[str]) -> str:
    names = tuple(columns)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 -- our names


_INSERT_CONVERSATION = _insert("conversations", (*rows.FIXED, *rows.CHANGING, "slug", "log_hash"))
_UPDATE_CONVERSATION = (
    f"UPDATE conversations SET {', '.join(f'{name} = ?' for name in rows.CHANGING)}, log_hash = ? "  # noqa: S608
    "WHERE id = ? AND step = ? AND epoch <= ?"
)
_INSERT_MESSAGE = _insert("messages", rows.MESSAGE)
_INSERT_LOG = _insert("log", LogRow._fields)
_INSERT_COMMAND = _insert("commands", ("conversation_id", "principal", "request_id", "body_hash", "answer", "at"))
_HEAD = "SELECT epoch, step, last_seq, log_hash, slug FROM conversations WHERE id = ?"


class Change(Protocol):
    """Something to write."""

    def apply(self, connection: sqlite3.Connection) -> None:
        """Write it (writer's thread). Raises StoreError, or what SQLite raises."""
        ...


class Head(NamedTuple):
    """Where a stored conversation stands."""

    epoch: int
    step: int
    last_seq: int
    log_hash: str
    slug: str | None


class _Part:
    """A Commit, encoded."""

    def __init__(self, commit: Commit) -> None:
        check_shape(commit)
        record = commit.record
        self.id = record.id
        self.slug = record.slug or None
        self.epoch = record.epoch
        self.expected_step = commit.expected_step
        self.next_revision = next_revision(commit)
        self.fixed = rows.fixed_values(record) if commit.create else None
        self.changing = rows.changing_values(record)
        self.prompt = record.system_prompt if commit.create else ""
        self.messages = [rows.message_values(record.id, message) for message in commit.messages]
        self.log = [seal(record.id, record.epoch, entry) for entry in commit.log]
        self.command: rows.Row | None = None
        if commit.command is not None:
            owner = (None, record.principal) if commit.create_command else (record.id, None)
            command = commit.command
            self.command = (*owner, command.request_id, command.body_hash, command.answer.decode(), command.at)

    def write(self, connection: sqlite3.Connection) -> None:
        head = Head(self.epoch, 0, 0, "", self.slug) if self.fixed is not None else self._head(connection)
        links, log_hash = [], head.log_hash
        for sealed in self.log:
            links.append(sealed.after(log_hash))
            log_hash = links[-1].hash
        if self.fixed is not None:
            self._create(connection, self.fixed, log_hash)
        else:
            self._update(connection, head, log_hash)
        if self.messages:
            connection.executemany(_INSERT_MESSAGE, self.messages)
        if links:
            connection.executemany(_INSERT_LOG, links)
        if self.command is not None:
            connection.execute(_INSERT_COMMAND, self.command)

    def _head(self, connection: sqlite3.Connection) -> Head:
        row = connection.execute(_HEAD, (self.id,)).fetchone()
        if row is None:
            raise Fenced(f"{self.id} is gone")
        head = Head(*row)
        if head.last_seq + 1 != self.next_revision:
            raise Fenced(f"{self.id} stands at revision {head.last_seq}, not {self.next_revision - 1}")
        return head

    def _create(self, connection: sqlite3.Connection, fixed: rows.Row, log_hash: str) -> None:
        connection.execute(_INSERT_CONVERSATION, (*fixed, *self.changing, self.slug, log_hash))
        if self.prompt:
            connection.execute("INSERT INTO prompts (conversation_id, text) VALUES (?, ?)", (self.id, self.prompt))

    def _update(self, connection: sqlite3.Connection, head: Head, log_hash: str) -> None:
        fence = (self.id, self.expected_step, self.epoch)
        if connection.execute(_UPDATE_CONVERSATION, (*self.changing, log_hash, *fence)).rowcount != 1:
            raise Fenced(
                f"{self.id} stands at step {head.step} of epoch {head.epoch}, "
                f"not at step {self.expected_step} of epoch {self.epoch}"
            )
        if self.slug != head.slug:
            connection.execute("UPDATE conversations SET slug = ? WHERE id = ?", (self.slug, self.id))


class Transition:
    """The parts of one commit."""

    def __init__(self, parts: tuple[Commit, ...]) -> None:
        """Raises ValueError if a part contradicts itself."""
        self._parts = [_Part(part) for part in parts]

    def apply(self, connection: sqlite3.Connection) -> None:
        try:
            for part in self._parts:
                part.write(connection)
        except sqlite3.IntegrityError as error:
            raise _refusal(error) from error


class Deletion:
    """A conversation and, by cascade, everything of it and of its sub-agents. Create commands stay."""

    def __init__(self, conversation_id: str) -> None:
        self._id = conversation_id

    def apply(self, connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM conversations WHERE id = ?", (self._id,))


class Pruning:
    """The log's rows whose events all lie before a revision; the row of the latest event stays."""

    def __init__(self, conversation_id: str, before_revision: int) -> None:
        self._id = conversation_id
        self._before = before_revision

    def apply(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "DELETE FROM log WHERE conversation_id = :id AND first_revision + count <= "
            "min(:before, (SELECT last_seq FROM conversations WHERE id = :id))",
            {"id": self._id, "before": self._before},
        )


class NewAttachment:
    """Bytes by content hash; those that are there already stay."""

    def __init__(self, conversation_id: str, attachment: Attachment, at: int) -> None:
        self._row = (
            conversation_id, attachment.id, attachment.media_type, attachment.data, attachment.width,
            attachment.height, at,
        )  # fmt: skip

    def apply(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("INSERT INTO attachments VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", self._row)
        except sqlite3.IntegrityError as error:
            raise _refusal(error) from error


def _refusal(error: sqlite3.IntegrityError) -> StoreError:
    """Which of the port's refusals a violated constraint is."""
    text = str(error)
    if "conversations.slug" in text:
        return SlugTaken(text)
    if "commands." in text or "messages.id" in text:
        return CommandExists(text)
    return Fenced(text)
