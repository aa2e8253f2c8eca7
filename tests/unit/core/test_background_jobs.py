"""Background jobs in the machine: each change is recorded once, and the agent hears of each end once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from actors.core.content import Message, SystemKind, ToolSuccess, ToolUse, text_of
from actors.core.context import ConvContext
from actors.core.effects import NotifyClient, PersistMessage
from actors.core.events import JobChanged, LlmResponse, ToolComplete, UserCancel, UserMessage
from actors.core.notifications import BackgroundJobChanged
from actors.core.states import BackgroundJob, Completed, ContextExhausted, Idle, JobStatus, Ledger, LlmRequesting
from actors.core.transition import Step, run_chain

if TYPE_CHECKING:
    from actors.core.events import Event
    from actors.core.states import State

CONTEXT = ConvContext("c", "/", "m", 1_000)
RUNNING = BackgroundJob("b-1", "t1", "serve")
EXITED = replace(RUNNING, status=JobStatus.EXITED, exit_code=2)
KILLED = replace(RUNNING, handle="b-2", status=JobStatus.KILLED)
LOST = replace(RUNNING, handle="b-3", status=JobStatus.LOST)


def after(state: State, *events: Event) -> tuple[State, list[Step]]:
    steps: list[Step] = []
    for event in events:
        steps += run_chain(state, CONTEXT, event)
        state = steps[-1].new_state if steps else state
    return state, steps


def changes(*jobs: BackgroundJob) -> list[JobChanged]:
    return [JobChanged(1, job) for job in jobs]


def notices(steps: list[Step]) -> list[Message]:
    stored = [one.message for step in steps for one in step.effects if isinstance(one, PersistMessage)]
    return [message for message in stored if message.kind is SystemKind.JOBS_ENDED]


def told(steps: list[Step]) -> list[BackgroundJob]:
    data = [one.data for step in steps for one in step.effects if isinstance(one, NotifyClient)]
    return [one.job for one in data if isinstance(one, BackgroundJobChanged)]


def test_ends_wait_for_the_next_request_which_has_all_of_them_in_one_message() -> None:
    state, steps = after(Idle(), *changes(RUNNING, EXITED, KILLED, LOST))
    assert told(steps) == [RUNNING, EXITED, KILLED, LOST]
    assert notices(steps) == []
    state, steps = after(state, UserMessage(2, "m1", "And now?"))
    (notice,) = notices(steps)
    assert text_of(notice.content).splitlines() == [
        "Background jobs have ended:",
        "- b-1: exit code 2: serve",
        "- b-2: killed: serve",
        "- b-3: ended with the server, and its output is lost: serve",
        "Call bash with `peek` and a handle to see the output.",
    ]
    assert (notice.meta, state.ledger.jobs) == (True, ())
    state, steps = after(state, UserCancel(3), UserMessage(4, "m2", "And?"))
    assert notices(steps) == [], "once"


def test_what_is_recorded_already_is_ignored_and_an_end_without_a_beginning_is_not() -> None:
    state, steps = after(Idle(), *changes(RUNNING, RUNNING, EXITED, EXITED, RUNNING, replace(LOST, handle="b-1")))
    assert told(steps) == [RUNNING, EXITED]
    assert state.ledger.jobs == (EXITED,)
    assert after(Idle(), *changes(KILLED))[0].ledger.jobs == (KILLED,)
    again = replace(RUNNING, tool_use_id="t9")
    assert after(state, *changes(again))[0].ledger.jobs == (EXITED, again), "a handle that is used again"


@pytest.mark.parametrize(("shown", "count"), [("b-1", 0), ("b-2", 1), ("", 1)])
def test_an_end_that_a_tool_result_shows_is_not_told_again(shown: str, count: int) -> None:
    asked = UserMessage(2, "m1", "Wait for it.")
    state, _ = after(Idle(), *changes(RUNNING), asked)
    assert isinstance(state, LlmRequesting)
    calls = LlmResponse(3, state.request_id, 1, (ToolUse("t2", "bash", "{}"),), end_turn=False)
    state, _ = after(state, calls, *changes(EXITED))
    xid = state.ledger.xid
    _, steps = after(state, ToolComplete(4, "t2", xid, ToolSuccess("t2", "[exit code 2]"), shown))
    assert len(notices(steps)) == count


@pytest.mark.parametrize("state", [ContextExhausted(Ledger(), "s"), Completed(Ledger(), "r")])
def test_where_no_request_follows_an_end_is_told_to_clients_alone(state: State) -> None:
    state, steps = after(state, *changes(RUNNING, EXITED))
    assert (told(steps), state.ledger.jobs) == ([RUNNING, EXITED], ())
