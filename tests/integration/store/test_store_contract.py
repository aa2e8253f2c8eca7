"""What every store promises, whatever it is made of."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from actors import ports
from actors.adapters.store.store import SqlStore
from actors.core.content import (
    Image,
    Message,
    MessageType,
    Reasoning,
    SubAgentComplete,
    SystemKind,
    Text,
    ToolCancelled,
    ToolError,
    ToolOutcome,
    ToolSuccess,
    ToolUse,
    Usage,
)
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, Budget, FollowUpPolicy, Mode, Profile
from actors.core.notifications import Fate, MessageAdded, QueueChanged, RunStop, StopReason
from actors.core.states import Completed, ContextExhausted, Failed, Idle, Ledger, QueuedInput
from actors.ports.records import AuditEntry, AuditFilter, CallDecision, CommandOrigin, LogAudit, Outcome
from actors.ports.store import UNARCHIVED, IsArchived, Selection
from tests.integration.store.conftest import SECONDS, Gate
from tests.support.commit_builder import CHANGED, CommitBuilder, message_of, record_of
from tests.support.patience import eventually
from tests.support.samples import REPORTS, STATES

IMAGE = Image("sha256-1", "image/png", 10, 20)
CALL = ToolUse("t1", "bash", '{"command": "ls"}')


def command(request_id: str) -> ports.CommandRecord:
    return ports.CommandRecord(request_id, f"hash of {request_id}", b'{"answer":"\xc3\xa9"}', 12)


def stored(store: ports.Store, conversation_id: str) -> tuple[Any, ...]:
    """Everything of a conversation that a refusal must leave as it was."""
    record = store.load(conversation_id)
    events = store.events(conversation_id, after=0, limit=1_000)
    return (
        record,
        store.history(conversation_id, 1_000),
        events,
        store.transitions(conversation_id, after_step=0, limit=99),
    )


def at_once(store: ports.Store, gate: Gate, calls: Sequence[Callable[[], object]]) -> list[BaseException | None]:
    """Let these wait behind a change that is held, so that one transaction writes them; what each raised."""
    gate.close()
    with ThreadPoolExecutor(len(calls) + 1) as threads:
        first = threads.submit(store.delete, "nobody")
        gate.wait_until_held()
        running = [threads.submit(call) for call in calls]
        eventually(lambda: cast("SqlStore", store).waiting == len(calls), "they wait")
        gate.open()
        first.result(SECONDS)
        return [future.exception(SECONDS) for future in running]


# --- records --------------------------------------------------------------------------------------------------


MORE_STATES = {
    "with_results": replace(STATES["tool_executing"], completed_results=(ToolError("t0", "no"),)),
    "with_reports": replace(STATES["awaiting_sub_agents"], completed_results=REPORTS),
}


def test_a_record_comes_back_as_it_was_in_every_state(store: ports.Store) -> None:
    for name, state in (STATES | MORE_STATES).items():
        draft = CommitBuilder.stored(store, name)
        store.commit(draft.next(messages=0, state=state, state_updated_at=77))
        assert store.load(name) == replace(draft.record, log_hash=loaded(store, name).log_hash), name


def loaded(store: ports.Store, conversation_id: str) -> ports.ConversationRecord:
    record = store.load(conversation_id)
    assert record is not None
    return record


RULES = (
    ApprovalRule("r1", Action.ALLOW, tool="bash", created_at=4, creator="somebody"),
    ApprovalRule("r2", Action.DENY, command_prefix="git push", words=("git", "push")),
    ApprovalRule("r3", Action.ASK, path="/wörk"),
)


def test_every_field_of_a_record_comes_back(store: ports.Store) -> None:
    store.commit(CommitBuilder("parent").create(), CommitBuilder("before", slug="").create())
    draft = CommitBuilder(
        "c1",
        slug="a-slug",
        parent_conversation_id="parent",
        user_initiated=False,
        archived_at=33,
        title="Títle",
        labels={"team": "x", "ü": ""},
        system_prompt="You are.",
        approval_policy=ApprovalPolicy.ASK_ALL,
        approval_rules=RULES,
        follow_up_policy=FollowUpPolicy.COMPLETED_ONLY,
        budget=Budget(1, 2, 3),
        continued_from="before",
        continued_by="after",
        node="node-1",
        epoch=4,
        workspace_label="host-7",
        mode=Mode.UNRESTRICTED,
        principal="somebody",
        profile=Profile("Sell flowers.", replaces_prompt=True, tools=()),
    )
    store.commit(draft.create())
    assert store.load("c1") == replace(draft.record, log_hash=loaded(store, "c1").log_hash)
    assert store.owner("c1") == draft.record.principal


def test_what_never_changes_is_not_changed_by_a_commit(store: ports.Store) -> None:
    draft = CommitBuilder.stored(store, "c1", system_prompt="frozen")
    store.commit(draft.next(system_prompt="other", cwd="/elsewhere", principal="thief", created_at=9))
    record = loaded(store, "c1")
    assert (record.system_prompt, record.cwd, record.principal, record.created_at) == ("frozen", "/work", "local", 1)


def test_a_profile_changes_only_with_a_commit_that_says_so(store: ports.Store) -> None:
    draft = CommitBuilder.stored(store, "c1")
    for chosen in (Profile("Sell flowers."), Profile("Sell flowers.", tools=("think",)), Profile()):
        store.commit(replace(draft.next(profile=chosen), profile_changed=True))
        store.commit(draft.next(profile=Profile("unsaid")))
        (listed,) = store.list(Selection("local", UNARCHIVED), limit=9).records
        assert listed.profile == loaded(store, "c1").profile == chosen
    assert not store.verify("c1")


def test_unknown_ids_are_simply_not_there(store: ports.Store) -> None:
    assert (store.load("no"), store.owner("no")) == (None, None)
    assert store.find_slug("local", "no") is None
    assert store.find_slug("local", "") is None
    assert store.snapshot("no", 5) is None
    assert not store.history("no", 5)
    assert not store.events("no", after=0, limit=5)
    assert not store.transitions("no", after_step=0, limit=5)
    assert store.children("no") == store.verify("no") == ()
    assert store.command("no", "r") is store.create_command("no", "r") is None
    assert store.attachment("no", "a") is None
    store.delete("no")
    assert store.prune_log("no", 7) == 0


def test_slugs_are_unique_may_change_and_may_be_absent(store: ports.Store) -> None:
    one, two = CommitBuilder("c1", slug="one"), CommitBuilder("c2", slug="two")
    store.commit(one.create())
    store.commit(two.create())
    store.commit(CommitBuilder("c3", slug="").create(), CommitBuilder("c4", slug="").create())
    with pytest.raises(ports.SlugTakenError):
        store.commit(CommitBuilder("c5", slug="one").create())
    before = stored(store, "c2")
    with pytest.raises(ports.SlugTakenError):
        store.commit(replace_slug(two, "one"))
    assert stored(store, "c2") == before
    store.commit(one.next(slug="uno"))
    assert [store.find_slug("local", slug) for slug in ("uno", "one", "two")] == ["c1", None, "c2"]
    assert loaded(store, "c3").slug == ""


def test_each_principal_has_slugs_of_its_own(store: ports.Store) -> None:
    ours, theirs = CommitBuilder("c1", slug="one"), CommitBuilder("c2", slug="one", principal="ada")
    store.commit(ours.create())
    store.commit(theirs.create())
    with pytest.raises(ports.SlugTakenError):
        store.commit(CommitBuilder("c3", slug="one", principal="ada").create())
    assert [store.find_slug(who, "one") for who in ("local", "ada", "bob")] == ["c1", "c2", None]
    store.commit(theirs.next(slug="two"))
    assert [store.find_slug(who, "two") for who in ("local", "ada")] == [None, "c2"]


def replace_slug(draft: CommitBuilder, slug: str) -> ports.Commit:
    """The draft's next commit with another slug; the draft itself stays as it is."""
    before = draft.record
    commit = draft.next(slug=slug)
    draft.record = before
    return commit


