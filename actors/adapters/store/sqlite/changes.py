"""The changes that the writer applies; each belongs to one caller and is written completely or not at all.

A change is built and encoded on the calling thread; `apply` runs on the writer's thread inside a savepoint. Exceptions
of `apply` are raised in the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from actors.adapters.store import rows
from actors.adapters.store.audit_rows import audit_values
from actors.adapters.store.log_rows import check_shape, next_revision, seal
from actors.adapters.store.run_outcomes import fate_values, run_values, settled_inputs, stopped_runs
from actors.adapters.store.sqlite import removal, statements
from actors.adapters.store.sqlite.engine import sqlite3
from actors.core.profile import Profile
from actors.ports import (
    Attachment,
    CommandExistsError,
    CommandRecord,
    Commit,
    FencedError,
    ForkedHistory,
    SlugTakenError,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from actors.adapters.store.pruning import Place
    from actors.ports.store.audit import AuditEntry

PRUNED_ENTRIES = 500
"""Maximum entries of the audit trail that are deleted in one transaction."""


class Change(Protocol):
    """A unit of work for the writer."""

    def apply(self, connection: sqlite3.Connection) -> None:
        """Write the change (writer's thread). Raises StoreError, or what SQLite raises."""
        ...


class Head(NamedTuple):
    """The current position of a stored conversation."""

    id: str
    epoch: int
    step: int
    last_seq: int
    log_hash: str
    slug: str


def heads(connection: sqlite3.Connection, ids: Iterable[str]) -> dict[str, Head]:
    """Return the heads of these conversations; missing ones are omitted."""
    return {row[0]: Head(*row) for row in connection.execute(statements.HEADS, (rows.names(ids),))}


class CopiedAttachment(NamedTuple):
    """An attachment that a fork copies from its origin; the bytes are copied by the database engine."""

    to: str
    origin: str
    id: str
    at: int
    """When it is copied, in milliseconds since the epoch."""
    digest: str
    """The digest of the new row."""


def copied_attachment(to: str, origin: str, attachment: Attachment, at: int) -> CopiedAttachment:
    """Return the copy of an attachment, whose digest takes long to compute: not on the writer's thread."""
    return CopiedAttachment(to, origin, attachment.id, at, _attachment_row(to, attachment, at)[-1])


class Part:
    """An encoded Commit."""

    def __init__(self, commit: Commit, attachments: Sequence[CopiedAttachment] = ()) -> None:
        """Encode the commit; `attachments` are those that a fork copies. Raises ValueError if it contradicts itself."""
        check_shape(commit)
        record = commit.record
        self.id = record.id
        self.changing = rows.changing_values(record)
        self.messages = [rows.message_values(record.id, message) for message in commit.messages]
        self._fork, self._attachments = commit.fork, attachments
        runs = (*commit.fork.runs, *stopped_runs(commit)) if commit.fork else stopped_runs(commit)
        self.runs = [run_values(record.id, ended) for ended in runs]
        self.fates = [fate_values(record.id, settled) for settled in settled_inputs(commit)]
        self.command = None if commit.command is None else _command_values(commit, commit.command)
        self.spending = None if commit.spending is None else msgspec.structs.astuple(commit.spending)
        self._slug = record.slug
        self._epoch = record.epoch
        self._expected_step = commit.expected_step
        self._next_revision = next_revision(commit)
        self._fixed = rows.fixed_values(record) if commit.create else None
        self._parent = record.parent_conversation_id or ""
        self._prompt = record.system_prompt if commit.create else ""
        chosen = record.profile != Profile() if commit.create else commit.profile_changed
        self._profile = rows.profile_values(record.id, record.profile) if chosen else None
        self._log = [seal(record.id, record.epoch, entry) for entry in commit.log]

    def fits(self, head: Head) -> bool:
        """Return whether this is a plain update whose expectations match the stored head."""
        return (
            self._fixed is None
            and self._profile is None
            and head.step == self._expected_step
            and head.epoch <= self._epoch
            and head.last_seq + 1 == self._next_revision
            and head.slug == self._slug
        )

    def links(self, log_hash: str) -> tuple[list[rows.Row], str]:
        """Return the log's rows chained after `log_hash`, and the hash of the last one."""
        linked: list[rows.Row] = []
        for sealed in self._log:
            log_hash, row = sealed.after(log_hash)
            linked.append(row)
        return linked, log_hash

    def write(self, connection: sqlite3.Connection) -> None:
        """Execute the statements of this commit alone. Raises FencedError, or what SQLite raises."""
        log = self._create(connection, self._fixed) if self._fixed is not None else self._update(connection)
        if self._profile is not None:
            connection.execute(statements.PUT_PROFILE, self._profile)
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
            connection.execute(statements.ADD_SPENDING, self.spending)

    def _create(self, connection: sqlite3.Connection, fixed: rows.Row) -> list[rows.Row]:
        self._make_room(connection)
        log, log_hash = self.links("")
        connection.execute(statements.INSERT_CONVERSATION, (*fixed, *self.changing, self._slug, log_hash))
        if self._prompt:
            connection.execute(statements.INSERT_PROMPT, rows.prompt_values(self.id, self._prompt))
        if self._fork is not None:
            self._begin_fork(connection, self._fork)
        return log

    def _begin_fork(self, connection: sqlite3.Connection, fork: ForkedHistory) -> None:
        """Place the beginning of the log and copy the attachments. Raises FencedError without the origin."""
        if removal.is_hidden(connection, fork.origin) or not heads(connection, (fork.origin,)):
            raise FencedError(f"{fork.origin} does not exist")
        connection.execute(statements.BEGIN_AFTER, (self.id, fork.revision))
        for attachment in self._attachments:
            connection.execute(statements.COPY_ATTACHMENT, attachment._asdict())

    def _make_room(self, connection: sqlite3.Connection) -> None:
        """Remove remaining rows of a deleted conversation with this id. Raises FencedError if its parent is deleted."""
        if removal.is_hidden(connection, self.id):
            removal.remove_all(connection, self.id)
        if self._parent and removal.is_hidden(connection, self._parent):
            raise FencedError(f"{self._parent} does not exist")

    def _update(self, connection: sqlite3.Connection) -> list[rows.Row]:
        head = heads(connection, (self.id,)).get(self.id)
        if head is None:
            raise FencedError(f"{self.id} does not exist")
        log, log_hash = self.links(head.log_hash)
        fence = (self.id, self._expected_step, self._epoch)
        updated = connection.execute(statements.UPDATE_CONVERSATION, (*self.changing, log_hash, *fence)).rowcount
        if updated != 1 or head.last_seq + 1 != self._next_revision:
            raise FencedError(
                f"{self.id} is at step {head.step}, revision {head.last_seq}, epoch {head.epoch}; "
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
    """All parts of one commit."""

    def __init__(self, commits: Iterable[Commit], copied: Mapping[str, Sequence[CopiedAttachment]]) -> None:
        """Encode the commits; `copied` are the attachments of new forks by id. Raises ValueError as `Part` does."""
        self._parts = [Part(commit, copied.get(commit.record.id, ())) for commit in commits]

    @property
    def only(self) -> Part | None:
        """Return the only part; None if there are several."""
        return self._parts[0] if len(self._parts) == 1 else None

    def apply(self, connection: sqlite3.Connection) -> None:
        """Write all parts. Raises FencedError, SlugTakenError or CommandExistsError."""
        try:
            for part in self._parts:
                part.write(connection)
        except sqlite3.IntegrityError as error:
            raise _refusal(error) from error


class Deletion:
    """Hide a conversation and its sub-agents; their rows are removed later.

    Create commands are kept, for idempotency.
    """

    def __init__(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        self._id = conversation_id
        self._audit = None if audit is None else audit_values(audit)
        self.hidden: tuple[str, ...] = ()
        """The ids that were hidden, once applied."""

    def apply(self, connection: sqlite3.Connection) -> None:
        """Hide the conversations; do nothing if they do not exist."""
        self.hidden = removal.hide(connection, self._id)
        if self.hidden and self._audit is not None:
            connection.execute(statements.INSERT_AUDIT, self._audit)


class Pruning:
    """Move the beginning of a log and delete the rows before it."""

    def __init__(self, conversation_id: str, begins: Place, *, was: Place) -> None:
        self._values = {"id": conversation_id, "from_step": was.step, **begins._asdict()}

    def apply(self, connection: sqlite3.Connection) -> None:
        """Prune; do nothing if the conversation is deleted or its log does not begin where expected."""
        if connection.execute(statements.MOVE_BEGINNING, self._values).rowcount:
            connection.execute(statements.PRUNE_LOG, self._values)


class AuditEntries:
    """Add entries to the audit trail that are in no log."""

    def __init__(self, entries: Iterable[AuditEntry]) -> None:
        self._rows = list(map(audit_values, entries))

    def apply(self, connection: sqlite3.Connection) -> None:
        """Insert the rows."""
        connection.executemany(statements.INSERT_AUDIT, self._rows)


class AuditPruning:
    """Delete the oldest entries of the audit trail that are in no log."""

    def __init__(self, before: int, keep: int) -> None:
        self._values = {"before": before, "keep": keep, "limit": PRUNED_ENTRIES}
        self.deleted = 0
        """How many were deleted, once applied."""

    def apply(self, connection: sqlite3.Connection) -> None:
        """Delete at most PRUNED_ENTRIES of them."""
        self.deleted = connection.execute(statements.PRUNE_AUDIT, self._values).rowcount


class Compaction:
    """A change that returns free pages to the file system."""

    def __init__(self, pages: int) -> None:
        self._pages = pages

    def apply(self, connection: sqlite3.Connection) -> None:
        """Return at most `pages` free pages to the file system; does nothing without incremental vacuum."""
        connection.execute(f"PRAGMA incremental_vacuum({self._pages:d})").fetchall()


class NewAttachment:
    """Store bytes under their content hash; existing ones are kept."""

    def __init__(self, conversation_id: str, attachment: Attachment, at: int) -> None:
        self._id = conversation_id
        self._row = _attachment_row(conversation_id, attachment, at)

    def apply(self, connection: sqlite3.Connection) -> None:
        """Insert the attachment. Raises FencedError if the conversation is deleted."""
        if removal.is_hidden(connection, self._id):
            raise FencedError(f"{self._id} does not exist")
        try:
            connection.execute(statements.INSERT_ATTACHMENT, self._row)
        except sqlite3.IntegrityError as error:
            raise _refusal(error) from error


def _attachment_row(conversation_id: str, attachment: Attachment, at: int) -> rows.Row:
    """Return the values of the columns ATTACHMENT."""
    values = (
        conversation_id, attachment.id, attachment.media_type, attachment.data, attachment.width, attachment.height, at,
    )  # fmt: skip
    return (*values, rows.digest_of(values))


def _refusal(error: sqlite3.IntegrityError) -> StoreError:
    """Map a violated constraint to an exception of the port."""
    text = str(error)
    if "conversations.slug" in text:
        return SlugTakenError(text)
    if "commands." in text or "messages.id" in text:
        return CommandExistsError(text)
    return FencedError(text)
