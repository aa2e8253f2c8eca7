"""The changes that a store writes: commits to conversations, and everything else.

A commit is encoded on the thread of the store's caller. The functions that take a session run in a transaction on the
thread that writes to the database; their exceptions reach the store's caller. A change is refused if another server
owns the conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from peewee import EXCLUDED, SQL, fn

from actors.adapters.store import removal, rows
from actors.adapters.store.models import (
    FAMILY,
    OWNER,
    Attachments,
    Audit,
    Commands,
    Fates,
    Log,
    Messages,
    Profiles,
    Prompts,
    Prunings,
    Records,
    Runs,
    Spendings,
    fields,
)
from actors.adapters.store.query import (
    ALIVE,
    FREE,
    OWNED,
    Head,
    Insert,
    Param,
    PerDatabase,
    Session,
    Statement,
    heads,
    not_owner,
    owned_head,
    undeleted,
)
from actors.core.context import Profile
from actors.ports import Commit, FencedError, Spending, StoreError

PRUNED_ENTRIES = 500  # maximum number of audit entries that one transaction deletes

_ID = Param("id")


_CREATE = Insert(Records, PerDatabase(SQL("1"), ALIVE))  # inserts nothing if this server was declared dead
_WRITTEN = [getattr(Records, name) for name in (*rows.CHANGING, "log_hash")]
_UPDATE = Statement(
    Records.update({each: Param(each.name) for each in _WRITTEN}).where(
        Records.id == _ID,
        Records.step == Param("expected_step"),
        Records.revision == Param("expected_revision"),
        Records.log_hash == Param("expected_hash"),
        Records.epoch <= Param("epoch"),
        OWNED,
    )
)
_NAMED = Records.id == _ID, OWNED
_UPDATE_SLUG = Statement(Records.update({Records.slug: Param("slug")}).where(*_NAMED))
_FINISH = Statement(Records.update({Records.slug: Param("slug"), Records.log_hash: Param("log_hash")}).where(*_NAMED))
_FAMILY_OF = Statement(Records.select(PerDatabase(Records.id, FAMILY)).where(Records.id == _ID, undeleted(Records.id)))
_LOCK_TOP = Statement(Records.select(OWNED).where(Records.id == _ID).for_update("FOR SHARE"))  # type: ignore[arg-type] # the stubs know FOR UPDATE only
_PUT_PROFILE = Insert(
    Profiles, conflict_target=[Profiles.conversation_id], preserve=[Profiles.profile, Profiles.profile_digest]
)  # `forked_from` never changes
_PROMPTS, _BEGINNINGS = Insert(Prompts), Insert(Prunings)
_MESSAGES, _LOG, _RUNS, _FATES, _COMMANDS = map(Insert, (Messages, Log, Runs, Fates, Commands))
_ADD_SPENDING = Insert(
    Spendings,
    conflict_target=[Spendings.day, Spendings.principal],
    update={each: each + getattr(EXCLUDED, each.name) for each in (Spendings.tokens, Spendings.cost_micros)},
)
INSERT_AUDIT = Insert(Audit)
_OLDEST = (
    Audit.select(Audit.id)
    .where((Audit.at < Param("before")) | (Audit.id + Param("keep") <= Audit.select(fn.max(Audit.id))))
    .order_by(Audit.id)
    .limit(PRUNED_ENTRIES)
)
_PRUNE_AUDIT = Statement(Audit.delete().where(Audit.id.in_(_OLDEST)))
_INSERT_ATTACHMENT = Insert(Attachments, action="IGNORE")
_BEGINS = (Prunings.step, Prunings.revision, Prunings.hash)
_MAY_PRUNE = PerDatabase(Records.id == _ID, (Records.id == _ID) & ((Param("me") == OWNER) | FREE) & ALIVE)
_MOVE_BEGINNING = Statement(
    Prunings.insert_from(
        Records.select(Records.id, *(Param(each.name) for each in _BEGINS)).where(_MAY_PRUNE), fields(Prunings)
    ).on_conflict(
        conflict_target=[Prunings.conversation_id],
        update={each: Param(each.name) for each in _BEGINS},
        where=Prunings.step == Param("from_step"),
    )
)
_PRUNE_LOG = Statement(
    Log.delete().where(
        Log.conversation_id == _ID, Log.first_revision <= Param("next_revision"), Log.step <= Param("step")
    )
)


class EncodedCommit:
    """A change that writes a commit. The commit's rows are already encoded, except for the hashes in event log rows."""

    def __init__(self, commit: Commit) -> None:
        """Encode the commit. Raises ValueError if the commit is inconsistent; see `check_shape`."""
        rows.check_shape(commit)
        record, fork = commit.record, commit.fork
        id_ = self.id = record.id
        self.epoch, self.slug, self.parent = record.epoch, record.slug, record.parent_conversation_id
        self.changing = rows.changing_values(record)
        # The first columns of a new conversation's row; () for a commit to an existing conversation.
        self.created: rows.Row = (*rows.fixed_values(record), *self.changing) if commit.create else ()
        self.created_at = record.created_at
        self.prompt = record.system_prompt if commit.create else ""
        self.origin, self.begins = (fork.origin, fork.revision) if fork else ("", 0)
        self.attachments = fork.attachments if fork else ()  # a fork's, which earlier transactions have copied
        self.expected_step, self.next_revision = commit.expected_step, rows.next_revision(commit)
        self.spending = commit.spending
        runs = (*(fork.runs if fork else ()), *rows.stopped_runs(commit))
        whose, sender = (None, record.principal) if commit.create_command else (id_, None)
        chosen = record.profile != Profile() if commit.create else commit.profile_changed
        profile = (*rows.profile_values(id_, record.profile), record.profile.forked_from)
        self.rows: dict[Insert, list[rows.Row]] = {
            _PUT_PROFILE: [profile] if chosen else [],
            _MESSAGES: [rows.message_values(id_, message) for message in commit.messages],
            _RUNS: [rows.run_values(id_, ended) for ended in runs],
            _FATES: [rows.fate_values(id_, settled) for settled in rows.settled_inputs(commit)],
            _COMMANDS: [rows.command_values(whose, sender, commit.command)] if commit.command else [],
        }
        self._log = [rows.seal(id_, record.epoch, entry) for entry in commit.log]

    def __call__(self, session: Session) -> None:
        write_alone(session, [self])

    def links(self, log_hash: str) -> tuple[list[rows.Row], str]:
        """The commit's event log rows, chained to the row with the hash `log_hash`, and the hash of the last one."""
        linked: list[rows.Row] = []
        for sealed in self._log:
            log_hash, row = sealed.after(log_hash)
            linked.append(row)
        return linked, log_hash

    def fits(self, head: Head) -> bool:
        """Whether this commit continues from the stored position `head` and this server may write it."""
        follows = (head.step, head.revision + 1) == (self.expected_step, self.next_revision)
        return follows and head.epoch <= self.epoch and head.owned

    def check(self, session: Session) -> Head:
        """The stored position. Raises FencedError or NotOwnerError if the commit does not continue from it."""
        head = owned_head(session, self.id)
        if not self.fits(head):
            raise FencedError(
                f"{self.id} is at step {head.step}, revision {head.revision}, epoch {head.epoch}; "
                f"not at step {self.expected_step}, revision {self.next_revision - 1}, epoch {self.epoch}"
            )
        return head


