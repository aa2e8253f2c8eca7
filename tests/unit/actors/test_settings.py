"""Settings of actors, quotas and their checks."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import Meta, Struct, field

from actors.common.settings_checks import is_loopback, read
from actors.conversation import creation, settings
from actors.conversation.pipeline import LoadedConversation
from actors.conversation.system_prompt import system_prompt
from actors.conversation.unit_of_work import UnitOfWork
from actors.core.content import SystemKind
from actors.core.context import ApprovalPolicy, Budget, FollowUpPolicy, Mode
from actors.core.errors import QuotaExceededError, Reason, Rejected
from actors.core.notifications import ConversationUpdated
from actors.core.states import INACTIVE, TERMINAL, ContextExhausted, Idle, Ledger
from actors.messages import ContinueConversationCommand, CreateConversationCommand, UpdateConversationCommand
from actors.ports import CancelToken, ConversationRecord, SandboxReport, Spending, day_of
from actors.ports.telemetry import Telemetry
from actors.runtime.admission import FairSlots, SlotRequest
from actors.runtime.quotas import Quota, QuotaBook, QuotaSettings, fair_share, first_day_of_month
from actors.runtime.services import Services, SystemClock
from tests.machine.columns import Column, parent_columns
from tests.support.patience import PATIENCE, eventually

# Births and settings: what is refused, what is written, what the machine is told afterwards.


def refused(reason: Reason) -> Any:
    return pytest.raises(Rejected, check=lambda error: error.reason is reason)


class Sandbox:
    protected: tuple[str, ...] = ()

    def __init__(self, tier: str) -> None:
        self.report = SandboxReport(tier, 5, pid_namespace=True, reason="no Landlock here")

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        if mode is Mode.RESTRICTED:
            return "" if self.report.restriction_available else self.report.reason
        kept = self.report.workspace_available and directory != "/"
        return "" if mode is Mode.UNRESTRICTED or kept else f"no broker for {directory}"

    def start(self, launch: object, on_output: object) -> Any:
        raise AssertionError


def born(services: Services, **fields: Any) -> ConversationRecord:
    record, commit = creation.new_conversation(
        services, "c1", CreateConversationCommand("p", fields.pop("directory", "/tmp"), **fields), 5
    )
    services.store.commit(commit)
    return record


def unit_of(services: Services, record: ConversationRecord) -> UnitOfWork:
    return LoadedConversation(services, record).begin()


def test_a_creation_is_one_step_without_events_and_has_the_requested_values(services: Services) -> None:
    wanted = {
        "title": "T",
        "slug": "s",
        "labels": {"a": "b"},
        "approval_policy": ApprovalPolicy.ASK_ALL,
        "follow_up_policy": FollowUpPolicy.COMPLETED_ONLY,
        "budget": Budget(run_tokens=5),
    }
    record = born(services, **wanted)
    assert {name: getattr(record, name) for name in wanted} == wanted
    assert (record.state, record.step, record.revision, record.epoch) == (Idle(), 1, 0, 1)
    assert record.system_prompt == system_prompt(services.workspace.surroundings("/tmp"), Mode.UNRESTRICTED, 5)
    stored = services.store.load("c1")
    assert stored is not None
    assert msgspec.structs.replace(stored, log_hash="") == record
    assert [row.event for row in services.store.transitions("c1", after_step=0, limit=9)] == [
        b'{"type":"created","at":5,"principal":"p"}'
    ]
    assert services.store.verify("c1") == ()


def test_a_creation_without_a_slug_or_a_model_gets_defaults(services: Services) -> None:
    record = born(services)
    assert record.slug.startswith("slug-")
    assert record.model == "known"


@pytest.mark.parametrize(
    ("tier", "wanted", "mode"),
    [
        ("A", None, Mode.RESTRICTED),
        ("B", None, Mode.RESTRICTED),
        ("none", None, Mode.UNRESTRICTED),
        ("A", Mode.UNRESTRICTED, Mode.UNRESTRICTED),
        ("none", Mode.UNRESTRICTED, Mode.UNRESTRICTED),
    ],
)
def test_a_new_conversation_is_restricted_where_that_is_available(
    services: Services, tier: str, wanted: Mode | None, mode: Mode
) -> None:
    assert born(replace(services, sandbox=Sandbox(tier)), mode=wanted).mode is mode


def test_a_restriction_that_cannot_be_kept_is_refused(services: Services) -> None:
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(services, sandbox=Sandbox("none")), mode=Mode.RESTRICTED)
    assert str(refusal.value) == "restricted mode is not supported on this server: no Landlock here"


def test_a_workspace_that_cannot_be_kept_is_refused_with_the_reason(services: Services) -> None:
    sandbox = Sandbox("A")
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(services, sandbox=sandbox), mode=Mode.WORKSPACE)
    assert str(refusal.value) == "workspace mode is not supported on this server: no broker for /tmp"
    assert refusal.value.cause == "", "it is the machine that cannot"
    sandbox.report = msgspec.structs.replace(sandbox.report, workspace_available=True)
    assert born(replace(services, sandbox=sandbox), mode=Mode.WORKSPACE).mode is Mode.WORKSPACE
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(services, sandbox=sandbox), mode=Mode.WORKSPACE, directory="/")
    assert refusal.value.cause == "directory"


def test_a_restriction_that_is_switched_off_is_not_said_to_be_impossible(services: Services) -> None:
    sandbox = Sandbox("none")
    sandbox.report = msgspec.structs.replace(sandbox.report, reason="the setting says so", by_setting=True)
    with refused(Reason.MODE_UNAVAILABLE) as refusal:
        born(replace(services, sandbox=sandbox), mode=Mode.RESTRICTED)
    assert str(refusal.value) == "restricted mode is not offered on this server: the setting says so"


def test_a_successor_reads_its_directory_again(services: Services, tmp_path: Path) -> None:
    record, commit = creation.new_conversation(services, "c1", CreateConversationCommand("p", str(tmp_path)), 5)
    services.store.commit(commit)
    assert "Be kind." not in record.system_prompt
    (tmp_path / "AGENTS.md").write_text("Be kind.")
    exhausted = msgspec.structs.replace(record, state=ContextExhausted(Ledger(run=3, seq=9), "Milk."))
    day = 86_400_000
    child, _ = creation.new_successor(
        services, unit_of(services, exhausted), ContinueConversationCommand(), "Milk.", day
    )
    assert "Be kind." in child.system_prompt
    assert "- date: 1970-01-02 (UTC)" in child.system_prompt
    (tmp_path / "AGENTS.md").unlink()
    tmp_path.rmdir()
    child, _ = creation.new_successor(
        services, unit_of(services, exhausted), ContinueConversationCommand(), "Milk.", day
    )
    assert f"- working directory: {tmp_path}" in child.system_prompt


@pytest.mark.parametrize("include_summary", [True, False])
def test_a_successor_takes_over_the_settings_and_is_linked_both_ways(services: Services, include_summary: bool) -> None:
    parent = born(services, title="T", labels={"a": "b"}, budget=Budget(run_tokens=5))
    parent = msgspec.structs.replace(parent, state=ContextExhausted(Ledger(run=3, seq=9), "Milk."), archived_at=7)
    unit = unit_of(services, parent)
    child, birth = creation.new_successor(
        services, unit, ContinueConversationCommand(include_summary=include_summary), "Milk.", 8
    )
    services.store.commit(unit.commit(), birth)
    assert (child.continued_from, unit.record.continued_by) == ("c1", child.id)
    assert (child.title, child.labels, child.budget, child.cwd) == ("T", {"a": "b"}, Budget(run_tokens=5), "/tmp")
    assert (child.archived_at, child.step, child.created_at) == (None, 1, 8)
    assert child.slug != parent.slug
    messages = services.store.history(child.id, 10)
    assert child.state == Idle(Ledger(seq=len(messages)))
    assert [(message.kind, "Milk." in str(message.content)) for message in messages] == (
        [(SystemKind.SUMMARY, True)] if include_summary else []
    )
    assert services.store.verify(child.id) == ()
    assert services.store.verify("c1") == ()


def test_an_update_changes_what_is_named_and_says_so_once(services: Services) -> None:
    record = born(services, title="old")
    unit = unit_of(services, record)
    settings.update(
        services, unit, UpdateConversationCommand(title="new", slug=record.slug, budget=Budget(run_tokens=1)), 6
    )
    assert unit.notifications == (ConversationUpdated(("title", "budget")),)
    assert (unit.record.title, unit.record.budget) == ("new", Budget(run_tokens=1))
    assert unit.context.budget == Budget(run_tokens=1)
    again = unit_of(services, unit.record)
    settings.update(services, again, UpdateConversationCommand(title="new"), 6)
    assert not again.entries


def test_what_update_may_change_is_in_the_record_and_in_the_request() -> None:
    for name in settings.SETTINGS:
        assert name in ConversationRecord.__struct_fields__
        assert name in UpdateConversationCommand.__struct_fields__
    parts = {"some_labels", "some_amounts", "some_generation"}
    of_profile = {"client_tools", "generation", "mcp_servers", "auto_continue"}
    assert set(UpdateConversationCommand.__struct_fields__) == {
        "etag",
        "refuse_unoffered_tools",
        *of_profile,
        *parts,
        *settings.SETTINGS,
    }


def test_an_unknown_model_and_one_for_a_conversation_that_is_over_are_refused(services: Services) -> None:
    record = born(services)
    with refused(Reason.MODEL_UNAVAILABLE):
        settings.update(services, unit_of(services, record), UpdateConversationCommand(model="unheard-of"), 6)
    over = msgspec.structs.replace(record, state=ContextExhausted(Ledger(), "x"), model="old")
    with refused(Reason.TERMINAL):
        settings.update(services, unit_of(services, over), UpdateConversationCommand(model="known"), 6)


@pytest.mark.parametrize("column", parent_columns(), ids=lambda column: column.name)
def test_the_model_changes_only_while_no_run_is_in_progress(services: Services, column: Column) -> None:
    """In a backoff and during a summary too: one run never talks to two models."""
    record = msgspec.structs.replace(born(services), state=column.state, model="old")
    busy, over = not isinstance(column.state, INACTIVE), isinstance(column.state, TERMINAL)
    unit = unit_of(services, record)
    if busy or over:
        with refused(Reason.AGENT_BUSY if busy else Reason.TERMINAL):
            settings.update(services, unit, UpdateConversationCommand(model="known"), 6)
        assert unit.record == record
    else:
        settings.update(services, unit, UpdateConversationCommand(model="known"), 6)
        assert unit.record.model == "known"
    unchanged = unit_of(services, record)
    settings.update(services, unchanged, UpdateConversationCommand(model="old"), 6)
    assert not unchanged.entries, "the model that it has is no change"
    settings.update(
        services,
        unchanged,
        UpdateConversationCommand(title="T", approval_policy=ApprovalPolicy.ASK_ALL, budget=Budget(9)),
        6,
    )
    assert unchanged.record.title == "T"


def test_the_archive_flag_is_set_and_cleared(services: Services) -> None:
    unit = unit_of(services, born(services))
    settings.archive(unit, True, 6)
    assert unit.record.archived_at == 6
    settings.archive(unit, False, 7)
    assert unit.record.archived_at is None
    assert unit.notifications == (ConversationUpdated(("archived_at",)),) * 2


# What checks of settings of the server and of adapters have in common.


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_this_machine_is_known_by_its_addresses_and_its_name(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.0.0.1", "::", "localhost.example.org", "127.0.0.1.example.org"])
def test_no_other_host_is_this_machine(host: str) -> None:
    assert not is_loopback(host)


class Part(Struct, forbid_unknown_fields=True):
    where: Annotated[str, Meta(description="must be host:port")] = field(name="address")
    share: Annotated[float, Meta(ge=0)] = 1.0
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.share == 7:
            raise ValueError(".share: is not for sale")


class Whole(Struct, forbid_unknown_fields=True):
    parts: list[Part] = []
    best: Part | None = None


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"parts": 1}, "whole.parts: must be a list"),
        ({"parts": [{"address": "x"}, {"address": 1}]}, "whole.parts[2].address: must be host:port"),
        ({"best": {}}, "whole.best.address: required; must be host:port"),
        ({"best": {"address": "x", "share": -1}}, "whole.best.share: must be a number >= 0.0"),
        ({"best": {"address": "x", "share": 7}}, "whole.best.share: is not for sale"),
        ({"best": {"address": "x", "kind": "c"}}, "whole.best.kind: must be one of a, b"),
        (
            {"best": {"addresses": "x"}},
            "whole.best.addresses: unknown; did you mean 'address'? Known keys: address, share",
        ),
        ({"worst": 1}, "whole.worst: unknown; known keys: parts, best"),
    ],
)
def test_what_a_struct_does_not_take_is_refused_by_its_path(given: object, refusal: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 -- the beginning is compared
        read(Whole, "whole", given)
    assert str(refused.value).startswith(refusal)


# Quotas by the rules alone: who is refused what, when it is free again, and whose turn is next.


NOON = int(datetime(2025, 12, 31, 12, tzinfo=UTC).timestamp() * 1000)
HOUR = 3_600_000


class SetClock(SystemClock):
    def __init__(self) -> None:
        self.ms, self.seconds = NOON, 0.0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds


class Counting(Telemetry):
    def __init__(self) -> None:
        self.exceeded: list[str] = []

    def quota_exceeded(self, quota: str) -> None:
        self.exceeded.append(quota)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


def refusal(call: Callable[[], Any]) -> QuotaExceededError:
    with pytest.raises(QuotaExceededError) as caught:
        call()
    return caught.value


def spend(book: QuotaBook, principal: str, tokens: int, cost_micros: int = 0, at: int = NOON) -> None:
    spending = book.spending(principal, (tokens, cost_micros), at)
    assert spending is not None
    book.spend(spending)


# --- runs ---------------------------------------------------------------------------------------------------------


def test_runs_of_a_principal_and_of_all_together(clock: SetClock) -> None:
    told = Counting()
    runs = Quota.CONCURRENT_RUNS
    book = QuotaBook(QuotaSettings({runs: 3}, {runs: 2}, {"local": {}}), clock, telemetry=told)
    assert book.begin_run("ada", "a1")
    assert book.begin_run("ada", "a2")
    assert not book.begin_run("ada", "a2"), "counted before"
    own = refusal(lambda: book.begin_run("ada", "a3"))
    assert (own.quota, own.principal, own.limit, own.used) == ("concurrent_runs", "ada", 2, 2)
    assert str(own) == "the quota concurrent_runs of ada is used up: 2 of 2"
    book.begin_run("local", "l1")
    shared = refusal(lambda: book.begin_run("local", "l2"))
    assert (shared.principal, shared.limit, shared.used) == ("", 3, 3)
    assert told.exceeded == ["concurrent_runs"] * 2
    book.end_run("a1")
    book.end_run("a1")
    assert book.begin_run("local", "l2")
    assert [use.used for use in (*book.uses("ada"), *book.uses(""))] == [1, 3]


def test_without_quotas_nothing_is_counted(clock: SetClock) -> None:
    book = QuotaBook(QuotaSettings(), clock)
    assert not book.limits_runs
    assert (book.spending("ada", (100, 100), NOON), book.spent("ada")) == (None, "")
    for _ in range(1000):
        book.admit_call("ada")
    assert book.uses("ada") == ()


# --- tokens and costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "free_after"),
    [
        (Quota.TOKENS_PER_DAY, 12 * HOUR),
        (Quota.COST_PER_DAY, 12 * HOUR),
        (Quota.TOKENS_PER_MONTH, 12 * HOUR),
        (Quota.COST_PER_MONTH, 12 * HOUR),
    ],
)
def test_what_is_spent_stops_runs_until_it_is_counted_anew(clock: SetClock, quota: Quota, free_after: int) -> None:
    book = QuotaBook(QuotaSettings(each={quota: 1_500_000}), clock)
    spend(book, "ada", 1_499_999, 1_499_999)
    assert book.spent("ada") == ""
    uncounted = book.spent("ada", (1, 1))
    spend(book, "ada", 1, 1)
    assert book.spent("ada") == uncounted
    assert uncounted.startswith(f"the quota {quota} of ada, ")
    assert book.spent("bob") == ""
    refused = refusal(lambda: book.begin_run("ada", "a1"))
    assert refused.retry_ms == free_after
    assert ("$1.50 of $1.50" in str(refused)) is ("cost" in quota)
    clock.ms += free_after
    assert book.begin_run("ada", "a1")
    assert book.uses("ada")[0].used == 0


def test_a_month_goes_on_when_a_day_ends(clock: SetClock) -> None:
    clock.ms = NOON - 24 * HOUR
    limits = {Quota.TOKENS_PER_DAY: 10, Quota.TOKENS_PER_MONTH: 15}
    yesterday = Spending("ada", day_of(clock.ms), 10, 0)
    before = QuotaBook(QuotaSettings(limits, limits), clock, [yesterday])
    assert "tokens_per_day" in before.spent("ada")
    clock.ms = NOON
    after = QuotaBook(QuotaSettings(limits, limits), clock, [yesterday])
    assert after.spent("ada") == ""
    spend(after, "ada", 5)
    assert "tokens_per_month of ada" in after.spent("ada")
    assert "tokens_per_month of this server" in after.spent("bob")
    assert [(use.quota, use.used, use.resets_at) for use in after.uses("")] == [
        (Quota.TOKENS_PER_DAY, 5, NOON + 12 * HOUR),
        (Quota.TOKENS_PER_MONTH, 15, NOON + 12 * HOUR),
    ]
    assert first_day_of_month(NOON) == day_of(NOON) - 30


# --- storage ------------------------------------------------------------------------------------------------------


def test_bytes_that_will_be_stored_count_at_once_and_exactly_among_many_threads(clock: SetClock) -> None:
    stored = {"ada": 40, "ben": 0, "": 200}
    together, each = {Quota.STORED_BYTES: 1_000}, {Quota.STORED_BYTES: 100}
    book = QuotaBook(QuotaSettings(together, each), clock, stored_bytes=stored.__getitem__)
    refused = refusal(lambda: book.reserve_bytes("ada", 61))
    assert (refused.used, refused.limit) == (40, 100)
    assert str(refused).endswith("of ada needs 61 more: 40 of 100 are used")
    with ThreadPoolExecutor(10) as threads:
        outcomes = list(threads.map(lambda _: taken(book, "ada", 1), range(100)))
    assert outcomes.count(True) == 60
    assert refusal(lambda: book.check_stored("ada")).used == 100
    assert taken(book, "ben", 100)
    clock.seconds = 10.0
    assert taken(book, "ada", 60), "what was measured counts, and what did not come to pass does not"


def taken(book: QuotaBook, principal: str, more: int) -> bool:
    try:
        book.reserve_bytes(principal, more)
    except QuotaExceededError:
        return False
    return True


def test_stored_bytes_are_measured_now_and_then_and_after_a_deletion(clock: SetClock) -> None:
    measured = []

    def measure(principal: str) -> int:
        measured.append(principal)
        clock.seconds += cost
        return stored[principal]

    stored, cost = {"ada": 10, "": 50}, 0.0
    hypothesis_settings = QuotaSettings({Quota.STORED_BYTES: 100}, {Quota.STORED_BYTES: 10})
    book = QuotaBook(hypothesis_settings, clock, stored_bytes=measure)
    refused = refusal(lambda: book.check_stored("ada"))
    assert (refused.quota, refused.used, refused.retry_ms) == ("stored_bytes", 10, 10_000)
    stored["ada"] = 9
    refusal(lambda: book.begin_run("ada", "a1"))
    assert measured == ["ada"]
    book.deleted("c", "ada")
    assert book.begin_run("ada", "a1")
    assert measured == ["ada", "ada", ""]
    stored |= {"ada": 11, "": 100}
    book.check_stored("ada")
    clock.seconds, cost = 10.0, 1.0
    refusal(lambda: book.check_stored("ada"))
    clock.seconds = 109.0
    assert book.uses("ada")[0].used == 11
    assert measured == ["ada", "ada", "", "ada"], "a measurement that takes a second counts for a hundred"
    stored["ada"] = 0
    clock.seconds = 110.0
    assert refusal(lambda: book.check_stored("ada")).principal == ""


# --- calls --------------------------------------------------------------------------------------------------------


def test_calls_come_back_with_time(clock: SetClock) -> None:
    book = QuotaBook(QuotaSettings(each={Quota.CALLS_PER_SECOND: 5}), clock)
    for _ in range(10):
        book.admit_call("ada")
    refused = refusal(lambda: book.admit_call("ada"))
    assert (refused.limit, refused.retry_ms) == (5, 200)
    book.admit_call("bob")
    assert [use.used for use in (*book.uses("ada"), *book.uses("bob"), *book.uses("eve"))] == [5, 1, 0]
    clock.seconds = 0.2
    book.admit_call("ada")
    refusal(lambda: book.admit_call("ada"))


def test_a_stream_counts_as_long_as_it_is_open(clock: SetClock) -> None:
    book = QuotaBook(QuotaSettings(each={Quota.STREAMS: 1}), clock)
    with book.stream("ada"), book.stream("bob"):
        with pytest.raises(QuotaExceededError, match="streams of ada"), book.stream("ada"):
            pass
        assert book.known_principals() == ("ada", "bob")
    with book.stream("ada"):
        pass


# --- turns --------------------------------------------------------------------------------------------------------


class Turns:
    """Slots, and who got one in which order."""

    def __init__(self, limit: int, own: int = 0) -> None:
        self.slots = FairSlots(limit, lambda _: own)
        self.order: list[str] = []

    def want(self, name: str, keeps: bool = True) -> SlotRequest:
        """Wait in the queue of the name's first letter."""
        return self.slots.acquire(name[0], lambda: self.order.append(name) or keeps)  # type: ignore[func-returns-value]


