"""Commits of conversations: encoded on the caller's thread, written by the thread that writes to the database."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from peewee import EXCLUDED, SQL, Select

from actors.adapters.store import models, removal, rows
from actors.adapters.store.log_rows import (
    check_shape,
    fate_values,
    next_revision,
    run_values,
    seal,
    settled_inputs,
    stopped_runs,
)
from actors.adapters.store.owners import ALIVE, OWNED, Head, heads, not_owner, owned_head
from actors.adapters.store.query import Insert, Param, PerDatabase, Session, Statement, undeleted
from actors.core.context import Profile
from actors.ports import FencedError, StoreError

if TYPE_CHECKING:
    from actors.ports import Commit, Spending

_ID = Param("id")


class _Create(Insert):
    """Inserts a conversation, unless this server was declared dead."""

    def query(self, columns: list[Any], count: int) -> Any:
        values = Select(columns=[Param(each.name) for each in columns]).where(PerDatabase(SQL("1"), ALIVE))
        return models.Records.insert_from(values, columns)


class _PutProfile(Insert):
    """Inserts a profile, or replaces the one that there is."""

    def query(self, columns: list[Any], count: int) -> Any:
        inserted = super().query(columns, count)
        return inserted.on_conflict(conflict_target=[models.Profiles.conversation_id], preserve=columns[1:])


_CREATE = _Create(models.Records)
_WRITTEN = [getattr(models.Records, name) for name in (*rows.CHANGING, "log_hash")]
_UPDATE = Statement(
    models.Records.update({each: Param(each.name) for each in _WRITTEN}).where(
        models.Records.id == _ID,
        models.Records.step == Param("expected_step"),
        models.Records.last_seq == Param("expected_revision"),
        models.Records.log_hash == Param("expected_hash"),
        models.Records.epoch <= Param("epoch"),
        OWNED,
    )
)
_NAMED = models.Records.id == _ID, OWNED
_UPDATE_SLUG = Statement(models.Records.update({models.Records.slug: Param("slug")}).where(*_NAMED))
_FINISH = Statement(
    models.Records.update({models.Records.slug: Param("slug"), models.Records.log_hash: Param("log_hash")}).where(
        *_NAMED
    )
)
_FAMILY_OF = Statement(
    models.Records.select(PerDatabase(models.Records.id, models.FAMILY)).where(
        models.Records.id == _ID, undeleted(models.Records.id)
    )
)
_LOCK_TOP = Statement(models.Records.select(OWNED).where(models.Records.id == _ID).for_update("FOR SHARE"))  # type: ignore[arg-type] # the stubs know FOR UPDATE only
_PUT_PROFILE = _PutProfile(models.Profiles)
_PROMPTS, _BEGINNINGS = Insert(models.Prompts), Insert(models.Prunings)
_MESSAGES, _LOG, _RUNS, _FATES, _COMMANDS = map(
    Insert, (models.Messages, models.Log, models.Runs, models.Fates, models.Commands)
)
ADD_SPENDING = Insert(
    models.Spendings,
    conflict_target=[models.Spendings.day, models.Spendings.principal],
    update={
        each: each + getattr(EXCLUDED, each.name) for each in (models.Spendings.tokens, models.Spendings.cost_micros)
    },
)


class EncodedCommit:
    """The rows of a commit, except for the hashes of its rows of the event log."""

    def __init__(self, commit: Commit) -> None:
        """Encode the commit. Raises ValueError if the commit is inconsistent; see `check_shape`."""
        check_shape(commit)
        record, fork = commit.record, commit.fork
        self.id, self.epoch, self.slug, self.parent = (
            record.id,
            record.epoch,
            record.slug,
            record.parent_conversation_id,
        )
        self.changing = rows.changing_values(record)
        # The first columns of a new conversation; None for an existing one.
        self.created = (*rows.fixed_values(record), *self.changing) if commit.create else None
        self.prompt = record.system_prompt if commit.create else ""
        self.fork = fork
        self.prepared = is_prepared(commit)
        self.expected_step, self.next_revision = commit.expected_step, next_revision(commit)
        self.messages = [rows.message_values(record.id, message) for message in commit.messages]
        runs = (*(fork.runs if fork else ()), *stopped_runs(commit))
        self.runs = [run_values(record.id, ended) for ended in runs]
        self.fates = [fate_values(record.id, settled) for settled in settled_inputs(commit)]
        whose, sender = (None, record.principal) if commit.create_command else (record.id, None)
        self.commands = [rows.command_values(whose, sender, commit.command)] if commit.command else []
        self.spending = commit.spending
        chosen = record.profile != Profile() if commit.create else commit.profile_changed
        profile = rows.profile_values(record.id, record.profile)
        self.profiles = [(*profile, record.profile.forked_from)] if chosen else []
        self._log = [seal(record.id, record.epoch, entry) for entry in commit.log]

    def links(self, log_hash: str) -> tuple[list[rows.Row], str]:
        """Return the rows of the event log, chained to the row with the hash `log_hash`, and the last row's hash."""
        linked: list[rows.Row] = []
        for sealed in self._log:
            log_hash, row = sealed.after(log_hash)
            linked.append(row)
        return linked, log_hash

    def fits(self, head: Head) -> bool:
        """Return whether this commit continues from the stored position `head`, and may be written by this server."""
        follows = (head.step, head.last_seq + 1) == (self.expected_step, self.next_revision)
        return follows and head.epoch <= self.epoch and head.owned

    def change(self, head: Head, log_hash: str) -> dict[str, object]:
        """Return the values of the statement that updates the conversation's row, whose position is `head`."""
        expected = {"expected_step": head.step, "expected_revision": head.last_seq, "expected_hash": head.log_hash}
        return {"id": self.id, **dict(zip(rows.CHANGING, self.changing, strict=True)), "log_hash": log_hash, **expected}

    def check(self, session: Session) -> Head:
        """Return the stored position. Raises FencedError or NotOwnerError if the commit does not continue from it."""
        head = owned_head(session, self.id)
        if not self.fits(head):
            raise FencedError(
                f"{self.id} is at step {head.step}, revision {head.last_seq}, epoch {head.epoch}; "
                f"not at step {self.expected_step}, revision {self.next_revision - 1}, epoch {self.epoch}"
            )
        return head

    def create(self, session: Session, created: rows.Row, log_hash: str) -> None:
        """Insert the row of a new conversation, or make a prepared fork visible.

        Raises FencedError or NotOwnerError, or what the database raises.
        """
        if self.prepared:
            if not removal.show_unfinished(session, self.id):
                raise FencedError(f"{self.id} has been abandoned")
            values = {"id": self.id, "slug": self.slug or None, "log_hash": log_hash}
            if session.execute(_FINISH, **values).rowcount != 1:
                raise not_owner(session, self.id)
        else:
            insert_conversation(session, self.id, self.parent, (*created, self.slug or None, log_hash))
        if self.prompt:
            session.insert(_PROMPTS, [rows.prompt_values(self.id, self.prompt)])
        if self.fork is not None:
            check_exists(session, self.fork.origin)
            session.insert(_BEGINNINGS, [(self.id, 0, self.fork.revision, "")])