def write_together(session: Session, changes: Sequence[EncodedCommit], begin: str) -> set[object]:
    """Write commits to existing conversations in a transaction begun with `begin`, and return those written.

    For each conversation, only the first commit is written, and only if it continues from the stored position. If the
    database refuses any commit, none is written and a new transaction begins; a savepoint would cost two more
    statements for every commit. The caller then writes the remaining commits one by one, so that each can be refused
    for its own reason.
    """
    first: dict[str, EncodedCommit] = {}
    for commit in changes:
        if not commit.created:
            first.setdefault(commit.id, commit)
    if not first:
        session.run(begin)
        return set()
    try:
        session.run(begin)
        found = heads(session, list(first))
        fitting = [commit for id_, commit in first.items() if (head := found.get(id_)) and commit.fits(head)]
        if not fitting:
            return set()
        updated, log = _update(session, fitting, found)
        if updated.rowcount != len(fitting):
            raise FencedError("a conversation has changed since its head was read")
        _insert(session, fitting, log)
    except Exception as error:
        if not isinstance(error, (StoreError, *session.refusals)):
            raise
        session.run("ROLLBACK")
        session.run(begin)
        return set()
    return set(fitting)


def write_alone(session: Session, commits: Sequence[EncodedCommit]) -> None:
    """Write commits, together or not at all.

    Raises FencedError or NotOwnerError for the first commit that does not continue its conversation, or whatever the
    database raises; in either case the caller must roll back.
    """
    for commit in commits:  # one by one, because a later commit may be to the same conversation
        if not commit.created:
            updated, log = _update(session, [commit], {commit.id: commit.check(session)})
            if updated.rowcount != 1:  # the conversation has changed since its head was read
                commit.check(session)
                raise FencedError(f"the log of {commit.id} ends at a different step")
        else:
            log, log_hash = commit.links("")
            _create(session, commit, (*commit.created, commit.slug or None, log_hash))
        _insert(session, [commit], log)