# --- fencing --------------------------------------------------------------------------------------------------


@pytest.fixture
def grown(store: ports.Store) -> CommitBuilder:
    """A conversation at step 3 of epoch 2."""
    draft = CommitBuilder.stored(store, "c1", epoch=2)
    store.commit(draft.next())
    store.commit(draft.next(messages=2))
    return draft


def _stale_step(draft: CommitBuilder) -> ports.Commit:
    draft.record = replace(draft.record, step=draft.record.step - 1)
    return draft.next(messages=0)


def _future_step(draft: CommitBuilder) -> ports.Commit:
    draft.record = replace(draft.record, step=draft.record.step + 1)
    return draft.next(messages=0)


def _other_revision(draft: CommitBuilder) -> ports.Commit:
    draft.record = replace(draft.record, revision=draft.record.revision + 1)
    return draft.next(messages=0)


def _older_epoch(draft: CommitBuilder) -> ports.Commit:
    return draft.next(messages=0, epoch=1)


def _gone(draft: CommitBuilder) -> ports.Commit:
    draft.record = replace(draft.record, id="gone")
    return draft.next(messages=0)


def _repeated_sequence(draft: CommitBuilder) -> ports.Commit:
    commit = draft.next()
    return replace(commit, messages=(message_of(2, id="another"),))


def _there_already(draft: CommitBuilder) -> ports.Commit:
    return CommitBuilder(draft.id, slug="other").create()


def _orphan(draft: CommitBuilder) -> ports.Commit:
    return CommitBuilder("c2", parent_conversation_id="gone").create()


FENCED = (_stale_step, _future_step, _other_revision, _older_epoch, _gone, _repeated_sequence, _there_already, _orphan)


@pytest.mark.parametrize("misfit", FENCED)
def test_what_does_not_follow_is_fenced_and_changes_nothing(
    store: ports.Store, grown: CommitBuilder, misfit: Callable[[CommitBuilder], ports.Commit]
) -> None:
    before = stored(store, "c1")
    with pytest.raises(ports.FencedError):
        store.commit(misfit(grown))
    assert stored(store, "c1") == before
    assert store.verify("c1") == ()


@pytest.mark.parametrize("misfit", FENCED)
def test_what_does_not_follow_is_fenced_alone_among_others_that_wait_with_it(
    store: ports.Store, gate: Gate, grown: CommitBuilder, misfit: Callable[[CommitBuilder], ports.Commit]
) -> None:
    others = [CommitBuilder(f"o{number}") for number in range(8)]
    for other in others:
        store.commit(other.create())
    before = stored(store, "c1")
    commits = [misfit(grown), *(other.next() for other in others)]
    outcome = at_once(store, gate, [lambda commit=commit: store.commit(commit) for commit in commits])  # type: ignore[misc]
    assert isinstance(outcome[0], ports.FencedError)
    assert outcome[1:] == [None] * len(others)
    assert stored(store, "c1") == before
    assert all(loaded(store, other.id).step == 2 and store.verify(other.id) == () for other in others)


def test_a_commit_without_a_log_row_takes_a_conversation_over(store: ports.Store, grown: CommitBuilder) -> None:
    claim = replace(grown.record, epoch=3, node="other")
    store.commit(ports.Commit(claim, grown.record.step))
    assert (loaded(store, "c1").epoch, loaded(store, "c1").node) == (3, "other")
    assert store.verify("c1") == ()
    with pytest.raises(ports.FencedError):
        store.commit(grown.next())


