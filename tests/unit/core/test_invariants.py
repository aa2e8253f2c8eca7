"""What an audit says of a log that begins in the middle, and of tokens that do not add up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.core.content import ToolUse, Usage
from actors.core.context import Mode
from actors.core.invariants import InvariantChecker
from actors.core.notifications import CallStatus, ClientToolCall, RunStop, StopReason, UsageChanged
from actors.core.states import Idle, Ledger, ToolExecuting

STOP = RunStop("c:1", StopReason.COMPLETED)
FIND = ToolUse("t1", "find_order", "{}")


def awaited(status: CallStatus) -> ClientToolCall:
    return ClientToolCall(FIND, status, 9_000)


def test_a_log_that_begins_late_may_end_a_run_that_it_does_not_begin_but_once() -> None:
    whole, late = InvariantChecker("c"), InvariantChecker("c")
    late.begin_mid_log()
    assert list(whole.check(STOP)) == ["run c:1 ended without having begun"]
    assert list(late.check(STOP)) == []
    assert list(late.check(STOP)) == ["run c:1 ended twice"]


@pytest.mark.parametrize(
    ("used", "total", "wrong"),
    [(7, Usage(5, 2), False), (8, Usage(5, 2), True), (7, Usage(5, 3), True), (7, Usage(5, 2, 0, 0, 1), True)],
)
def test_the_tokens_reported_last_are_those_of_the_state(used: int, total: Usage, wrong: bool) -> None:
    audit = InvariantChecker("c")
    ledger = replace(Ledger(), used_tokens=7, total_usage=Usage(5, 2))
    assert list(audit.check_end(Idle(ledger), Mode.UNRESTRICTED)) == []
    assert list(audit.check(UsageChanged(1, 100, Usage(1), False))) == []
    assert list(audit.check(UsageChanged(used, 100, total, False))) == []
    said = ["the tokens that the state counts differ from those last reported"]
    assert list(audit.check_end(Idle(ledger), Mode.UNRESTRICTED)) == said * wrong


@pytest.mark.parametrize("end", [status for status in CallStatus if status is not CallStatus.PENDING])
def test_a_wait_for_a_client_ends_once_and_only_if_it_began(end: CallStatus) -> None:
    whole, late = InvariantChecker("c"), InvariantChecker("c")
    late.begin_mid_log()
    not_begun = [f"the wait for the result of t1 ended ({end.value}), but it had not begun"]
    assert list(whole.check(awaited(end))) == not_begun
    assert list(late.check(awaited(end))) == []
    assert list(whole.check(awaited(CallStatus.PENDING))) == []
    assert list(whole.check(awaited(CallStatus.PENDING))) == ["a client was asked twice for the result of t1"]
    assert list(whole.check(awaited(end))) == []
    assert list(whole.check(awaited(end))) == not_begun


def test_a_wait_for_a_client_that_the_log_leaves_open_is_that_of_the_state() -> None:
    audit = InvariantChecker("c")
    list(audit.check(awaited(CallStatus.PENDING)))
    waits = ToolExecuting(Ledger(), "t1", (), (), (FIND,), 1, deadline=9_000)
    about = "calls that wait for a client"
    assert not [text for text in audit.check_end(waits, Mode.UNRESTRICTED) if about in text]
    (found,) = [text for text in audit.check_end(Idle(), Mode.UNRESTRICTED) if about in text]
    assert found == f"{about}: the log leaves t1, the state has none"