def is_prepared(commit: Commit) -> bool:
    """Return whether the commit creates a fork with attachments, which are copied in earlier transactions."""
    return commit.fork is not None and bool(commit.fork.attachments)


def insert_conversation(session: Session, conversation_id: str, parent: str | None, row: rows.Row) -> None:
    """Insert the row of a new conversation, after what is left of a deleted one with its id was removed.

    Raises FencedError or NotOwnerError, or what the database raises.
    """
    removal.remove_all(session, conversation_id)
    family = _family(session, parent) if parent else conversation_id
    if session.insert(_CREATE, [(*row, family, session.me)]) != 1:
        raise not_owner(session, conversation_id)


def _family(session: Session, parent: str) -> str:
    """Return the id of the top-level conversation above a sub-agent with this parent, and lock its row.

    The lock keeps other servers from taking over that conversation before the sub-agent is added. Raises FencedError if
    the parent does not exist, NotOwnerError if this server does not own the top-level conversation.
    """
    family = check_exists(session, parent)
    if session.shared:
        top = session.execute(_LOCK_TOP, id=family).fetchone()
        if top is None or not top[0]:
            raise not_owner(session, family)
    return family


def check_exists(session: Session, conversation_id: str) -> str:
    """Return the id of the conversation at the top of a conversation's family, or raise FencedError."""
    found = session.execute(_FAMILY_OF, id=conversation_id).fetchone()
    if found is None:
        raise FencedError(f"{conversation_id} does not exist")
    return str(found[0])