@pytest.mark.parametrize(
    "broken",
    [
        lambda commit: replace(commit, expected_step=commit.expected_step + 1),
        lambda commit: replace(commit, log=commit.log[1:]),
        lambda commit: replace(commit, log=commit.log[:1]),
        lambda commit: replace(commit, log=commit.log[::-1]),
        lambda commit: replace(commit, record=replace(commit.record, revision=99)),
        lambda commit: replace(commit, record=replace(commit.record, step=99)),
        lambda commit: replace(commit, log=(commit.log[0], replace(commit.log[1], first_revision=99))),
        lambda commit: replace(commit, create=True),
    ],
)
def test_a_commit_that_contradicts_itself_is_refused(
    store: ports.Store, grown: CommitBuilder, broken: Callable[[ports.Commit], ports.Commit]
) -> None:
    before = stored(store, "c1")
    with pytest.raises(ValueError, match="c1"):
        store.commit(broken(grown.next(steps=2)))
    assert stored(store, "c1") == before


# --- atomicity ------------------------------------------------------------------------------------------------


def test_parts_of_one_commit_are_written_all_or_none(store: ports.Store, grown: CommitBuilder) -> None:
    before = stored(store, "c1")
    fine, child = (
        grown.next(command=command("r1")),
        CommitBuilder("child", parent_conversation_id="c1", user_initiated=False),
    )
    with pytest.raises(ports.SlugTakenError):
        store.commit(fine, child.create(), CommitBuilder("other", slug="c1").create())
    assert stored(store, "c1") == before
    assert store.load("child") is store.load("other") is None
    assert store.command("c1", "r1") is None
    store.commit(fine, CommitBuilder("child", parent_conversation_id="c1", user_initiated=False).create())
    assert store.children("c1") == ("child",)
    assert store.command("c1", "r1") == command("r1")


def test_two_parts_of_one_commit_may_follow_each_other(store: ports.Store, grown: CommitBuilder) -> None:
    store.commit(grown.next(), grown.next())
    assert loaded(store, "c1").step == 5
    assert store.verify("c1") == ()


def test_a_chain_of_transitions_is_one_commit(store: ports.Store) -> None:
    draft = CommitBuilder("c1")
    store.commit(draft.create(steps=3))
    store.commit(draft.next(steps=4, messages=2))
    assert [row.step for row in store.transitions("c1", after_step=0, limit=99)] == [1, 2, 3, 4, 5, 6, 7]
    assert store.verify("c1") == ()


@pytest.mark.parametrize("point", ["store.before_begin", "store.before_commit"])
def test_a_failure_before_the_commit_leaves_everything_as_it_was(
    store: ports.Store, gate: Gate, grown: CommitBuilder, point: str
) -> None:
    before, commit = stored(store, "c1"), grown.next(command=command("r1"))
    gate.failing[point] = OSError("disk on fire")
    with pytest.raises(ports.StoreUnavailableError, match="disk on fire"):
        store.commit(commit)
    assert stored(store, "c1") == before
    store.commit(commit)
    assert loaded(store, "c1").step == 4
    assert store.verify("c1") == ()


def test_a_failure_after_the_commit_is_reported_though_it_is_stored(
    store: ports.Store, gate: Gate, grown: CommitBuilder
) -> None:
    commit = grown.next()
    gate.failing["store.after_commit"] = OSError("too late")
    with pytest.raises(ports.StoreUnavailableError):
        store.commit(commit)
    assert loaded(store, "c1").step == 4
    with pytest.raises(ports.FencedError):
        store.commit(commit)
    assert store.transitions("c1", after_step=3, limit=9)[0].event == commit.log[0].event


# --- messages -------------------------------------------------------------------------------------------------

EVERY_MESSAGE = (
    Message("u", 1, MessageType.USER, (Text("héllo\n\x00"), IMAGE), 5, run="c1:1", delivery="direct"),
    Message(
        "a",
        2,
        MessageType.AGENT,
        (Reasoning("hm", "anthropic", "m", '{"x":1}'), Text("ok"), CALL),
        6,
        run="c1:1",
        request_id="c1:r1",
        attempt=2,
        through_sequence=1,
        usage=Usage(1, 2, 3, 4, 5),
    ),
    Message("t1", 3, MessageType.TOOL, (ToolSuccess("t1", "out", (IMAGE,), '{"diff": 1}', 12),), 7),
    Message("t2", 4, MessageType.TOOL, (ToolError("t2", "bad", ToolOutcome.DENIED, 1, "{}"),), 8),
    Message("t3", 5, MessageType.TOOL, (ToolCancelled("t3", "Cancelled by user", ToolOutcome.SKIPPED),), 9),
    Message("t4", 6, MessageType.TOOL, (SubAgentComplete("t4", "done", False, ToolOutcome.ERROR),), 10),
    Message("s", 7, MessageType.SYSTEM, (Text("mode"),), 11, kind=SystemKind.MODE_RESTRICTED, meta=True),
    Message("e", 8, MessageType.ERROR, (Text("failed"),), 12, error_kind="network"),
)


def test_every_kind_of_message_comes_back_as_it_was(store: ports.Store) -> None:
    draft = CommitBuilder.stored(store, "c1")
    store.commit(replace(draft.next(messages=0, events=()), messages=EVERY_MESSAGE))
    assert store.history("c1", 8) == EVERY_MESSAGE


@pytest.fixture
def ten(store: ports.Store) -> tuple[Message, ...]:
    """A conversation with ten messages, beside another one."""
    draft, other = CommitBuilder("c1"), CommitBuilder("c2")
    store.commit(draft.create(), other.create())
    for _ in range(5):
        store.commit(draft.next(messages=2), other.next())
    return tuple(message_of(sequence) for sequence in range(1, 11))


def test_messages_are_paged_in_both_directions(store: ports.Store, ten: tuple[Message, ...]) -> None:
    assert store.messages("c1", limit=3) == ten[:3]
    assert [store.message("c1", each) for each in (ten[4].id, "none", "")] == [ten[4], None, None]
    assert store.message("c2", ten[9].id) is store.message("c3", ten[4].id) is None
    assert store.messages("c1", after=3, limit=3) == ten[3:6]
    assert store.messages("c1", after=3, before=6, limit=9) == ten[3:5]
    assert store.messages("c1", limit=3, descending=True) == ten[:-4:-1]
    assert store.messages("c1", before=8, limit=2, descending=True) == (ten[6], ten[5])
    assert store.messages("c1", after=10, limit=3) == store.messages("c1", before=1, limit=3) == ()


