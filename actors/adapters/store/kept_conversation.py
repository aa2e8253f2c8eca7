"""A conversation in the in-memory store, with all its rows. It is immutable: a commit replaces the whole object."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from actors.adapters.store.log_rows import (
    BEGINNING,
    LogPosition,
    LogRow,
    next_revision,
    seal,
    settled_inputs,
    stopped_runs,
)
from actors.adapters.store.rows import FIXED
from actors.ports import (
    Attachment,
    CommandExistsError,
    CommandRecord,
    Commit,
    ConversationRecord,
    FencedError,
    SettledInput,
    SlugTakenError,
    StoppedRun,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.core.content import Message


class KeptConversation(NamedTuple):
    """A conversation with everything that a database would store of it. It is immutable: changes make a new object."""

    record: ConversationRecord
    messages: tuple[Message, ...]
    log: tuple[LogRow, ...]
    begins: LogPosition
    """The position after which the event log begins; older rows may have been pruned."""
    runs: tuple[StoppedRun, ...]
    fates: tuple[SettledInput, ...]
    commands: Mapping[str, CommandRecord]
    attachments: Mapping[str, Attachment]

    def after(self, part: Commit) -> KeptConversation:
        """Return a copy of this conversation to which the commit `part` is applied.

        Raises FencedError if a message with the same sequence number exists, CommandExistsError if the command or a
        message with the same id exists.
        """
        for message in part.messages:
            if any(message.id == other.id for other in self.messages):
                raise CommandExistsError(f"message {message.id} of {self.record.id} is there already")
            if any(message.sequence == other.sequence for other in self.messages):
                raise FencedError(f"message {message.sequence} of {self.record.id} is there already")
        log, log_hash = list(self.log), self.record.log_hash
        for entry in part.log:
            log_hash, (*values, context, audit, _) = seal(self.record.id, part.record.epoch, entry).after(log_hash)
            log.append(LogRow._make((*values, context or None, audit or None)))
        commands = dict(self.commands)
        if part.command is not None and not part.create_command:
            if part.command.request_id in commands:
                raise CommandExistsError(f"{part.command.request_id} of {self.record.id} is there already")
            commands[part.command.request_id] = part.command
        kept = (*FIXED, "system_prompt") if part.profile_changed else (*FIXED, "system_prompt", "profile")
        fixed = {name: getattr(self.record, name) for name in kept}
        record = replace(part.record, log_hash=log_hash, **fixed)
        return self._replace(
            record=record,
            messages=(*self.messages, *part.messages),
            log=tuple(log),
            runs=(*self.runs, *stopped_runs(part)),
            fates=(*self.fates, *settled_inputs(part)),
            commands=commands,
        )

    def aged(self, before: int, keep: int) -> bool:
        """Return whether the event log has rows to prune.

        That is so if its oldest row was written before `before` (milliseconds since 1970) and the conversation has more
        than `keep` revisions.
        """
        return bool(self.log) and self.log[0].at < before and self.record.last_seq > keep

    def archived(self, before: int) -> bool:
        """Return whether this is a top-level conversation that was archived before the given time (ms since 1970)."""
        at = self.record.archived_at
        return at is not None and at < before and self.record.parent_conversation_id is None


def created_by(kept: Mapping[str, KeptConversation], part: Commit) -> KeptConversation:
    """Return the conversation that the commit `part` creates, still without messages and without rows of the event log.

    The log of a fork will begin after the revisions of its origin, and the fork gets those attachments of the origin
    that `part` names. Raises FencedError if the conversation exists already or its parent or origin does not exist,
    SlugTakenError if its slug is in use.
    """
    record = part.record
    if record.id in kept:
        raise FencedError(f"{record.id} is there already")
    if record.parent_conversation_id is not None and record.parent_conversation_id not in kept:
        raise FencedError(f"{record.parent_conversation_id} does not exist")
    _check_slug(kept, record)
    empty = KeptConversation(replace(record, log_hash=""), (), (), BEGINNING, (), (), {}, {})
    if part.fork is None:
        return empty
    origin = kept.get(part.fork.origin)
    if origin is None:
        raise FencedError(f"{part.fork.origin} does not exist")
    attachments = {id_: origin.attachments[id_] for id_ in part.fork.attachments if id_ in origin.attachments}
    return empty._replace(begins=LogPosition(revision=part.fork.revision), runs=part.fork.runs, attachments=attachments)


def changed_by(kept: Mapping[str, KeptConversation], part: Commit) -> KeptConversation:
    """Return the stored conversation that `part` is going to change.

    Raises FencedError if the conversation does not exist or is not at the step, revision and epoch that `part` expects,
    SlugTakenError if the slug of `part` is in use.
    """
    found = kept.get(part.record.id)
    if found is None:
        raise FencedError(f"{part.record.id} does not exist")
    head = found.record
    expected = (part.expected_step, next_revision(part) - 1)
    if (head.step, head.last_seq) != expected or head.epoch > part.record.epoch:
        raise FencedError(f"{head.id} is at step {head.step}, revision {head.last_seq}, epoch {head.epoch}")
    _check_slug(kept, part.record)
    return found


def _check_slug(kept: Mapping[str, KeptConversation], record: ConversationRecord) -> None:
    taken = record.principal, record.slug
    for other in kept.values():
        if record.slug and (other.record.principal, other.record.slug) == taken and other.record.id != record.id:
            raise SlugTakenError(f"{record.slug} is taken")