def _update(session: Session, commits: list[EncodedCommit], found: dict[str, Head]) -> tuple[Any, list[rows.Row]]:
    """Update the conversations that are unchanged since `found`, and return their log rows.

    Also returns the database's result, which counts the updated conversations.
    """
    changed: list[dict[str, object]] = []
    log: list[rows.Row] = []
    for commit in commits:
        head = found[commit.id]
        linked, log_hash = commit.links(head.log_hash)
        log += linked
        expected = {"expected_step": head.step, "expected_revision": head.revision, "expected_hash": head.log_hash}
        changing = dict(zip(rows.CHANGING, commit.changing, strict=True))
        changed.append({"id": commit.id, "log_hash": log_hash, **changing, **expected})
        if commit.slug != head.slug:
            session.execute(_UPDATE_SLUG, id=commit.id, slug=commit.slug or None)
    return session.executemany(_UPDATE, changed), log


def _insert(session: Session, commits: list[EncodedCommit], log: list[rows.Row]) -> None:
    for insert in (_PUT_PROFILE, _MESSAGES, _LOG, _RUNS, _FATES, _COMMANDS):
        session.insert(insert, log if insert is _LOG else [row for commit in commits for row in commit.rows[insert]])
    if spendings := [commit.spending for commit in commits if commit.spending]:
        add_spendings(session, spendings)


def add_spendings(session: Session, spendings: list[Spending]) -> None:
    """Add tokens and costs to the sums for principals and days.

    All servers update the same rows. The rows are written just before the transaction commits, so that no server waits
    long for another, and in sorted order, to avoid deadlocks.
    """
    tokens, costs = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for each in spendings:
        tokens[each.day, each.principal] += each.tokens
        costs[each.day, each.principal] += each.cost_micros
    session.insert(_ADD_SPENDING, [(key[1], key[0], tokens[key], costs[key]) for key in sorted(tokens)])


# --- new conversations and forks --------------------------------------------------------------------------------