def test_history_is_everything_up_to_a_message(store: ports.Store, ten: tuple[Message, ...]) -> None:
    assert store.history("c1", 10) == ten
    assert store.history("c1", 4) == ten[:4]
    assert store.history("c1", 0) == ()


def test_a_snapshot_has_the_record_and_the_latest_messages_in_order(
    store: ports.Store, ten: tuple[Message, ...]
) -> None:
    assert store.snapshot("c1", 3) == ports.Snapshot(loaded(store, "c1"), ten[-3:])
    assert store.snapshot("c1", 99) == ports.Snapshot(loaded(store, "c1"), ten)
    assert store.snapshot("c1", 0) == ports.Snapshot(loaded(store, "c1"), ())


def test_a_message_id_is_unique_in_its_conversation_only(store: ports.Store, grown: CommitBuilder) -> None:
    other = CommitBuilder.stored(store, "c2")
    store.commit(other.next())
    before = stored(store, "c1")
    with pytest.raises(ports.CommandExistsError):
        store.commit(replace(grown.next(), messages=(message_of(4, id="m1"),)))
    assert stored(store, "c1") == before
    assert store.history("c2", 9) == (message_of(1),)


# --- events ---------------------------------------------------------------------------------------------------


@pytest.fixture
def eventful(store: ports.Store) -> CommitBuilder:
    """A conversation whose transitions have 0 to 4 events each: 23 in all, the last one alone."""
    draft = CommitBuilder.stored(store, "c1")
    for number in range(11):
        stops = tuple(RunStop(f"c1:{number}", StopReason.COMPLETED, str(index)) for index in range(number % 4))
        store.commit(draft.next(messages=number % 3 // 2, events=stops))
    store.commit(draft.next(messages=0, events=()))
    store.commit(draft.next(messages=0, events=(CHANGED,)))
    return draft


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_events_come_in_order_without_gap_or_repeat_however_they_are_paged(
    store: ports.Store, eventful: CommitBuilder, limit: int
) -> None:
    whole = store.events("c1", after=0, limit=1_000)
    paged: list[ports.StoredEvent] = []
    while page := store.events("c1", after=paged[-1].revision if paged else 0, limit=limit):
        assert len(page) == min(limit, len(whole) - len(paged)), "only the last page may be short"
        paged.extend(page)
    assert tuple(paged) == whole
    assert [event.revision for event in whole] == list(range(1, eventful.record.revision + 1))


def test_an_event_carries_its_notification_and_time(store: ports.Store) -> None:
    draft = CommitBuilder.stored(store, "c1")
    commit = draft.next()
    store.commit(commit)
    found = store.events("c1", after=1, limit=9)
    assert [(event.revision, event.at) for event in found] == [(2, 5_002), (3, 5_002)]
    assert [event.notification for event in found] == [MessageAdded(message_of(1)), CHANGED]


def test_events_that_were_pruned_are_too_old_and_the_rest_is_there(store: ports.Store, eventful: CommitBuilder) -> None:
    whole = store.events("c1", after=0, limit=1_000)
    store.prune_log("c1", 9)
    first = store.transitions("c1", after_step=0, limit=1)[0].first_revision
    assert 1 < first <= 9
    for after in range(len(whole)):
        if after < first - 1:
            with pytest.raises(ports.RevisionTooOldError) as refused:
                store.events("c1", after=after, limit=1)
            assert refused.value.oldest == first - 1
        else:
            assert store.events("c1", after=after, limit=1_000) == whole[after:]
    assert store.verify("c1") == ()


def test_the_latest_event_is_never_pruned(store: ports.Store, eventful: CommitBuilder) -> None:
    last = eventful.record.revision
    store.prune_log("c1", 1_000)
    assert [event.revision for event in store.events("c1", after=last - 1, limit=9)] == [last]
    with pytest.raises(ports.RevisionTooOldError):
        store.events("c1", after=0, limit=9)
    store.commit(eventful.next())
    assert store.verify("c1") == ()


# --- how runs and waits ended -------------------------------------------------------------------------------------


def stop(number: int, reason: StopReason = StopReason.COMPLETED, detail: str = "", message: str = "") -> RunStop:
    return RunStop(f"c1:{number}", reason, detail, message)


def fate(message_id: str, ended: Fate, delivery: str = "follow_up") -> QueueChanged:
    return QueueChanged(QueuedInput(message_id, "then — this", (IMAGE,), 7), delivery, ended)


@pytest.fixture
def outcomes(store: ports.Store) -> tuple[tuple[ports.StoppedRun, ...], tuple[ports.SettledInput, ...]]:
    """A conversation with stopped runs and settled inputs: what is to be found of it."""
    draft = CommitBuilder.stored(store, "c1")
    store.commit(draft.next(messages=2, events=(fate("f1", Fate.QUEUED), fate("s1", Fate.QUEUED, "steer"))))
    store.commit(
        draft.next(messages=0, events=(fate("s1", Fate.RETURNED, "steer"), stop(1, StopReason.ERROR, "auth", "No.")))
    )
    delivered = draft.next(messages=3, steps=2, events=(fate("m4", Fate.DELIVERED), stop(2)))
    store.commit(replace(delivered, messages=tuple(replace(each, run="c1:2") for each in delivered.messages)))
    runs = (
        ports.StoppedRun(7, 5_003, stop(1, StopReason.ERROR, "auth", "No."), 2),
        ports.StoppedRun(12, 5_004, stop(2), 5),
        ports.StoppedRun(14, 5_005, stop(2), 5),
    )
    fates = (
        ports.SettledInput(6, 5_003, fate("s1", Fate.RETURNED, "steer"), ""),
        ports.SettledInput(11, 5_004, fate("m4", Fate.DELIVERED), "c1:2"),
        ports.SettledInput(13, 5_005, fate("m4", Fate.DELIVERED), "c1:2"),
    )
    return runs, fates


def test_the_ends_of_runs_and_waits_outlive_the_log(
    store: ports.Store, outcomes: tuple[tuple[ports.StoppedRun, ...], tuple[ports.SettledInput, ...]]
) -> None:
    runs, fates = outcomes
    for _ in range(2):
        assert store.stopped_runs("c1", limit=9) == runs
        assert store.settled_inputs("c1", limit=9) == fates
        assert [store.stopped_run("c1", f"c1:{number}") for number in (1, 2, 3)] == [runs[0], runs[2], None]
        assert store.stopped_run("c2", "c1:1") is None
        store.prune_log("c1", 1_000)
    assert [*store.stopped_runs("c2", limit=9), *store.settled_inputs("c2", limit=9)] == []
    store.delete("c1")
    assert [*store.stopped_runs("c1", limit=9), *store.settled_inputs("c1", limit=9)] == []
    assert store.stopped_run("c1", "c1:1") is None


def test_the_ends_of_runs_and_waits_are_read_in_pages_both_ways(
    store: ports.Store, outcomes: tuple[tuple[ports.StoppedRun, ...], tuple[ports.SettledInput, ...]]
) -> None:
    reads: tuple[Callable[..., tuple[Any, ...]], ...] = (store.stopped_runs, store.settled_inputs)
    wholes: tuple[tuple[Any, ...], ...] = outcomes
    for read, whole in zip(reads, wholes, strict=True):
        assert read("c1", limit=2) == whole[:2]
        assert read("c1", after=whole[0].revision, limit=9) == whole[1:]
        assert read("c1", before=whole[2].revision, limit=9) == whole[:2]
        assert read("c1", limit=2, descending=True) == whole[:0:-1]
        assert read("c1", before=whole[1].revision, limit=2, descending=True) == whole[:1]


def test_the_ends_of_runs_and_waits_are_kept_of_commits_that_are_written_together(
    store: ports.Store, gate: Gate
) -> None:
    drafts = [CommitBuilder(f"d{number}") for number in range(3)]
    for draft in drafts:
        store.commit(draft.create())
    events = (fate("f1", Fate.QUEUED), fate("f1", Fate.DELIVERED), stop(1))
    commits = [draft.next(events=events) for draft in drafts]
    assert at_once(store, gate, [partial(store.commit, commit) for commit in commits]) == [None] * 3
    for draft in drafts:
        assert [run.stop for run in store.stopped_runs(draft.id, limit=9)] == [stop(1)]
        assert [each.outcome.fate for each in store.settled_inputs(draft.id, limit=9)] == [Fate.DELIVERED]


# --- the journal ----------------------------------------------------------------------------------------------


def test_the_journal_has_inputs_contexts_and_a_chain_of_hashes(store: ports.Store) -> None:
    draft = CommitBuilder("c1", epoch=5)
    commits = [draft.create(), draft.next(context=b'{"mode":"restricted"}'), draft.next(events=(), messages=0)]
    for commit in commits:
        store.commit(commit)
    rows = store.transitions("c1", after_step=0, limit=9)
    assert [row.event for row in rows] == [commit.log[0].event for commit in commits]
    assert [row.context for row in rows] == [None, b'{"mode":"restricted"}', None]
    assert [row.notifications for row in rows] == [commit.log[0].notifications for commit in commits]
    assert [row.epoch for row in rows] == [5, 5, 5]
    assert [row.prev_hash for row in rows] == ["", rows[0].hash, rows[1].hash]
    assert len({row.hash for row in rows}) == 3
    assert loaded(store, "c1").log_hash == rows[-1].hash
    assert store.transitions("c1", after_step=1, limit=1) == rows[1:2]


def test_the_store_fills_the_hash_in_whatever_the_record_says(store: ports.Store, grown: CommitBuilder) -> None:
    store.commit(grown.next(log_hash="made up"))
    assert loaded(store, "c1").log_hash == store.transitions("c1", after_step=3, limit=1)[0].hash
    assert store.verify("c1") == ()


# --- commands -------------------------------------------------------------------------------------------------


def test_a_command_is_remembered_for_its_conversation(store: ports.Store, grown: CommitBuilder) -> None:
    store.commit(grown.next(command=command("r1")))
    assert store.command("c1", "r1") == command("r1")
    assert store.command("c2", "r1") is store.create_command("local", "r1") is store.command("c1", "r2") is None


def test_a_create_command_is_remembered_for_its_principal(store: ports.Store) -> None:
    store.commit(CommitBuilder("c1").create(command=command("r1")))
    assert store.create_command("local", "r1") == command("r1")
    assert store.command("c1", "r1") is store.create_command("other", "r1") is None
    store.commit(CommitBuilder("c2", principal="other").create(command=command("r1")))
    with pytest.raises(ports.CommandExistsError):
        store.commit(CommitBuilder("c3").create(command=command("r1")))
    assert store.load("c3") is None


@pytest.mark.parametrize("grouped", [False, True])
def test_a_command_is_accepted_once(store: ports.Store, gate: Gate, grown: CommitBuilder, grouped: bool) -> None:
    store.commit(grown.next(command=command("r1")))
    other = CommitBuilder.stored(store, "c2")
    before = stored(store, "c1")
    again, fine = grown.next(command=command("r1")), other.next(command=command("r1"))
    commits = [lambda: store.commit(again), lambda: store.commit(fine)]
    outcome = at_once(store, gate, commits) if grouped else [_raised(commit) for commit in commits]
    assert isinstance(outcome[0], ports.CommandExistsError)
    assert outcome[1] is None
    assert stored(store, "c1") == before
    assert store.command("c2", "r1") == command("r1")


def _raised(commit: Callable[[], None]) -> BaseException | None:
    try:
        commit()
    except ports.StoreError as error:
        return error
    return None


# --- forks ----------------------------------------------------------------------------------------------------


def a_fork(origin: CommitBuilder, *attachments: str, revision: int = 7) -> ports.Commit:
    """The first commit of a fork that has two messages and one run."""
    stop = RunStop("f:1", StopReason.COMPLETED)
    taken = ports.ForkedHistory(origin.id, revision, (ports.StoppedRun(revision, 5, stop, 2),), attachments)
    messages = (message_of(1), message_of(2))
    record = record_of("f", state=Idle(Ledger(run=1, seq=2)), step=1, epoch=1, revision=revision)
    entry = ports.LogEntry(1, 1, b'{"type":"test"}', revision + 1, ())
    return ports.Commit(record, 0, messages, (entry,), create=True, fork=taken)


@pytest.mark.parametrize("grouped", [False, True])
def test_what_principals_spend_is_summed_by_day_and_outlives_the_conversation(
    store: ports.Store, gate: Gate, grouped: bool
) -> None:
    builders = [CommitBuilder(name) for name in ("s1", "s2", "s3")]
    store.commit(*(builder.create() for builder in builders))
    spendings = (ports.Spending("ada", 7, 10, 1), ports.Spending("ada", 7, 5, 2), ports.Spending("bob", 8, 3, 0))
    parts = [replace(builder.next(), spending=each) for builder, each in zip(builders, spendings, strict=True)]
    commits: list[Callable[[], None]] = [partial(store.commit, part) for part in parts]
    assert (at_once(store, gate, commits) if grouped else [_raised(commit) for commit in commits]) == [None] * 3
    with pytest.raises(ports.FencedError):
        store.commit(replace(parts[0], spending=ports.Spending("eve", 9, 1, 1)))
    store.delete("s1")
    store.put_spending(ports.Spending("ada", 7, 2, 2))
    store.put_spending(ports.Spending("bob", 9, 1, 0))
    assert sorted(store.spendings(0), key=lambda each: each.day) == [
        ports.Spending("ada", 7, 17, 5),
        ports.Spending("bob", 8, 3, 0),
        ports.Spending("bob", 9, 1, 0),
    ]
    assert store.spendings(9) == (ports.Spending("bob", 9, 1, 0),)


def test_stored_bytes_are_those_of_the_messages_attachments_and_profiles_of_a_principal(
    store: ports.Store, grown: CommitBuilder
) -> None:
    size = sum(len(msgspec.json.encode(message.content)) for message in store.messages(grown.id, limit=100))
    assert size > 0
    assert (store.stored_bytes("local"), store.stored_bytes("other")) == (size, 0)
    store.put_attachment(grown.id, ports.Attachment("sha256-1", "image/png", b"bytes", 1, 1))
    assert store.stored_bytes("local") == size + 5
    assert store.stored_bytes("") >= size + 5
    profile = Profile(instructions="Be brief. " * 100)
    CommitBuilder.stored(store, "c2", principal="bob", profile=profile)
    assert store.stored_bytes("bob") == len(msgspec.json.encode(profile)), (
        "else conversations without messages are free"
    )
    store.delete(grown.id)
    assert store.stored_bytes("local") == 0


def test_a_fork_begins_after_a_revision_of_its_origin(store: ports.Store, grown: CommitBuilder) -> None:
    store.commit(a_fork(grown))
    assert store.messages("f", limit=9) == (message_of(1), message_of(2))
    assert [run.stop.run for run in store.stopped_runs("f", limit=9)] == ["f:1"]
    assert store.verify("f") == ()
    with pytest.raises(ports.RevisionTooOldError) as old:
        store.events("f", after=3, limit=9)
    assert old.value.oldest == 7
    assert store.events("f", after=7, limit=9) == ()
    draft = CommitBuilder("f")
    draft.record = loaded(store, "f")
    for _ in range(3):
        store.commit(draft.next())
    assert [event.revision for event in store.events("f", after=7, limit=2)] == [8, 9]
    with pytest.raises(ports.RevisionTooOldError):
        store.events("f", after=0, limit=9)
    assert store.verify("f") == ()
    while store.prune_log("f", 10):
        pass
    assert store.verify("f") == ()


def test_a_fork_keeps_the_attachments_of_its_origin(store: ports.Store, grown: CommitBuilder) -> None:
    pictures = [ports.Attachment(f"sha256-{number}", "image/png", b"x" * number, 1, 2) for number in (1, 2, 3)]
    for picture in pictures:
        store.put_attachment("c1", picture)
    store.commit(a_fork(grown, "sha256-1", "sha256-3", "sha256-9"))
    store.delete("c1")
    found = [store.attachment("f", f"sha256-{number}") for number in (1, 2, 3, 9)]
    assert found == [pictures[0], None, pictures[2], None]
    assert store.verify("f") == ()


def test_a_fork_of_what_does_not_exist_is_refused(store: ports.Store, grown: CommitBuilder) -> None:
    store.delete("c1")
    with pytest.raises(ports.FencedError):
        store.commit(a_fork(grown))
    assert store.load("f") is None


def test_only_a_new_conversation_is_a_fork(store: ports.Store, grown: CommitBuilder) -> None:
    with pytest.raises(ValueError, match="new conversation"):
        store.commit(replace(grown.next(), fork=a_fork(grown).fork))
    with pytest.raises(ValueError, match="first step"):
        store.commit(replace(a_fork(grown), fork=None))


# --- attachments ----------------------------------------------------------------------------------------------


def test_an_attachment_belongs_to_its_conversation(store: ports.Store, grown: CommitBuilder) -> None:
    picture = ports.Attachment("sha256-1", "image/png", bytes(range(256)) * 40, 3, 4)
    store.put_attachment("c1", picture)
    store.put_attachment("c1", picture)
    assert store.attachment("c1", "sha256-1") == picture
    assert store.attachment("c2", "sha256-1") is store.attachment("c1", "sha256-2") is None
    with pytest.raises(ports.FencedError):
        store.put_attachment("gone", picture)


# --- lists ----------------------------------------------------------------------------------------------------


@pytest.fixture
def listed(store: ports.Store) -> ports.Store:
    """c1 to c6, later ones updated later, c5 and c6 at the same time; two children; one archived; one foreign."""
    for number, updated_at in ((1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (6, 50)):
        store.commit(replace_updated(CommitBuilder(f"c{number}"), updated_at))
    for number in (1, 2):
        child = CommitBuilder(f"c1-a{number}", parent_conversation_id="c1", user_initiated=False)
        store.commit(replace_updated(child, number))
    store.commit(replace_updated(CommitBuilder("old", archived_at=5), 60))
    store.commit(replace_updated(CommitBuilder("foreign", principal="other"), 70))
    return store


def replace_updated(draft: CommitBuilder, updated_at: int) -> ports.Commit:
    commit = draft.create()
    return replace(commit, record=replace(commit.record, updated_at=updated_at))


def _ids(records: tuple[ports.ConversationRecord, ...]) -> list[str]:
    return [record.id for record in records]


def test_lists_show_the_latest_first_and_nothing_of_others(listed: ports.Store) -> None:
    found = listed.list(Selection("local", UNARCHIVED), limit=99).records
    assert _ids(found) == ["c6", "c5", "c4", "c3", "c2", "c1"]
    assert found[0] == listed.load("c6")
    assert _ids(listed.list(Selection("local", IsArchived(archived=True)), limit=9).records) == ["old"]
    assert _ids(listed.list(Selection("other", UNARCHIVED), limit=9).records) == ["foreign"]
    children = listed.list(Selection("local", parent="c1"), limit=9).records
    assert _ids(children) == ["c1-a2", "c1-a1"]


def test_children_are_the_sub_agents_of_a_conversation(listed: ports.Store) -> None:
    assert sorted(listed.children("c1")) == ["c1-a1", "c1-a2"]
    assert listed.children("c2") == ()


@pytest.mark.parametrize("sub_agent", [False, True])
def test_conversations_to_recover_at_a_restart_are_known(store: ports.Store, sub_agent: bool) -> None:
    at_rest = (ContextExhausted, Completed, Failed) if sub_agent else (Idle, ContextExhausted, Completed, Failed)
    store.commit(CommitBuilder("parent").create())
    for name, state in STATES.items():
        draft = CommitBuilder(name, state=state, parent_conversation_id="parent" if sub_agent else None)
        draft.record = replace(draft.record, user_initiated=not sub_agent)
        commit = draft.create()
        store.commit(replace(commit, record=replace(commit.record, state=state)))
    assert set(store.unsettled()) == {name for name, state in STATES.items() if not isinstance(state, at_rest)}


# --- deletion -------------------------------------------------------------------------------------------------


def test_what_is_deleted_is_hidden_at_once_but_for_its_create_command_and_takes_no_change(store: ports.Store) -> None:
    draft, other = CommitBuilder("c1"), CommitBuilder("c2")
    child = CommitBuilder("c1-a1", parent_conversation_id="c1", user_initiated=False, system_prompt="x")
    image = ports.Attachment("sha", "image/png", b"x", 1, 1)
    store.commit(draft.create(command=command("create")), other.create())
    store.commit(child.create())
    store.commit(draft.next(messages=40, command=command("r1")), child.next(messages=40, command=command("r1")))
    for id_ in ("c1", "c1-a1", "c2"):
        store.put_attachment(id_, image)
    store.delete("c1")
    for gone in ("c1", "c1-a1"):
        assert stored(store, gone) == (None, (), (), ())
        assert (store.owner(gone), store.snapshot(gone, 9), store.find_slug("local", gone)) == (None,) * 3
        assert (store.attachment(gone, "sha"), store.command(gone, "r1")) == (None, None)
        assert store.verify(gone) == store.children(gone) == ()
        assert store.prune_log(gone, 9) == 0
        with pytest.raises(ports.FencedError):
            store.put_attachment(gone, image)
    for left in (draft.next(), child.next(), CommitBuilder("c1-a2", parent_conversation_id="c1").create()):
        with pytest.raises(ports.FencedError):
            store.commit(left)
    assert _ids(store.list(Selection("local", UNARCHIVED), limit=9).records) == ["c2"]
    assert store.list(Selection("local", parent="c1"), limit=9).records == ()
    assert store.unsettled() == ()
    assert store.prunable(before=99_999, keep=0, limit=9) == ("c2",)
    assert store.create_command("local", "create") == command("create")
    store.commit(CommitBuilder("c3", slug="c1").create())
    assert store.find_slug("local", "c1") == "c3"
    store.delete("c1")
    assert store.attachment("c2", "sha") == image
    store.commit(CommitBuilder("c1", slug="").create())
    assert store.history("c1", 99) == ()


# --- concurrency ----------------------------------------------------------------------------------------------


def test_sixteen_conversations_commit_at_once_and_nothing_is_lost(store: ports.Store) -> None:
    def work(number: int) -> CommitBuilder:
        draft = CommitBuilder.stored(store, f"c{number}")
        for step in range(40):
            store.commit(draft.next(messages=step % 3), urgent=step % 7 == 0)
        return draft

    with ThreadPoolExecutor(16) as threads:
        drafts = list(threads.map(work, range(16), timeout=SECONDS))
    for draft in drafts:
        assert store.verify(draft.id) == ()
        assert replace(loaded(store, draft.id), log_hash="") == draft.record
        assert [message.sequence for message in store.history(draft.id, 99)] == list(range(1, 40))
        revisions = [event.revision for event in store.events(draft.id, after=0, limit=999)]
        assert revisions == list(range(1, draft.record.revision + 1))


def test_of_sixteen_owners_exactly_one_wins_every_step(store: ports.Store) -> None:
    CommitBuilder.stored(store, "c1")
    barrier = threading.Barrier(16)
    won: list[int] = []

    def work(_: int) -> None:
        for _ in range(15):
            mine = CommitBuilder("c1")
            mine.record = loaded(store, "c1")
            barrier.wait(SECONDS)
            try:
                store.commit(mine.next())
            except ports.FencedError:
                pass
            else:
                won.append(mine.record.step)
            barrier.wait(SECONDS)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(work, range(16), timeout=SECONDS))
    assert won == list(range(2, 17))
    assert store.verify("c1") == ()


def test_a_reader_never_sees_half_a_commit(store: ports.Store) -> None:
    draft, twin = CommitBuilder("c1"), CommitBuilder("c2")
    store.commit(draft.create(), twin.create())
    done = threading.Event()

    def write() -> None:
        try:
            for _ in range(60):
                store.commit(draft.next(messages=2), twin.next(messages=2))
        finally:
            done.set()

    def read() -> int:
        seen = 0
        while not done.is_set():
            head = loaded(store, "c2").step
            view = store.snapshot("c1", 1_000)
            assert view is not None
            seen = max(seen, len(view.messages))
            assert len(view.messages) == 2 * (view.record.step - 1) == view.record.state.ledger.seq
            assert view.record.step >= head
            events = store.events("c1", after=0, limit=10_000)
            assert len(events) >= view.record.revision
            assert (len(events) - 1) % 3 == 0
            told = [event.notification.message for event in events if isinstance(event.notification, MessageAdded)]
            assert store.history("c1", len(told)) == tuple(told)
        return seen

    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read) for _ in range(3)]
        threads.submit(write).result(SECONDS)
        assert all(reader.result(SECONDS) >= 0 for reader in readers)