def test_a_principal_with_a_thousand_waiting_delays_another_by_one_turn() -> None:
    turns = Turns(1)
    for number in range(1000):
        turns.want(f"a{number}")
    turns.want("b0")
    turns.want("c0")
    turns.want("b1")
    for _ in range(5):
        turns.slots.release(turns.order[-1][0])
    assert turns.order == ["a0", "a1", "b0", "c0", "a2", "b1"]
    assert turns.slots.waiting == 997


def test_a_turn_that_is_waited_for_can_be_cancelled() -> None:
    slots, cancel, seen = FairSlots(1), CancelToken(), list[bool]()

    def wait() -> None:
        with slots.hold("b", cancel) as begins:
            seen.append(begins)

    waiting = threading.Thread(target=wait)
    with slots.hold("a", CancelToken()) as begins:
        assert begins
        waiting.start()
        eventually(lambda: slots.waiting == 1, "it waits")
        cancel.cancel()
        waiting.join(PATIENCE)
        assert seen == [False]
        assert (slots.waiting, slots.used("")) == (0, 1)
    with slots.hold("b", cancel) as begins:
        assert not begins, "it was cancelled before"
    assert slots.used("") == 0


def test_the_requests_of_one_principal_press_on_its_own_answers_only() -> None:
    turns = Turns(0)
    for number in range(30):
        turns.want(f"a{number}")
    assert (turns.slots.pressure("a"), turns.slots.pressure("b")) == (30, 0)
    turns.want("b0")
    assert (turns.slots.pressure("a"), turns.slots.pressure("b")) == (60, 2)
    turns.slots.release("b")
    assert (turns.slots.pressure("a"), turns.slots.used("a")) == (30, 30)


