"""What every store promises about owners; the stores that several servers share promise more than the others."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from actors import ports
from actors.core.states import AwaitingLlm, Completed, Ledger, LlmReason
from tests.support.commit_builder import CommitBuilder
from tests.support.stores import SharedDatabase

FIRST, SECOND = ports.Owner(1, "first", "127.0.0.1:1"), ports.Owner(2, "second", "127.0.0.1:2")
BUSY = AwaitingLlm(Ledger(run=1, live=True), LlmReason.STEER)


class Servers(NamedTuple):
    """Two servers on one store, and a way to declare one dead."""

    first: ports.Store
    second: ports.Store
    kill: Callable[[int], None]
    third: Callable[[], ports.Store]


@pytest.fixture
def servers(shared_database: SharedDatabase) -> Servers:
    """Two servers on a database that servers can share."""
    node = shared_database.node
    return Servers(node(1), node(2), shared_database.kill, lambda: node(3))


def busy(draft: CommitBuilder) -> ports.Commit:
    """Return a commit that creates a conversation with a run."""
    commit = draft.create()
    return replace(commit, record=replace(commit.record, state=BUSY))


def _completed(draft: CommitBuilder) -> ports.ConversationRecord:
    return replace(draft.record, state=Completed(Ledger(), "done"))


def owner_told(attempt: Callable[[], object]) -> ports.Owner | None:
    """Return the owner that a refusal names."""
    with pytest.raises(ports.NotOwnerError) as refused:
        attempt()
    return refused.value.owner


def test_a_store_that_one_server_has_to_itself_claims_everything(store: ports.Store) -> None:
    draft = CommitBuilder.stored(store, "c1")
    assert store.claim("c1") == store.load("c1") is not None
    assert store.claim("c2") is None
    store.commit(draft.next())


def test_what_a_server_creates_is_its_own_with_all_sub_agents(servers: Servers) -> None:
    draft, agent = CommitBuilder("c1"), CommitBuilder("c1-a1", parent_conversation_id="c1", user_initiated=False)
    servers.first.commit(draft.create())
    servers.first.commit(draft.next(), agent.create())
    for id_ in ("c1", "c1-a1"):
        assert owner_told(partial(servers.second.claim, id_)) == FIRST
        assert servers.second.load(id_) == servers.first.claim(id_) is not None, "everybody may read"
    assert servers.second.claim("c2") is None
    for refused in (draft.next(), agent.next(), CommitBuilder("c1-a2", parent_conversation_id="c1").create()):
        assert owner_told(partial(servers.second.commit, refused)) == FIRST
    assert owner_told(lambda: servers.second.delete("c1")) == FIRST
    assert (
        owner_told(lambda: servers.second.put_attachment("c1", ports.Attachment("s", "image/png", b"x", 1, 1))) == FIRST
    )
    assert owner_told(lambda: servers.second.prune_log("c1", 99)) == FIRST
    with pytest.raises(ports.FencedError):
        servers.second.commit(CommitBuilder("c1").create())
    record = servers.first.load("c1")
    assert record is not None
    assert record.step == 2, "what was refused wrote nothing"
    assert servers.first.children("c1") == ("c1-a1",)


def test_a_refused_part_takes_the_others_of_its_commit_with_it(servers: Servers) -> None:
    draft = CommitBuilder.stored(servers.first, "c1")
    successor = CommitBuilder("c2")
    assert owner_told(lambda: servers.second.commit(successor.create(), draft.next())) == FIRST
    assert servers.first.load("c2") is None
    servers.first.commit(CommitBuilder("c2").create())
    assert owner_told(lambda: servers.second.claim("c2")) == FIRST


def test_what_a_dead_server_owned_is_claimed_by_family_and_its_late_writes_are_refused(servers: Servers) -> None:
    draft, agent = CommitBuilder("c1"), CommitBuilder("c1-a1", parent_conversation_id="c1", user_initiated=False)
    other = CommitBuilder("c2")
    servers.first.commit(draft.create(), other.create())
    servers.first.commit(draft.next(), agent.create())
    servers.kill(FIRST.incarnation)
    taken = servers.second.claim("c1-a1")
    assert taken is not None
    assert taken.step == 1
    for late in (draft.next(), agent.next(), other.next(), CommitBuilder("c9").create()):
        owner_told(partial(servers.first.commit, late))
    for id_ in ("c1", "c1-a1", "c2"):
        owner_told(partial(servers.first.claim, id_))
    owner_told(partial(servers.first.delete, "c2"))
    own = CommitBuilder("c1")
    own.record = servers.second.claim("c1") or own.record
    servers.second.commit(own.next())
    assert owner_told(partial(servers.first.commit, draft.next())) in (SECOND, None), "its owner comes before its step"
    assert owner_told(lambda: servers.third().claim("c1")) == SECOND, "its family came with it"
    assert servers.third().load("c9") is None


def test_a_conversation_that_nobody_owns_takes_no_writes_until_it_is_claimed(servers: Servers) -> None:
    draft = CommitBuilder.stored(servers.first, "c1")
    servers.kill(FIRST.incarnation)
    commit = draft.next()
    assert owner_told(lambda: servers.second.commit(commit)) is None
    assert owner_told(lambda: servers.second.delete("c1")) is None
    assert servers.second.prune_log("c1", 1) == 0, "anybody may prune it"
    assert servers.second.claim("c1") is not None
    servers.second.commit(commit)


def test_a_server_recovers_only_its_own(servers: Servers) -> None:
    servers.first.commit(busy(CommitBuilder("c1")))
    servers.second.commit(busy(CommitBuilder("c2")), CommitBuilder("c3").create())
    assert (servers.first.unsettled(), servers.second.unsettled()) == (("c1",), ("c2",))
    servers.kill(FIRST.incarnation)
    assert servers.second.unsettled() == ("c2",)
    servers.second.claim("c1")
    assert sorted(servers.second.unsettled()) == ["c1", "c2"]


def test_a_claim_tells_of_all_that_is_unsettled_in_the_family_if_its_owner_has_changed(servers: Servers) -> None:
    parent = CommitBuilder("c1")
    servers.first.commit(busy(parent), CommitBuilder("c2").create())
    for number in (1, 2):
        agent = CommitBuilder(f"c1-a{number}", parent_conversation_id="c1", user_initiated=False)
        servers.first.commit(busy(agent) if number == 1 else replace(agent.create(), record=_completed(agent)))
    taken: list[tuple[str, ...]] = []
    assert servers.first.claim("c1", taken.append) is not None
    assert taken == [], "it was its own already"
    with pytest.raises(ports.NotOwnerError):
        servers.second.claim("c1-a1", taken.append)
    assert taken == []
    servers.kill(FIRST.incarnation)
    assert servers.second.claim("c1-a2", taken.append) is not None
    assert [sorted(each) for each in taken] == [["c1", "c1-a1"]]
    assert servers.second.claim("c1", taken.append) is not None
    assert servers.second.claim("c2", taken.append) is not None
    assert len(taken) == 1, "once, and never without any"


def test_a_fork_of_a_conversation_of_another_server_is_ones_own(servers: Servers) -> None:
    origin = CommitBuilder.stored(servers.first, "c1")
    servers.first.commit(origin.next())
    fork = CommitBuilder("c2", revision=origin.record.revision)
    copied = ports.ForkedHistory("c1", origin.record.revision, (), ())
    servers.second.commit(replace(fork.create(command=ports.CommandRecord("fork", "hash", b"{}", 1)), fork=copied))
    assert owner_told(lambda: servers.first.claim("c2")) == SECOND
    servers.first.commit(origin.next())


def test_a_deleted_conversation_has_no_owner(servers: Servers) -> None:
    servers.first.commit(CommitBuilder("c1").create())
    servers.first.delete("c1")
    assert servers.second.claim("c1") is None
    servers.second.delete("c1")
    servers.second.commit(CommitBuilder("c1").create())
    assert owner_told(lambda: servers.first.claim("c1")) == SECOND