# --- closing --------------------------------------------------------------------------------------------------


def test_a_closed_store_refuses_everything_and_closes_twice(store: ports.Store, grown: CommitBuilder) -> None:
    store.close()
    store.close()
    for use in (
        lambda: store.commit(grown.next()),
        lambda: store.delete("c1"),
        lambda: store.load("c1"),
        lambda: store.events("c1", after=0, limit=1),
        lambda: store.list(Selection("local", UNARCHIVED), limit=1).records,
        lambda: store.create_command("local", "r"),
    ):
        with pytest.raises(ports.StoreUnavailableError):
            use()


def test_empty_commits_and_records_of_nothing_are_fine(store: ports.Store) -> None:
    store.commit()
    store.commit(ports.Commit(record_of("bare"), 0, create=True))
    assert loaded(store, "bare") == record_of("bare")
    assert store.verify("bare") == ()


# --- the audit trail ------------------------------------------------------------------------------------------

ANN = CommandOrigin("ann", "user", "t1", "ipv4:192.0.2.1", "SendMessage", "r1")
BOB = CommandOrigin("bob", "reader", "t2", "ipv4:192.0.2.2", "SetMode")


def audited(commit: ports.Commit, audit: LogAudit) -> ports.Commit:
    """The commit, whose first row tells who sent its command."""
    first, *others = commit.log
    return replace(commit, log=(replace(first, audit=audit), *others))


