"""The commands that create a conversation: Create, Fork, and Continue (for one whose context is full)."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.conversation.commands import creation
from actors.conversation.commands.forking import forked_conversation, stored_bytes
from actors.conversation.commands.idempotency import command_record, created_by, known_command, known_create
from actors.conversation.pipeline import LoadedConversation
from actors.conversation.unit_of_work import attributed
from actors.core.errors import Reason, Rejected
from actors.core.states import AwaitingContinuation, ContextExhausted
from actors.messages.commands import ContinueConversationCommand, ForkConversationCommand
from actors.messages.refusals import InvalidFieldError, UnknownConversationError
from actors.ports import CommandExistsError, FencedError, SlugTakenError, StoreUnavailableError

if TYPE_CHECKING:
    from actors.conversation.pipeline import ConversationPipeline
    from actors.conversation.unit_of_work import UnitOfWork
    from actors.messages.commands import CreatingCommand
    from actors.ports import Commit, ConversationRecord
    from actors.runtime.services import Services

log = logging.getLogger(__name__)

SLUG_TRIES = 10
"""How many generated slugs are tried before creation fails because all of them are taken."""


def create(pipeline: ConversationPipeline, request: CreatingCommand) -> ConversationRecord:
    """Create the conversation of this pipeline, or return the one that the same request created before.

    Actor's thread only. Raises Rejected, InvalidFieldError, SlugTakenError, UnknownConversationError or StoreError.
    """
    services = pipeline.services
    counted = not services.quotas.limits_stored
    for _ in range(SLUG_TRIES):
        known = known_create(services.store, request)
        if known is not None:
            return created_by(services.store, known)
        if not counted:
            services.quotas.check_stored(request.principal)
        record, commit = _first_commit(pipeline, request)
        if not counted:
            services.quotas.take_stored(request.principal, stored_bytes(services.store, commit))
            counted = True
        if pipeline.origin is not None:
            first, *others = commit.log
            commit = replace(commit, log=(attributed(first, pipeline.origin), *others))
        try:
            services.store.commit(commit)
        except CommandExistsError:
            continue
        except FencedError:
            if commit.fork is None:
                raise
            raise UnknownConversationError("the conversation to fork has been deleted") from None
        except SlugTakenError:
            if request.slug:
                raise
            continue
        pipeline.loaded = LoadedConversation(services, record)
        services.bus.created(record)
        services.mcp.prepare(record)
        return record
    raise SlugTakenError


def _first_commit(pipeline: ConversationPipeline, request: CreatingCommand) -> tuple[ConversationRecord, Commit]:
    services, new_id, at = pipeline.services, pipeline.conversation_id, pipeline.now()
    if isinstance(request, ForkConversationCommand):
        try:
            return forked_conversation(services, new_id, request, at)
        except (Rejected, InvalidFieldError):
            if services.store.load(request.origin) is None:  # the conversation was deleted while it was being read
                raise UnknownConversationError("the conversation to fork has been deleted") from None
            raise
    return creation.conversation(services, new_id, request, at)


def continue_exhausted(
    pipeline: ConversationPipeline, loaded: LoadedConversation, request: ContinueConversationCommand
) -> ConversationRecord:
    """Create the conversation that continues this one, whose context is full, or return it if it exists already.

    Actor's thread only. Raises Rejected, SlugTakenError, UnknownConversationError or StoreError.
    """
    store = pipeline.services.store
    known = known_command(store, pipeline.conversation_id, request)
    if known is not None:
        return created_by(store, known)
    linked = loaded.record.continued_by
    successor = store.load(linked) if linked else None
    if successor is not None:
        return successor
    if not isinstance(loaded.state, ContextExhausted):
        raise Rejected(_why_not_continued(loaded))
    return _create_successor(pipeline, loaded, request, loaded.state.summary)


def _create_successor(
    pipeline: ConversationPipeline, loaded: LoadedConversation, request: ContinueConversationCommand, summary: str
) -> ConversationRecord:
    for _ in range(SLUG_TRIES):
        unit, at = loaded.begin(), pipeline.now()
        successor, commit = creation.successor(pipeline.services, unit, request, summary, at)
        try:
            pipeline.perform(loaded, unit, commit, command=command_record(request, successor.id.encode(), at))
        except SlugTakenError:
            continue
        pipeline.services.bus.created(successor)
        pipeline.services.mcp.prepare(successor)
        return successor
    raise SlugTakenError


def perform_outcomes(
    pipeline: ConversationPipeline, loaded: LoadedConversation, unit: UnitOfWork, *, urgent: bool
) -> None:
    """Commit outcomes as `pipeline.perform` does.

    If they use up the context of a conversation that continues by itself, the same commit creates the successor, so
    that there is exactly one however the server ends. Actor's thread only. Raises StoreError.
    """
    services = pipeline.services
    successor = _own_successor(services, unit)
    try:
        pipeline.perform(loaded, unit, *successor, urgent=urgent)
    except SlugTakenError:
        raise StoreUnavailableError("the slug of the successor is taken: the next attempt has another one") from None
    with suppress(StoreUnavailableError):  # the commit is made: this must not look like its failure
        created = services.store.load(loaded.record.continued_by) if successor else None
        if created is not None:
            services.bus.created(created)
            services.mcp.prepare(created)


def _own_successor(services: Services, unit: UnitOfWork) -> tuple[Commit, ...]:
    record, state = unit.record, unit.record.state
    if not isinstance(state, ContextExhausted) or isinstance(unit.before.state, ContextExhausted):
        return ()
    if not record.profile.auto_continue:
        return ()
    request = ContinueConversationCommand(include_summary=True)
    try:
        return (creation.successor(services, unit, request, state.summary, record.updated_at)[1],)
    except StoreUnavailableError:
        raise
    except Exception:
        log.exception("its successor could not be created", extra={"conversation": record.id})
        return ()


def _why_not_continued(loaded: LoadedConversation) -> Reason:
    if not loaded.record.user_initiated:
        return Reason.SUB_AGENT
    summarising = isinstance(loaded.state, AwaitingContinuation)
    return Reason.CONTINUATION_IN_PROGRESS if summarising else Reason.NOT_EXHAUSTED