def _create(session: Session, commit: EncodedCommit, row: rows.Row) -> None:
    """Insert the row of a new conversation, or make a prepared fork visible."""
    if commit.attachments:
        if not removal.show_unfinished(session, commit.id):
            raise FencedError(f"{commit.id} has been abandoned")
        if session.execute(_FINISH, id=commit.id, slug=row[-2], log_hash=row[-1]).rowcount != 1:
            raise not_owner(session, commit.id)
    else:
        _insert_conversation(session, commit.parent, row)
    if commit.prompt:
        session.insert(_PROMPTS, [rows.prompt_values(commit.id, commit.prompt)])
    if commit.origin:
        _check_exists(session, commit.origin)
        session.insert(_BEGINNINGS, [(commit.id, 0, commit.begins, "")])


def _insert_conversation(session: Session, parent: str | None, row: rows.Row) -> None:
    """Insert the row of a new conversation, after removing the remains of a deleted conversation with the same id."""
    removal.remove_all(session, row[0])
    family = _family(session, parent) if parent else row[0]
    if session.insert(_CREATE, [(*row, family, session.me)]) != 1:
        raise not_owner(session, row[0])


def _family(session: Session, parent: str) -> str:
    """The top of a sub-agent's family, locked against take-overs. Raises FencedError (no parent) or NotOwnerError."""
    family = _check_exists(session, parent)
    if session.shared:
        top = session.execute(_LOCK_TOP, id=family).fetchone()
        if top is None or not top[0]:
            raise not_owner(session, family)
    return family


def _check_exists(session: Session, conversation_id: str) -> str:
    """The id of the top of a conversation's family. Raises FencedError if the conversation does not exist."""
    found = session.execute(_FAMILY_OF, id=conversation_id).fetchone()
    if found is None:
        raise FencedError(f"{conversation_id} does not exist")
    return str(found[0])


def begin_fork(session: Session, fork: EncodedCommit) -> None:
    """Insert the row of a fork whose attachments have yet to be copied; it stays hidden until the fork is complete.

    After a crash, the fork is removed by this server at its next start, or by another server. Raises FencedError if the
    conversation to fork does not exist.
    """
    _check_exists(session, fork.origin)
    _insert_conversation(session, fork.parent, (*fork.created, None, ""))
    removal.hide_unfinished(session, fork.id)


def copy_attachment(session: Session, row: rows.Row) -> None:
    """Add an attachment to a fork. Raises FencedError if another server has abandoned the fork."""
    if not removal.hold_unfinished(session, row[0]):
        raise FencedError(f"{row[0]} has been abandoned")
    session.insert(_INSERT_ATTACHMENT, [row])


# --- other changes ------------------------------------------------------------------------------------------------


def delete(session: Session, conversation_id: str, audit: Sequence[rows.Row]) -> None:
    """Hide a conversation and its sub-agents, to be removed later, and write the audit entries.

    The create commands of these conversations are kept, so that a repeated command is still recognised.
    """
    if removal.hide(session, conversation_id):
        session.insert(INSERT_AUDIT, audit)


def prune_log(session: Session, conversation_id: str, begins: rows.LogPosition, was: rows.LogPosition) -> None:
    """Move the beginning of a log from `was` to `begins`, and delete the rows before it. Raises NotOwnerError.

    Does nothing if the conversation is deleted, or has already been pruned.
    """
    if session.execute(_MOVE_BEGINNING, id=conversation_id, from_step=was.step, **begins._asdict()).rowcount == 1:
        session.execute(_PRUNE_LOG, id=conversation_id, next_revision=begins.revision + 1, step=begins.step)
    elif session.shared and (error := not_owner(session, conversation_id)).owner is not None:
        raise error


def put_attachment(session: Session, row: rows.Row) -> None:
    """Store an attachment unless its id, which is the hash of its content, already exists.

    Raises FencedError (no conversation) or NotOwnerError.
    """
    owned_head(session, row[0])
    session.insert(_INSERT_ATTACHMENT, [row])


def prune_audit(session: Session, before: int, keep: int) -> int:
    """Delete up to PRUNED_ENTRIES of the oldest entries that are older than `before` or not among the latest `keep`."""
    return int(session.execute(_PRUNE_AUDIT, before=before, keep=keep).rowcount)
