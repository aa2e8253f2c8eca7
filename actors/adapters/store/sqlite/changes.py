"""What can be written: each change is one caller's, and is written whole or not at all.

A change is built, and everything of it encoded, on the thread that asks for it; `apply` runs on the writer's thread
inside a savepoint of its own. What it raises is what the caller gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from actors.adapters.store import rows
from actors.adapters.store.log_rows import check_shape, next_revision, seal
from actors.adapters.store.run_outcomes import fate_values, run_values, settled_inputs, stopped_runs
from actors.adapters.store.sqlite import removal, statements
from actors.adapters.store.sqlite.engine import sqlite3
from actors.ports import Attachment, CommandExistsError, CommandRecord, Commit, FencedError, SlugTakenError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.adapters.store.pruning import Place


class Change(Protocol):
    """Something to write."""

    def apply(self, connection: sqlite3.Connection) -> None:
        """Write it (writer's thread). Raises StoreError, or what SQLite raises."""
        ...


class Head(NamedTuple):
    """Where a stored conversation stands."""

    id: str
    epoch: int
    step: int
    last_seq: int
    log_hash: str
    slug: str


def heads(connection: sqlite3.Connection, ids: Iterable[str]) -> dict[str, Head]:
    """Where these conversations stand; those that are gone are left out."""
    return {row[0]: Head(*row) for row in connection.execute(statements.HEADS, (rows.names(ids),))}


class Part:
    """A Commit, encoded."""

    def __init__(self, commit: Commit) -> None:
        """Raises ValueError if it contradicts itself."""
        check_shape(commit)
        record = commit.record
        self.id = record.id
        self.changing = rows.changing_values(record)
        self.messages = [rows.message_values(record.id, message) for message in commit.messages]
        self.runs = [run_values(record.id, ended) for ended in stopped_runs(commit)]
        self.fates = [fate_values(record.id, settled) for settled in settled_inputs(commit)]
        self.command = None if commit.command is None else _command_values(commit, commit.command)
        self._slug = record.slug
        self._epoch = record.epoch
        self._expected_step = commit.expected_step
        self._next_revision = next_revision(commit)
        self._fixed = rows.fixed_values(record) if commit.create else None
        self._parent = record.parent_conversation_id or ""
        self._prompt = record.system_prompt if commit.create else ""
        self._log = [seal(record.id, record.epoch, entry) for entry in commit.log]

    def fits(self, head: Head) -> bool:
        """Whether it is a plain update, and what it expects is what there is."""
        return (
            self._fixed is None
            and head.step == self._expected_step
            and head.epoch <= self._epoch
            and head.last_seq + 1 == self._next_revision
            and head.slug == self._slug
        )

    def links(self, log_hash: str) -> tuple[list[rows.Row], str]:
        """The log's rows after the one with this hash, and the hash of their last."""
        linked: list[rows.Row] = []
        for sealed in self._log:
            log_hash, row = sealed.after(log_hash)
            linked.append(row)
        return linked, log_hash

    def write(self, connection: sqlite3.Connection) -> None:
        """Write it alone. Raises FencedError, or what SQLite raises."""
        log = self._create(connection, self._fixed) if self._fixed is not None else self._update(connection)
        if self.messages:
            connection.executemany(statements.INSERT_MESSAGE, self.messages)
        if log:
            connection.executemany(statements.INSERT_LOG, log)
        if self.runs:
            connection.executemany(statements.INSERT_RUN, self.runs)
        if self.fates:
            connection.executemany(statements.INSERT_FATE, self.fates)
        if self.command is not None:
            connection.execute(statements.INSERT_COMMAND, self.command)

    def _create(self, connection: sqlite3.Connection, fixed: rows.Row) -> list[rows.Row]:
        self._make_room(connection)
        log, log_hash = self.links("")
        connection.execute(statements.INSERT_CONVERSATION, (*fixed, *self.changing, self._slug, log_hash))
        if self._prompt:
            connection.execute(statements.INSERT_PROMPT, rows.prompt_values(self.id, self._prompt))
        return log

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """Remove what is left of a deleted conversation of the same id. Raises FencedError if its parent is deleted."""
        if removal.is_hidden(connection, self.id):
            removal.remove_all(connection, self.id)
        if self._parent and removal.is_hidden(connection, self._parent):
            raise FencedError(f"{self._parent} is gone")

    def _update(self, connection: sqlite3.Connection) -> list[rows.Row]:
        head = heads(connection, (self.id,)).get(self.id)
        if head is None:
            raise FencedError(f"{self.id} is gone")
        log, log_hash = self.links(head.log_hash)
        fence = (self.id, self._expected_step, self._epoch)
        updated = connection.execute(statements.UPDATE_CONVERSATION, (*self.changing, log_hash, *fence)).rowcount
        if updated != 1 or head.last_seq + 1 != self._next_revision:
            raise FencedError(
                f"{self.id} stands at step {head.step}, revision {head.last_seq}, epoch {head.epoch}; "
                f"not at step {self._expected_step}, revision {self._next_revision - 1}, epoch {self._epoch}"
            )
        if self._slug != head.slug:
            connection.execute(statements.UPDATE_SLUG, (self._slug, self.id))
        return log


def _command_values(commit: Commit, command: CommandRecord) -> rows.Row:
    conversation, principal = ("", commit.record.principal) if commit.create_command else (commit.record.id, "")
    values = (conversation, principal, command.request_id, command.body_hash, command.answer.decode(), command.at)
    return (*values, rows.digest_of(values))


class Transition:
    """The parts of one commit."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        """Raises ValueError if one contradicts itself."""
        self._parts = [Part(commit) for commit in commits]

    @property
    def only(self) -> Part | None:
        """Its part, if it is the only one."""
        return self._parts[0] if len(self._parts) == 1 else None

    def apply(self, connection: sqlite3.Connection) -> None:
        """Raises FencedError, SlugTakenError or CommandExistsError."""
        try:
            for part in self._parts:
                part.write(connection)
        except sqlite3.IntegrityError as error:
            raise _refusal(error) from error


class Deletion:
    """A conversation and its sub-agents are hidden; they are removed later. Create commands stay."""

    def __init__(self, conversation_id: str) -> None:
        self._id = conversation_id
        self.hidden: tuple[str, ...] = ()
        """The ids of what it has hidden, once it is applied."""

    def apply(self, connection: sqlite3.Connection) -> None:
        """Nothing happens if it is gone."""
        self.hidden = removal.hide(connection, self._id)


class Pruning:
    """The log begins at another place from now on; the rows before it go."""

    def __init__(self, conversation_id: str, begins: Place, *, was: Place) -> None:
        self._values = {"id": conversation_id, "from_step": was.step, **begins._asdict()}

    def apply(self, connection: sqlite3.Connection) -> None:
        """Nothing happens if the conversation is gone, or does not begin where it was thought to."""
        if connection.execute(statements.MOVE_BEGINNING, self._values).rowcount:
            connection.execute(statements.PRUNE_LOG, self._values)


class Reclaiming:
    """Free pages, given back to the file system."""

    def __init__(self, pages: int) -> None:
        self._pages = pages

    def apply(self, connection: sqlite3.Connection) -> None:
        """At most so many; a database that cannot give any back keeps them for what will be written."""
        connection.execute(f"PRAGMA incremental_vacuum({self._pages:d})").fetchall()


class NewAttachment:
    """Bytes by content hash; those that are there already stay."""

    def __init__(self, conversation_id: str, attachment: Attachment, at: int) -> None:
        values = (
            conversation_id, attachment.id, attachment.media_type, attachment.data, attachment.width,
            attachment.height, at,
        )  # fmt: skip
        self._id = conversation_id
        self._row = (*values, rows.digest_of(values))

    def apply(self, connection: sqlite3.Connection) -> None:
        """Raises FencedError if the conversation is gone."""
        if removal.is_hidden(connection, self._id):
            raise FencedError(f"{self._id} is gone")
        try:
            connection.execute(statements.INSERT_ATTACHMENT, self._row)
        except sqlite3.IntegrityError as error:
            raise _refusal(error) from error


def _refusal(error: sqlite3.IntegrityError) -> StoreError:
    """Which of the port's refusals a violated constraint is."""
    text = str(error)
    if "conversations.slug" in text:
        return SlugTakenError(text)
    if "commands." in text or "messages.id" in text:
        return CommandExistsError(text)
    return FencedError(text)
