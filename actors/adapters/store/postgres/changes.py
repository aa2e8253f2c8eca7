"""The changes that the PostgreSQL store writes. Each belongs to one caller, and is written completely or not at all.

A change is built and encoded on the calling thread. `apply` runs on the thread that writes to the database, inside a
savepoint; exceptions that it raises are raised again in the caller. `me` is the number of the server that makes the
change. A change is refused if that server does not own the conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import psycopg

from actors.adapters.store import rows
from actors.adapters.store.audit_rows import audit_values
from actors.adapters.store.postgres import removal, statements
from actors.adapters.store.postgres.owner_sql import ALIVE, is_mine, not_owner
from actors.adapters.store.rows import ATTACHMENT, COMMAND, MESSAGE
from actors.adapters.store.run_outcomes import FATE, RUN
from actors.adapters.store.sql import write_statements
from actors.adapters.store.sql.commit_rows import CopiedAttachment, EncodedCommit, Head, attachment_row
from actors.adapters.store.sql.queries import NOT_DELETED
from actors.ports import CommandExistsError, Commit, FencedError, SlugTakenError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors.adapters.store.postgres.engine import PostgresConnection
    from actors.adapters.store.pruning import LogPosition
    from actors.adapters.store.sql.dialect import Connection
    from actors.ports import Attachment, ForkedHistory
    from actors.ports.store.audit import AuditEntry

_PARENT = f"SELECT family FROM conversations WHERE id = ? AND {NOT_DELETED}"  # noqa: S608
_TOP = f"SELECT owner = :me AND {ALIVE} FROM conversations WHERE id = :family FOR SHARE OF conversations"  # noqa: S608


class Change(Protocol):
    """One change of the database, which the thread that writes to the database applies."""

    def apply(self, session: PostgresConnection, /) -> None:
        """Write the change. Runs on the thread that writes to the database. Raises StoreError or psycopg.Error."""
        ...


def heads(connection: Connection, ids: Iterable[str]) -> dict[str, Head]:
    """Return the current positions (heads) of those conversations in `ids` that exist, by id."""
    return {row[0]: Head(*row) for row in connection.execute(statements.HEADS, (list(ids),))}


def filled(columns: Sequence[str], row: Iterable[object], nullable: frozenset[str]) -> dict[str, object]:
    """Return a row as a dictionary by column name, in which None replaces "" in the columns `nullable`."""
    return {name: None if value == "" and name in nullable else value for name, value in zip(columns, row, strict=True)}


class CommitPart(EncodedCommit):
    """An encoded commit, which a batch statement writes together with others, or `write` with statements of its own."""

    def __init__(self, commit: Commit, me: int) -> None:
        """Encode the commit. Raises ValueError if the commit is inconsistent; see `check_shape`."""
        super().__init__(commit)
        self.me = me
        self.step, self.last_revision = commit.record.step, commit.record.last_seq
        self._forked_from = commit.record.profile.forked_from
        audits = (entry.audit for entry in commit.log)
        self._principals = [audit.origin.principal if audit and audit.origin else "" for audit in audits]

    def logged(self, log_hash: str) -> tuple[list[rows.Row], str]:
        """Return the rows of the event log with the columns LOGGED, and the hash of the last row.

        `log_hash` is the hash of the stored row that precedes them.
        """
        linked, last = self.links(log_hash)
        return [(*row, principal) for row, principal in zip(linked, self._principals, strict=True)], last

    def change(self, head: Head, log_hash: str) -> dict[str, object]:
        """Return the values of the columns CHANGED for a conversation whose latest position is `head`."""
        expected = (self.expected_step, self.next_revision - 1, head.log_hash)
        return filled(statements.CHANGED, (self.id, *self.changing, log_hash, *expected), statements.NULLABLE)

    def head_after(self, log_hash: str) -> Head:
        """Return the position (head) of the conversation after this commit."""
        return Head(self.id, self.epoch, self.step, self.last_revision, log_hash, self.slug)

    def write(self, session: PostgresConnection) -> None:
        """Write this commit with statements of its own. Raises StoreError or psycopg.Error."""
        log = self._create(session, self.fixed) if self.fixed is not None else self._update(session)
        if self.profile is not None:
            session.execute(statements.PUT_PROFILE, (*self.profile, self._forked_from))
        for statement, columns, many in (
            (statements.INSERT_MESSAGE, MESSAGE, self.messages),
            (statements.INSERT_LOG, statements.LOGGED, log),
            (statements.INSERT_RUN, RUN, self.runs),
            (statements.INSERT_FATE, FATE, self.fates),
        ):
            if many:
                nullable = [filled(columns, row, statements.NULLABLE) for row in many]
                session.executemany(statement, [tuple(row.values()) for row in nullable])
        if self.command is not None:
            command = filled(COMMAND, self.command, statements.NULLABLE_OF_COMMAND)
            session.execute(statements.INSERT_COMMAND, tuple(command.values()))
        if self.spending is not None:
            session.execute(write_statements.ADD_SPENDING, self.spending)

    def _create(self, session: PostgresConnection, fixed: rows.Row) -> list[rows.Row]:
        if not self.prepared:
            removal.remove_all(session, self.id)
        family = self._family(session)
        log, log_hash = self.logged("")
        created = filled(statements.CREATED, (*fixed, *self.changing, self.slug, log_hash), statements.NULLABLE)
        values = {**created, "family": family, "me": self.me}
        if session.execute(statements.INSERT_CONVERSATION, values).rowcount != 1:
            raise not_owner(session, self.id, self.me)
        if self.prepared and not removal.show_unfinished(session, self.id, self.me):
            raise FencedError(f"{self.id} has been abandoned")
        if self.prompt:
            session.execute(statements.INSERT_PROMPT, rows.prompt_values(self.id, self.prompt))
        if self.fork is not None:
            self._begin_fork(session, self.fork)
        return log

    def _family(self, session: PostgresConnection) -> str:
        """Return the id of the top-level conversation above this one, and lock its row until the transaction ends.

        The lock keeps other servers from taking over that conversation before the sub-agent is added. Raises
        FencedError if the parent does not exist, NotOwnerError if this server does not own the top-level conversation.
        """
        if not self.parent:
            return self.id
        found = session.execute(_PARENT, (self.parent,)).fetchone()
        if found is None:
            raise FencedError(f"{self.parent} does not exist")
        top = session.execute(_TOP, {"family": found[0], "me": self.me}).fetchone()
        if top is None or not top[0]:
            raise not_owner(session, found[0], self.me)
        return str(found[0])

    def _begin_fork(self, session: PostgresConnection, fork: ForkedHistory) -> None:
        """Store the revision after which the event log of the fork begins.

        Raises FencedError if the conversation from which it is forked does not exist.
        """
        _check_exists(session, fork.origin)
        session.execute(write_statements.BEGIN_AFTER, (self.id, fork.revision))

    def _update(self, session: PostgresConnection) -> list[rows.Row]:
        check_owned(session, self.id, self.me)
        head = heads(session, (self.id,))[self.id]
        log, log_hash = self.logged(head.log_hash)
        values = {**self.change(head, log_hash), "me": self.me}
        if session.execute(statements.UPDATE_CONVERSATION, values).rowcount != 1:
            check_owned(session, self.id, self.me)
            raise self.misfit(heads(session, (self.id,)).get(self.id, head))
        if self.slug != head.slug:
            session.execute(write_statements.UPDATE_SLUG, (self.slug, self.id))
        return log


def check_owned(connection: Connection, conversation_id: str, me: int) -> None:
    """Raise FencedError if a conversation does not exist, NotOwnerError if the server `me` does not own it."""
    mine = is_mine(connection, conversation_id, me)
    if mine is None:
        raise FencedError(f"{conversation_id} does not exist")
    if not mine:
        raise not_owner(connection, conversation_id, me)


def _check_exists(session: PostgresConnection, conversation_id: str) -> None:
    if session.execute(_PARENT, (conversation_id,)).fetchone() is None:
        raise FencedError(f"{conversation_id} does not exist")


class Transition:
    """A change that writes one or several commits, together or not at all."""

    def __init__(self, commits: Iterable[Commit], me: int) -> None:
        """Encode the commits. Raises ValueError if a commit is inconsistent; see `check_shape`."""
        self.parts = [CommitPart(commit, me) for commit in commits]

    @property
    def only(self) -> CommitPart | None:
        """The only commit of this change; None if there are several."""
        return self.parts[0] if len(self.parts) == 1 else None

    def apply(self, session: PostgresConnection) -> None:
        """Write all commits. Raises FencedError, NotOwnerError, SlugTakenError, CommandExistsError or psycopg.Error."""
        try:
            for part in self.parts:
                part.write(session)
        except psycopg.errors.IntegrityError as error:
            raise _refusal(error) from error


class UnfinishedFork:
    """A change that begins a fork with copied attachments. The fork stays hidden until all of them are copied.

    If this server crashes before that, the hidden fork is removed once this server has been declared dead.
    """

    def __init__(self, commit: Commit, me: int) -> None:
        self._id, self._origin = commit.record.id, "" if commit.fork is None else commit.fork.origin
        self._me = me

    def apply(self, session: PostgresConnection) -> None:
        """Record the fork as unfinished, and remove the rows of an earlier unfinished fork with the same id.

        Raises FencedError if the conversation from which it is forked does not exist.
        """
        _check_exists(session, self._origin)
        removal.remove_all(session, self._id)
        removal.hide_unfinished(session, self._id, self._me)


class AttachmentCopies:
    """A change that copies some attachments into an unfinished fork."""

    def __init__(self, piece: Sequence[CopiedAttachment], me: int) -> None:
        self._piece = piece
        self._me = me

    def apply(self, session: PostgresConnection) -> None:
        """Copy the attachments within the database, omitting those that the origin no longer has.

        Raises FencedError if another server has removed the fork because it considered this server dead.
        """
        if not removal.hold_unfinished(session, self._piece[0].to, self._me):
            raise FencedError(f"{self._piece[0].to} has been abandoned")
        for copied in self._piece:
            session.execute(write_statements.COPY_ATTACHMENT, copied._asdict())


class AbandonedFork:
    """A change that abandons an unfinished fork: its rows are removed like those of a deleted conversation."""

    def __init__(self, conversation_id: str, me: int) -> None:
        self._id = conversation_id
        self._me = me

    def apply(self, session: PostgresConnection) -> None:
        """Mark the fork's rows for removal; do nothing if the fork is finished."""
        removal.abandon_unfinished(session, self._id, self._me)


