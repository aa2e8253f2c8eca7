"""The changes that the SQLite store writes. Each belongs to one caller, and is written completely or not at all.

A change is built and encoded on the calling thread. `apply` runs on the thread that writes to the database, inside a
savepoint; exceptions that it raises are raised again in the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from actors.adapters.store import rows
from actors.adapters.store.audit_rows import audit_values
from actors.adapters.store.sql import write_statements
from actors.adapters.store.sql.commit_rows import CopiedAttachment, EncodedCommit, Head, attachment_row
from actors.adapters.store.sqlite import removal, statements
from actors.adapters.store.sqlite.engine import sqlite3
from actors.ports import (
    Attachment,
    CommandExistsError,
    Commit,
    FencedError,
    ForkedHistory,
    SlugTakenError,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors.adapters.store.pruning import LogPosition
    from actors.ports.store.audit import AuditEntry


class Change(Protocol):
    """A change of the database, applied by the thread that writes to the database."""

    def apply(self, connection: sqlite3.Connection, /) -> None:
        """Write the change.

        Runs on the thread that writes to the database. Raises StoreError, or what SQLite raises.
        """
        ...


def heads(connection: sqlite3.Connection, ids: Iterable[str]) -> dict[str, Head]:
    """Return the current positions (heads) of those conversations in `ids` that exist, by id."""
    found = msgspec.json.decode(connection.execute(statements.HEADS, (rows.names(ids),)).fetchone()[0])
    return {head[0]: Head(*head) for head in found}


class CommitPart(EncodedCommit):
    """An encoded commit; `write` writes it alone, if it was not written in a batch with others."""

    def write(self, connection: sqlite3.Connection) -> None:
        """Write this commit alone, with its own SQL statements. Raises FencedError, or what SQLite raises."""
        log = self._create(connection, self.fixed) if self.fixed is not None else self._update(connection)
        if self.profile is not None:
            connection.execute(statements.PUT_PROFILE, self.profile)
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
        if self.spending is not None:
            connection.execute(write_statements.ADD_SPENDING, self.spending)

    def _create(self, connection: sqlite3.Connection, fixed: rows.Row) -> list[rows.Row]:
        log, log_hash = self.links("")
        if self.prepared:
            if not removal.show_unfinished(connection, self.id):
                raise FencedError(f"{self.id} has been abandoned")
            connection.execute(statements.FINISH_CONVERSATION, (self.slug, log_hash, self.id))
        else:
            self._make_room(connection)
            connection.execute(statements.INSERT_CONVERSATION, (*fixed, *self.changing, self.slug, log_hash))
        if self.prompt:
            connection.execute(statements.INSERT_PROMPT, rows.prompt_values(self.id, self.prompt))
        if self.fork is not None:
            self._begin_fork(connection, self.fork)
        return log

    def _begin_fork(self, connection: sqlite3.Connection, fork: ForkedHistory) -> None:
        """Store the revision after which the fork's event log begins.

        Raises FencedError if the conversation that was forked does not exist.
        """
        _check_exists(connection, fork.origin)
        connection.execute(write_statements.BEGIN_AFTER, (self.id, fork.revision))

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """Remove what is left of a deleted conversation that had the id of the new one.

        Raises FencedError if the parent of the new conversation is deleted.
        """
        if removal.is_hidden(connection, self.id):
            removal.remove_all(connection, self.id)
        if self.parent and removal.is_hidden(connection, self.parent):
            raise FencedError(f"{self.parent} does not exist")

    def _update(self, connection: sqlite3.Connection) -> list[rows.Row]:
        head = heads(connection, (self.id,)).get(self.id)
        if head is None:
            raise FencedError(f"{self.id} does not exist")
        log, log_hash = self.links(head.log_hash)
        fence = (self.id, self.expected_step, self.epoch)
        updated = connection.execute(statements.UPDATE_CONVERSATION, (*self.changing, log_hash, *fence)).rowcount
        if updated != 1 or head.last_seq + 1 != self.next_revision:
            raise self.misfit(head)
        if self.slug != head.slug:
            connection.execute(write_statements.UPDATE_SLUG, (self.slug, self.id))
        return log


class Transition:
    """A change that writes one or several commits, together or not at all."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        """Encode the commits. Raises ValueError if a commit is inconsistent; see `check_shape`."""
        self._parts = [CommitPart(commit) for commit in commits]

    @property
    def only(self) -> CommitPart | None:
        """The only commit of this change; None if there are several."""
        return self._parts[0] if len(self._parts) == 1 else None

    def apply(self, connection: sqlite3.Connection) -> None:
        """Write all commits. Raises FencedError, SlugTakenError or CommandExistsError, or what SQLite raises."""
        try:
            for part in self._parts:
                part.write(connection)
        except sqlite3.IntegrityError as error:
            raise _refusal(error) from error


class UnfinishedFork:
    """A change that begins a fork whose attachments are yet to be copied; the fork stays hidden until it is complete.

    After a crash, the next start removes the rows of the unfinished fork.
    """

    def __init__(self, commit: Commit) -> None:
        record, fork = commit.record, commit.fork
        self._id, self._origin = record.id, "" if fork is None else fork.origin
        self._row = (*rows.fixed_values(record), *rows.changing_values(record), "", "")

    def apply(self, connection: sqlite3.Connection) -> None:
        """Remove the rows of an earlier attempt to create the fork, and insert its hidden row.

        Raises FencedError if the conversation that was forked does not exist, or if a conversation with the fork's id
        exists.
        """
        _check_exists(connection, self._origin)
        if removal.is_hidden(connection, self._id):
            removal.remove_all(connection, self._id)
        try:
            connection.execute(statements.INSERT_CONVERSATION, self._row)
        except sqlite3.IntegrityError as error:
            raise _refusal(error) from error
        removal.hide_unfinished(connection, self._id)


class AttachmentCopies:
    """A change that copies some attachments into an unfinished fork."""

    def __init__(self, piece: Sequence[CopiedAttachment]) -> None:
        self._piece = piece

    def apply(self, connection: sqlite3.Connection) -> None:
        """Copy the attachments within the database, omitting those that the forked conversation no longer has."""
        for copied in self._piece:
            connection.execute(write_statements.COPY_ATTACHMENT, copied._asdict())


class AbandonedFork:
    """A change that abandons an unfinished fork: its rows are removed like those of a deleted conversation."""

    def __init__(self, conversation_id: str) -> None:
        self._id = conversation_id
        self.hidden: tuple[str, ...] = ()
        """The fork's id once the change is applied; () before, and if the fork was finished or does not exist."""

    def apply(self, connection: sqlite3.Connection) -> None:
        """Mark the fork's rows for removal; do nothing if the fork is finished."""
        if removal.abandon_unfinished(connection, self._id):
            self.hidden = (self._id,)