def test_what_keeps_no_slot_and_what_is_withdrawn_leaves_it_to_the_next() -> None:
    turns = Turns(1)
    places = [turns.want(name, keeps) for name, keeps in (("a0", True), ("a1", True), ("b0", False), ("a2", True))]
    assert [turns.slots.waits(place) for place in places] == [False, True, True, True]
    assert turns.slots.withdraw(places[1])
    assert not turns.slots.withdraw(places[1])
    assert not turns.slots.withdraw(places[0])
    turns.want("a3")
    turns.slots.release("a")
    turns.slots.release("a")
    assert turns.order == ["a0", "a2", "b0", "a3"]
    assert (turns.slots.used(""), turns.slots.used("a"), turns.slots.used("b"), turns.slots.waiting) == (1, 1, 0, 0)


@given(st.lists(st.sampled_from(["a", "-a"]), max_size=60), st.integers(2, 40))
@hypothesis_settings(max_examples=100)
def test_whatever_one_principal_has_and_wants_another_begins_at_once_by_default(acts: list[str], limit: int) -> None:
    turns = Turns(limit, fair_share(limit))
    for act in [*acts, *["a"] * limit]:
        if not act.startswith("-"):
            turns.want(act)
        elif turns.slots.used("a"):
            turns.slots.release("a")
    turns.want("b")
    assert turns.order[-1] == "b"
    assert turns.slots.used("a") == fair_share(limit) >= limit // 2


