"""Converts a commit to database rows.

The caller's thread encodes the rows; the thread that writes to the database adds the hashes of the event log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from actors.adapters.store import rows
from actors.adapters.store.log_rows import check_shape, next_revision, seal
from actors.adapters.store.run_outcomes import fate_values, run_values, settled_inputs, stopped_runs
from actors.core.profile import Profile
from actors.ports import FencedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from actors.ports import Attachment, CommandRecord, Commit

PIECE_BYTES = 1 << 20
"""Maximum bytes of attachments that one transaction copies for a fork, unless a single attachment is larger."""


class Head(NamedTuple):
    """The step, revision and hash at which a stored conversation is now; its next commit must continue from there."""

    id: str
    epoch: int
    step: int
    last_seq: int
    log_hash: str
    slug: str


class CopiedAttachment(NamedTuple):
    """An attachment to copy from the origin of a fork; the database engine itself copies the bytes."""

    to: str
    origin: str
    id: str
    at: int
    """The time of the copy, in milliseconds since 1970."""
    digest: str
    """The digest of the new row."""


def is_prepared(commit: Commit) -> bool:
    """Return whether the commit creates a fork with attachments, which are copied in earlier transactions."""
    return commit.fork is not None and bool(commit.fork.attachments)


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
        digest = attachment_row(record.id, found, record.created_at)[-1]
        piece.append(CopiedAttachment(record.id, fork.origin, attachment_id, record.created_at, digest))
        size += len(found.data)
    if piece:
        yield piece


class EncodedCommit:
    """The rows of a commit, except for the hashes of its rows of the event log."""

    def __init__(self, commit: Commit) -> None:
        """Encode the commit. Raises ValueError if the commit is inconsistent; see `check_shape`."""
        check_shape(commit)
        record = commit.record
        self.id = record.id
        self.changing = rows.changing_values(record)
        self.messages = [rows.message_values(record.id, message) for message in commit.messages]
        self.fork = commit.fork
        self.prepared = is_prepared(commit)
        runs = (*commit.fork.runs, *stopped_runs(commit)) if commit.fork else stopped_runs(commit)
        self.runs = [run_values(record.id, ended) for ended in runs]
        self.fates = [fate_values(record.id, settled) for settled in settled_inputs(commit)]
        self.command = None if commit.command is None else _command_values(commit, commit.command)
        self.spending = None if commit.spending is None else msgspec.structs.astuple(commit.spending)
        self.slug = record.slug
        self.epoch = record.epoch
        self.expected_step = commit.expected_step
        self.next_revision = next_revision(commit)
        self.fixed = rows.fixed_values(record) if commit.create else None
        """Values of the columns FIXED for a new conversation; None for an existing one."""
        self.parent = record.parent_conversation_id or ""
        self.prompt = record.system_prompt if commit.create else ""
        chosen = record.profile != Profile() if commit.create else commit.profile_changed
        self.profile = rows.profile_values(record.id, record.profile) if chosen else None
        self._log = [seal(record.id, record.epoch, entry) for entry in commit.log]

    def fits(self, head: Head) -> bool:
        """Return whether this commit changes an existing conversation that is at the expected position.

        False for a commit that also changes the profile or the slug, since a batch does not write these.
        """
        return (
            self.fixed is None
            and self.profile is None
            and head.step == self.expected_step
            and head.epoch <= self.epoch
            and head.last_seq + 1 == self.next_revision
            and head.slug == self.slug
        )

    def links(self, log_hash: str) -> tuple[list[rows.Row], str]:
        """Return the rows of the event log, chained to the row with the hash `log_hash`, and the last row's hash."""
        linked: list[rows.Row] = []
        for sealed in self._log:
            log_hash, row = sealed.after(log_hash)
            linked.append(row)
        return linked, log_hash

    def misfit(self, head: Head) -> FencedError:
        """Return the error for a commit that does not continue the stored conversation."""
        return FencedError(
            f"{self.id} is at step {head.step}, revision {head.last_seq}, epoch {head.epoch}; "
            f"not at step {self.expected_step}, revision {self.next_revision - 1}, epoch {self.epoch}"
        )


def _command_values(commit: Commit, command: CommandRecord) -> rows.Row:
    conversation, principal = ("", commit.record.principal) if commit.create_command else (commit.record.id, "")
    values = (conversation, principal, command.request_id, command.body_hash, command.answer.decode(), command.at)
    return (*values, rows.digest_of(values))


def attachment_row(conversation_id: str, attachment: Attachment, at: int) -> rows.Row:
    """Return the values of the columns ATTACHMENT for an attachment that is stored at the time `at` (milliseconds)."""
    values = (
        conversation_id, attachment.id, attachment.media_type, attachment.data, attachment.width, attachment.height, at,
    )  # fmt: skip
    return (*values, rows.digest_of(values))