class Deletion:
    """A change that hides a conversation and its sub-agents; their rows are removed later.

    The commands that created these conversations are kept, so that a repeated create command is still recognised.
    """

    def __init__(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        self._id = conversation_id
        self._audit = None if audit is None else audit_values(audit)
        self.hidden: tuple[str, ...] = ()
        """The ids of the hidden conversations once the change is applied; () before."""

    def apply(self, connection: sqlite3.Connection) -> None:
        """Hide the conversations and write the audit entry; do nothing if the conversation does not exist."""
        self.hidden = removal.hide(connection, self._id)
        if self.hidden and self._audit is not None:
            connection.execute(write_statements.INSERT_AUDIT, self._audit)


class Pruning:
    """A change that moves the beginning of an event log from the position `was` to `begins`, and deletes older rows."""

    def __init__(self, conversation_id: str, begins: LogPosition, *, was: LogPosition) -> None:
        self._values = {"id": conversation_id, "from_step": was.step, **begins._asdict()}

    def apply(self, connection: sqlite3.Connection) -> None:
        """Delete the rows before the new beginning of the log.

        Do nothing if the conversation is deleted, or if another pruning has already moved the beginning of its log.
        """
        if connection.execute(statements.MOVE_BEGINNING, self._values).rowcount:
            connection.execute(write_statements.PRUNE_LOG, self._values)


class Compaction:
    """A change that gives free pages of the database file back to the file system."""

    def __init__(self, pages: int) -> None:
        self._pages = pages

    def apply(self, connection: sqlite3.Connection) -> None:
        """Give at most `pages` free pages back to the file system.

        Do nothing if the file was created without SQLite's mode for incremental vacuum.
        """
        connection.execute(f"PRAGMA incremental_vacuum({self._pages:d})").fetchall()


class NewAttachment:
    """A change that stores an attachment under its content hash, unless one with that hash exists."""

    def __init__(self, conversation_id: str, attachment: Attachment, at: int) -> None:
        self._id = conversation_id
        self._row = attachment_row(conversation_id, attachment, at)

    def apply(self, connection: sqlite3.Connection) -> None:
        """Insert the attachment. Raises FencedError if the conversation does not exist."""
        if removal.is_hidden(connection, self._id):
            raise FencedError(f"{self._id} does not exist")
        try:
            connection.execute(statements.INSERT_ATTACHMENT, self._row)
        except sqlite3.IntegrityError as error:
            raise _refusal(error) from error


def _refusal(error: sqlite3.IntegrityError) -> StoreError:
    text = str(error)
    if "conversations.slug" in text:
        return SlugTakenError(text)
    if "commands." in text or "messages.id" in text:
        return CommandExistsError(text)
    return FencedError(text)


def _check_exists(connection: sqlite3.Connection, conversation_id: str) -> None:
    if removal.is_hidden(connection, conversation_id) or not heads(connection, (conversation_id,)):
        raise FencedError(f"{conversation_id} does not exist")