class Deletion:
    """A change that hides a conversation and its sub-agents; their rows are removed later.

    The commands that created these conversations are kept, so that a repeated create command is still recognised.
    """

    def __init__(self, conversation_id: str, me: int, audit: AuditEntry | None = None) -> None:
        self._id = conversation_id
        self._me = me
        self._audit = None if audit is None else audit_values(audit)

    def apply(self, session: PostgresConnection) -> None:
        """Hide the conversations and write the audit entry; do nothing if the conversation does not exist.

        Raises NotOwnerError if this server does not own the conversation.
        """
        if removal.hide(session, self._id, self._me) and self._audit is not None:
            session.execute(write_statements.INSERT_AUDIT, self._audit)


class Pruning:
    """A change that moves the beginning of an event log from `was` to `begins`, and deletes the rows in between."""

    def __init__(self, conversation_id: str, me: int, begins: LogPosition, *, was: LogPosition) -> None:
        self._id = conversation_id
        self._me = me
        self._values = {"id": conversation_id, "me": me, "from_step": was.step, **begins._asdict()}

    def apply(self, session: PostgresConnection) -> None:
        """Store the new beginning of the event log, and delete the rows before it.

        Does nothing if the conversation is deleted, or if the stored beginning of its log is not the expected one.
        Raises NotOwnerError if another server owns the conversation.
        """
        if session.execute(statements.MOVE_BEGINNING, self._values).rowcount:
            session.execute(write_statements.PRUNE_LOG, self._values)
            return
        error = not_owner(session, self._id, self._me)
        if error.owner is not None:
            raise error


class NewAttachment:
    """A change that stores an attachment under its content hash, unless one with that hash exists."""

    def __init__(self, conversation_id: str, me: int, attachment: Attachment, at: int) -> None:
        self._id = conversation_id
        self._me = me
        self._values = dict(zip(ATTACHMENT, attachment_row(conversation_id, attachment, at), strict=True))

    def apply(self, session: PostgresConnection) -> None:
        """Insert the attachment.

        Raises FencedError if the conversation does not exist, NotOwnerError if this server does not own it.
        """
        check_owned(session, self._id, self._me)
        session.execute(statements.INSERT_ATTACHMENT, {**self._values, "me": self._me})


def _refusal(error: psycopg.errors.IntegrityError) -> StoreError:
    constraint = error.diag.constraint_name or ""
    text = f"{constraint}: {error.diag.message_primary}"
    if constraint == "conversations_slug":
        return SlugTakenError(text)
    if constraint.startswith("commands_") or constraint == "messages_pkey":
        return CommandExistsError(text)
    return FencedError(text)
