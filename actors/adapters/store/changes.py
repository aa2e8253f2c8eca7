"""The changes that a store writes. Each belongs to one caller, and is written completely or not at all.

A change is built and encoded on the calling thread. `apply` runs on the thread that writes to the database, inside a
savepoint; exceptions that it raises are raised again in the caller. A change is refused if another server owns the
conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from peewee import fn

from actors.adapters.store import models, removal, rows
from actors.adapters.store.audit import audit_values
from actors.adapters.store.commits import (
    EncodedCommit,
    add_spendings,
    check_exists,
    insert_conversation,
    write_alone,
)
from actors.adapters.store.owners import ALIVE, FREE, not_owner, owned_head
from actors.adapters.store.query import Insert, Param, PerDatabase, Session, Statement
from actors.ports import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from actors.adapters.store.log_rows import LogPosition
    from actors.ports import Attachment, Commit, Spending
    from actors.ports.records import AuditEntry

PIECE_BYTES = 1 << 20  # of attachments that one transaction copies for a fork, unless a single one is larger
PRUNED_ENTRIES = 500  # of the audit trail that one transaction deletes at most

_ID = Param("id")
_INSERT_AUDIT = Insert(models.Audit)
_OLDEST = (
    models.Audit.select(models.Audit.id)
    .where(
        (models.Audit.at < Param("before"))
        | (models.Audit.id + Param("keep") <= models.Audit.select(fn.max(models.Audit.id)))
    )
    .order_by(models.Audit.id)
    .limit(PRUNED_ENTRIES)
)
_PRUNE_AUDIT = Statement(models.Audit.delete().where(models.Audit.id.in_(_OLDEST)))
_INSERT_ATTACHMENT = Insert(models.Attachments, action="IGNORE")
_COPIED = (
    Param("to"), *models.fields(models.Attachments)[1:6], Param("at"), Param("digest"),
)  # fmt: skip
_COPY_ATTACHMENT = Statement(
    models.Attachments.insert_from(
        models.Attachments.select(*_COPIED).where(
            models.Attachments.conversation_id == Param("origin"), models.Attachments.id == _ID
        ),
        models.fields(models.Attachments),
    )
)
_BEGINS = (models.Prunings.step, models.Prunings.revision, models.Prunings.hash)
_MAY_PRUNE = PerDatabase(
    models.Records.id == _ID, (models.Records.id == _ID) & ((Param("me") == models.OWNER) | FREE) & ALIVE
)
_MOVE_BEGINNING = Statement(
    models.Prunings.insert_from(
        models.Records.select(models.Records.id, *(Param(each.name) for each in _BEGINS)).where(_MAY_PRUNE),
        models.fields(models.Prunings),
    ).on_conflict(
        conflict_target=[models.Prunings.conversation_id],
        update={each: Param(each.name) for each in _BEGINS},
        where=models.Prunings.step == Param("from_step"),
    )
)
_PRUNE_LOG = Statement(
    models.Log.delete().where(
        models.Log.conversation_id == _ID,
        models.Log.first_revision <= Param("next_revision"),
        models.Log.step <= Param("step"),
    )
)


class Change(Protocol):
    """A change of the database, applied by the thread that writes to the database."""

    def apply(self, session: Session, /) -> None:
        """Write the change. Raises StoreError, or what the database raises."""
        ...


class Transition:
    """A change that writes one or several commits, together or not at all."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        """Encode the commits. Raises ValueError if a commit is inconsistent; see `check_shape`."""
        self._commits = [EncodedCommit(commit) for commit in commits]

    @property
    def only(self) -> EncodedCommit | None:
        """The only commit of this change, if it is to an existing conversation; otherwise None."""
        single = len(self._commits) == 1 and self._commits[0].created is None
        return self._commits[0] if single else None

    def apply(self, session: Session) -> None:
        write_alone(session, self._commits)


class UnfinishedFork:
    """A change that begins a fork whose attachments are yet to be copied; the fork stays hidden until it is complete.

    After a crash, the next start removes the rows of the unfinished fork, or another server does.
    """

    def __init__(self, commit: Commit) -> None:
        record = commit.record
        self._id, self._parent = record.id, record.parent_conversation_id
        self._origin = "" if commit.fork is None else commit.fork.origin
        self._row = (*rows.fixed_values(record), *rows.changing_values(record), None, "")

    def apply(self, session: Session) -> None:
        """Insert the hidden row of the fork. Raises FencedError if the conversation that was forked does not exist."""
        check_exists(session, self._origin)
        insert_conversation(session, self._id, self._parent, self._row)
        removal.hide_unfinished(session, self._id)


class CopiedAttachment(NamedTuple):
    """An attachment to copy from the origin of a fork; the database engine itself copies the bytes."""

    to: str
    origin: str
    id: str
    at: int  # the time of the copy, in milliseconds since 1970
    digest: str  # the digest of the new row


def copied_pieces(
    commit: Commit, attachment: Callable[[str, str], Attachment | None]
) -> Iterator[list[CopiedAttachment]]:
    """Yield the attachments that a fork copies, in lists for one transaction each; missing attachments are left out.

    Only one attachment is in memory at a time. The digests are computed here, because that takes long and would
    otherwise delay other writers. Raises what `attachment` raises.
    """
    piece, size, fork, record = list[CopiedAttachment](), 0, commit.fork, commit.record
    for attachment_id in () if fork is None else fork.attachments:
        found = None if fork is None else attachment(fork.origin, attachment_id)
        if fork is None or found is None:
            continue
        if piece and size + len(found.data) > PIECE_BYTES:
            yield piece
            piece, size = [], 0
        digest = rows.attachment_values(record.id, found, record.created_at)[-1]
        piece.append(CopiedAttachment(record.id, fork.origin, attachment_id, record.created_at, digest))
        size += len(found.data)
    if piece:
        yield piece


class AttachmentCopies:
    """A change that copies some attachments into an unfinished fork."""

    def __init__(self, piece: Sequence[CopiedAttachment]) -> None:
        self._piece = piece

    def apply(self, session: Session) -> None:
        """Copy the attachments within the database, omitting those that the forked conversation no longer has.

        Raises FencedError if another server has abandoned the fork because it considered this server dead.
        """
        if not removal.hold_unfinished(session, self._piece[0].to):
            raise FencedError(f"{self._piece[0].to} has been abandoned")
        for copied in self._piece:
            session.execute(_COPY_ATTACHMENT, **copied._asdict())


class AbandonedFork:
    """A change that abandons an unfinished fork: its rows are removed like those of a deleted conversation."""

    def __init__(self, conversation_id: str) -> None:
        self._id = conversation_id

    def apply(self, session: Session) -> None:
        """Mark the fork's rows for removal; do nothing if the fork is finished."""
        removal.abandon_unfinished(session, self._id)