def test_the_audit_trail_is_what_logs_and_refusals_tell_in_the_order_of_time(store: ports.Store) -> None:
    ran = CallDecision("call-1", "bash", "run", "rules", ("approvalRules/make",))
    draft = CommitBuilder("c1")
    store.commit(audited(draft.create(), LogAudit(ANN)))  # at 5001
    store.commit(draft.next())
    store.commit(audited(draft.next(), LogAudit(None, (ran,))))  # at 5003
    store.put_audit(
        (
            AuditEntry(5_002, Outcome.REFUSED, BOB, "PERMISSION_DENIED", "c1"),
            AuditEntry(5_003, Outcome.REFUSED, CommandOrigin(""), "UNAUTHENTICATED", count=7),
        )
    )
    everything = store.audit(AuditFilter(), limit=9)
    assert [(entry.at, entry.outcome, entry.origin.principal, entry.reason, entry.count) for entry in everything] == [
        (5_001, "accepted", "ann", "", 1),
        (5_002, "refused", "bob", "PERMISSION_DENIED", 1),
        (5_003, "accepted", "", "", 1),
        (5_003, "refused", "", "UNAUTHENTICATED", 7),
    ]
    assert (everything[0].origin, everything[0].conversation, everything[0].step) == (ANN, "c1", 1)
    assert everything[1].origin == BOB
    assert everything[2].decisions == (ran,)
    place = None
    for expected in everything:
        (found,) = store.audit(AuditFilter(), after=place, limit=1)
        assert found == expected
        place = found.place
    assert store.audit(AuditFilter(), after=place, limit=1) == ()
    for wanted, chosen in (
        (AuditFilter(principal="ann"), everything[:1]),
        (AuditFilter(principal=""), everything[2:]),
        (AuditFilter(conversation="c1"), everything[:3]),
        (AuditFilter(outcome=Outcome.REFUSED), everything[1::2]),
        (AuditFilter(outcome=Outcome.ACCEPTED), everything[::2]),
        (AuditFilter(since=5_002, until=5_003), everything[1:2]),
    ):
        assert store.audit(wanted, limit=9) == chosen
        assert store.audit(wanted, after=everything[1].place, limit=9) == tuple(
            e for e in chosen if e in everything[2:]
        )
    assert store.verify("c1") == ()


def test_a_deletion_outlives_the_log_in_the_audit_trail(store: ports.Store, grown: CommitBuilder) -> None:
    deleted = AuditEntry(9_000, Outcome.ACCEPTED, ANN, conversation=grown.id)
    store.delete(grown.id, deleted)
    store.delete(grown.id, deleted)
    (entry,) = store.audit(AuditFilter(), limit=9)
    assert replace(entry, number=0) == deleted


def test_the_oldest_refusals_are_deleted(store: ports.Store) -> None:
    store.put_audit([AuditEntry(at, Outcome.REFUSED, BOB, "ARCHIVED") for at in range(1, 7)])
    assert store.prune_audit(before=3, keep=100) == 2
    assert store.prune_audit(before=0, keep=3) == 1
    assert store.prune_audit(before=0, keep=3) == 0
    assert [entry.at for entry in store.audit(AuditFilter(), limit=9)] == [4, 5, 6]