@given(st.lists(st.sampled_from(["a", "b", "c", "-a", "-b", "-c"]), max_size=60), st.integers(0, 3), st.integers(0, 2))
@hypothesis_settings(max_examples=200)
def test_slots_are_never_too_many_and_never_free_while_somebody_waits(acts: list[str], limit: int, own: int) -> None:
    turns = Turns(limit, own)
    for act in acts:
        if not act.startswith("-"):
            turns.want(act)
        elif turns.slots.used(act[1]):
            turns.slots.release(act[1])
        used = {each: turns.slots.used(each) for each in "abc"}
        assert sum(used.values()) == turns.slots.used("")
        assert not limit or turns.slots.used("") <= limit
        assert not own or max(used.values()) <= own
        if turns.slots.waiting and (not limit or turns.slots.used("") < limit):
            assert own, "only a limit of its own keeps anybody waiting now"
            assert own in used.values()


def test_what_others_spend_is_known_soon_and_nothing_is_counted_twice(clock: SetClock) -> None:
    """The larger number counts: the store has what this server has spent, too, unless that is under way."""
    stored = [Spending("ada", day_of(NOON), 40, 0)]
    limits = QuotaSettings(each={Quota.TOKENS_PER_DAY: 100})
    book = QuotaBook(limits, clock, stored, spent_by_all=lambda: stored)
    spend(book, "ada", 30)
    assert [use.used for use in book.uses("ada")] == [70]
    stored[0] = Spending("ada", day_of(NOON), 100, 0)
    assert book.begin_run("ada", "one")
    clock.seconds += 10
    assert [use.used for use in book.uses("ada")] == [100]
    assert refusal(lambda: book.begin_run("ada", "two")).quota == Quota.TOKENS_PER_DAY
    assert [use.used for use in book.uses("")] == []