class Deletion:
    """A change that hides a conversation and its sub-agents; their rows are removed later.

    The commands that created these conversations are kept, so that a repeated create command is still recognised.
    """

    def __init__(self, conversation_id: str, audit: AuditEntry | None = None) -> None:
        self._id = conversation_id
        self._audit = [] if audit is None else [audit_values(audit)]

    def apply(self, session: Session) -> None:
        """Hide the conversations and write the audit entry; do nothing if the conversation does not exist."""
        if removal.hide(session, self._id):
            session.insert(_INSERT_AUDIT, self._audit)


class Pruning:
    """A change that moves the beginning of an event log from the position `was` to `begins`, and deletes older rows."""

    def __init__(self, conversation_id: str, begins: LogPosition, *, was: LogPosition) -> None:
        self._id = conversation_id
        self._begins, self._was = begins, was

    def apply(self, session: Session) -> None:
        """Delete the rows before the new beginning of the log.

        Do nothing if the conversation is deleted, or if another pruning has already moved the beginning of its log.
        Raises NotOwnerError if another server owns the conversation.
        """
        begins = self._begins
        if session.execute(_MOVE_BEGINNING, id=self._id, from_step=self._was.step, **begins._asdict()).rowcount == 1:
            session.execute(_PRUNE_LOG, id=self._id, next_revision=begins.revision + 1, step=begins.step)
        elif session.shared and (error := not_owner(session, self._id)).owner is not None:
            raise error


class NewAttachment:
    """A change that stores an attachment under its content hash, unless one with that hash exists."""

    def __init__(self, conversation_id: str, attachment: Attachment, at: int) -> None:
        self._id = conversation_id
        self._row = rows.attachment_values(conversation_id, attachment, at)

    def apply(self, session: Session) -> None:
        """Insert the attachment. Raises FencedError if the conversation does not exist, and NotOwnerError."""
        owned_head(session, self._id)
        session.insert(_INSERT_ATTACHMENT, [self._row])


class NewSpending:
    """A change that adds tokens and costs to what a principal has spent on a day."""

    def __init__(self, spending: Spending) -> None:
        self._spending = spending

    def apply(self, session: Session) -> None:
        add_spendings(session, [self._spending])


class AuditEntries:
    """A change that adds those entries to the audit trail that no conversation's event log contains."""

    def __init__(self, entries: Iterable[AuditEntry]) -> None:
        self._rows = list(map(audit_values, entries))

    def apply(self, session: Session) -> None:
        session.insert(_INSERT_AUDIT, self._rows)


class AuditPruning:
    """A change that deletes the oldest entries of the table `audit` (the audit entries that are in no event log)."""

    def __init__(self, before: int, keep: int) -> None:
        self._before, self._keep = before, keep
        self.deleted = 0  # the number of deleted entries; 0 until the change is applied

    def apply(self, session: Session) -> None:
        """Delete at most PRUNED_ENTRIES of the entries older than `before` or not among the latest `keep`."""
        self.deleted = session.execute(_PRUNE_AUDIT, before=self._before, keep=self._keep).rowcount