def write_alone(session: Session, commits: list[EncodedCommit]) -> None:
    """Write commits, together or not at all.

    Raises FencedError or NotOwnerError for the first commit that does not continue the stored conversation, or what the
    database raises. What was written before has to be rolled back then.
    """
    for commit in commits:  # a second one may be to the same conversation
        _write(session, [commit], {} if commit.created else {commit.id: commit.check(session)})


def write_together(session: Session, commits: list[EncodedCommit], begin: str) -> set[str]:
    """Write commits to existing conversations, at most one to each; return the ids of the written conversations.

    Leaves out commits that do not continue the stored conversation, and all if one of them is refused, so that each is
    written alone later and refused for its own reason. The transaction is new, and is begun again by `begin` then: a
    savepoint would be two more statements for every commit.
    """
    first: dict[str, EncodedCommit] = {}
    for commit in commits:
        first.setdefault(commit.id, commit)
    found = heads(session, list(first)) if first else {}
    fitting = [commit for id_, commit in first.items() if (head := found.get(id_)) and commit.fits(head)]
    if not fitting:
        return set()
    try:
        _write(session, fitting, found)
    except Exception as error:
        if not isinstance(error, (StoreError, *session.refusals)):
            raise
        session.run("ROLLBACK")
        session.run(begin)
        return set()
    return {commit.id for commit in fitting}


def _write(session: Session, commits: list[EncodedCommit], found: dict[str, Head]) -> None:
    changed: list[dict[str, object]] = []
    log: list[rows.Row] = []
    for commit in commits:
        head = found.get(commit.id)
        linked, log_hash = commit.links(head.log_hash if head else "")
        log += linked
        if head is not None:
            changed.append(commit.change(head, log_hash))
            if commit.slug != head.slug:
                session.execute(_UPDATE_SLUG, id=commit.id, slug=commit.slug or None)
        elif commit.created is not None:
            commit.create(session, commit.created, log_hash)
    if session.executemany(_UPDATE, changed) != len(changed):  # a conversation has changed since the look at its head
        for commit in commits:
            if commit.id in found:
                commit.check(session)
        raise FencedError(f"a log of {', '.join(found)} has another end")
    session.insert(_PUT_PROFILE, [row for commit in commits for row in commit.profiles])
    session.insert(_MESSAGES, [row for commit in commits for row in commit.messages])
    session.insert(_LOG, log)
    session.insert(_RUNS, [row for commit in commits for row in commit.runs])
    session.insert(_FATES, [row for commit in commits for row in commit.fates])
    session.insert(_COMMANDS, [row for commit in commits for row in commit.commands])
    add_spendings(session, [commit.spending for commit in commits if commit.spending])


def add_spendings(session: Session, spendings: list[Spending]) -> None:
    """Add tokens and costs to the sums of principals and days.

    Servers write to the same rows: this is the last statement before a commit, and its rows are sorted, so that no
    server waits long for another one, and none for itself.
    """
    tokens, costs = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for each in spendings:
        tokens[each.day, each.principal] += each.tokens
        costs[each.day, each.principal] += each.cost_micros
    session.insert(ADD_SPENDING, [(key[1], key[0], tokens[key], costs[key]) for key in sorted(tokens)])
