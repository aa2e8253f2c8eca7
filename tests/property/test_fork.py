"""A fork of any life at any of its ends: what a model gets of it is the origin's, to the byte; verify and replay find
nothing in it; and it lives on by all laws of the machine."""

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from msgspec.structs import replace

from actors.conversation.forking import forked_conversation
from actors.core.content import Message, MessageType, SystemKind
from actors.core.errors import Reason, Rejected
from actors.core.history import provider_view
from actors.core.history.chain import SUMMARIES, used_tokens
from actors.core.history.provider_view import ProviderView, Turn
from actors.core.notifications import StopReason
from actors.core.states import ContextExhausted
from actors.messages import ForkConversationCommand
from actors.ports import ConversationRecord, NoImages, StoppedRun
from actors.runtime.services import Services
from tests.property.drive import a_context, happen
from tests.property.growing import FORMS
from tests.property.profiles import everything_was_seen, profile
from tests.property.tape import Tape, tapes
from tests.property.test_verify_and_replay import found, live
from tests.property.written import WrittenWorld
from tests.support.model_requests import body_of, provider, request
from tests.support.stores import new_store

PROTOCOLS = {"anthropic": "claude-sonnet-4-5", "openai-chat": "gpt-4o", "openai-responses": "gpt-5.2"}


def services(world: WrittenWorld) -> Services:
    """As much as a fork needs."""

    def context_of(record: ConversationRecord) -> object:
        return replace(world.context, conversation_id=record.id)

    stub = SimpleNamespace(
        store=world.store, images=NoImages(), node="test", context_of=context_of,
        models=SimpleNamespace(get=lambda _: object()),
    )  # fmt: skip
    return cast("Services", stub)


class ForkedWorld(WrittenWorld):
    """The life of a fork."""

    def __init__(self, origin: WrittenWorld, run: str, name: str = "f") -> None:
        self.record, commit = forked_conversation(
            services(origin), name, ForkConversationCommand("local", origin.record.id, run, slug=name), origin.now
        )
        origin.store.commit(commit)
        assert commit.fork
        self.born = commit
        context = replace(origin.context, conversation_id=name)
        super().__init__(origin.store, context, begin=False)
        self.state = self.record.state
        self.at, self.made = origin.at, origin.made
        self.laws.take_over(commit.messages, commit.fork.runs, self.state.ledger)


def ends(world: WrittenWorld) -> tuple[StoppedRun, ...]:
    return world.store.stopped_runs(world.record.id, limit=1_000)


def bodies(turns: tuple[Turn, ...]) -> list[bytes]:
    view = ProviderView(turns)
    return [
        body_of(provider(protocol, "http://127.0.0.1:9"), replace(request(), view=view), name)
        for protocol, name in PROTOCOLS.items()
    ]


def same_prefix(origin: WrittenWorld, forked: ForkedWorld, through: int) -> None:
    """What a model gets of the fork is what it got, or would have got, of the origin at that end."""
    theirs, ours = origin.laws.history, list(forked.born.messages)
    for protocol, model in FORMS:
        prefix = provider_view(theirs, through, protocol=protocol, model=model)
        assert provider_view(ours, len(ours), protocol=protocol, model=model) == prefix
    assert bodies(provider_view(ours, len(ours))) == bodies(provider_view(theirs, through))


def why_not(world: WrittenWorld, history: list[Message]) -> Reason | None:
    """Why the end of such a history cannot be forked at, if so."""
    used_up = isinstance(world.state, ContextExhausted) and history[-1].kind in SUMMARIES
    full = world.context.full(used_tokens(history))
    after = isinstance(world.state, ContextExhausted) and any(one.kind in SUMMARIES for one in history)
    return Reason.NOT_FORKABLE if used_up or full or after else None


def test_a_fork_of_any_life_has_the_same_prefix_and_lives_on_by_the_laws() -> None:
    seen: set[str] = set()
    store = new_store()

    @profile(250)
    @given(tapes(100, 300), tapes(60, 160))
    def any_fork(tape: Tape, later: Tape) -> None:
        for each in "cfg":
            store.delete(each)
        origin = WrittenWorld(store, a_context(tape))
        live(origin, tape)
        if not (stopped := ends(origin)):
            with pytest.raises(Rejected) as refused:
                ForkedWorld(origin, "")
            assert refused.value.reason is Reason.NOT_FORKABLE
            return
        end = later.pick(stopped)
        reason = why_not(origin, origin.laws.history[: end.last_sequence])
        if reason is not None:
            with pytest.raises(Rejected) as refused:
                ForkedWorld(origin, end.stop.run)
            assert refused.value.reason is reason
            seen.add("refused")
            return
        forked = ForkedWorld(origin, end.stop.run)
        same_prefix(origin, forked, end.last_sequence)
        assert found(origin.store, "f") == []
        notices = forked.state.ledger.pending_notices
        assert notices[-1].kind is SystemKind.FORKED
        seen.update(notice.kind for notice in notices)
        seen.add(end.stop.reason)
        live(forked, later)
        assert found(origin.store, "f") == []
        assert found(origin.store, "c") == []
        if any(message.type is MessageType.AGENT for message in forked.laws.history[end.last_sequence :]):
            seen.add("answered in the fork")
        first = ends(forked)[0]
        if why_not(forked, forked.laws.history[: first.last_sequence]) is None:
            same_prefix(forked, ForkedWorld(forked, first.stop.run, "g"), first.last_sequence)
            seen.add("forked again")
        origin.store.delete("c")
        assert found(origin.store, "f") == []

    any_fork()
    told = {SystemKind.FORKED, SystemKind.INTERRUPTED, SystemKind.MODE_RESTRICTED, SystemKind.MODE_UNRESTRICTED}
    assert everything_was_seen(
        {*told, *StopReason, "refused", "answered in the fork", "forked again"}, dict.fromkeys(seen, 1)
    )


def test_the_live_run_cannot_be_forked_at() -> None:
    tape = Tape(b"")
    world = WrittenWorld(new_store(), a_context(tape))
    while not world.state.ledger.live:
        happen(world, tape)
    with pytest.raises(Rejected) as refused:
        ForkedWorld(world, "c:1")
    assert refused.value.reason is Reason.CYCLE_RUNNING
