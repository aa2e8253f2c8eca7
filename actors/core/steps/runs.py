"""Opening and closing a request cycle: exactly one run-stop for each (SEMANTICS decision 8, C18, C20)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import Usage
from actors.core.context import FollowUpPolicy
from actors.core.notifications import Fate, QueueChanged, RunStop, StopReason
from actors.core.steps.interruptions import deliver_interruption

if TYPE_CHECKING:
    from actors.core.states import QueuedInput
    from actors.core.steps.transition_builder import Draft


def open_run(draft: Draft) -> None:
    """The next request cycle begins."""
    ledger = draft.ledger
    draft.ledger = replace(ledger, run=ledger.run + 1, live=True, rounds=0, run_usage=Usage())


def begin_run(draft: Draft) -> None:
    """The same, once the agent is told if the run before was cut off."""
    deliver_interruption(draft)
    open_run(draft)


def close_run(
    draft: Draft,
    reason: StopReason,
    detail: str = "",
    *,
    message: str = "",
    drop_queue: bool = False,
) -> None:
    """Hand waiting steers back, place the state, stop the run if one is open.

    Queued follow-ups stay for PromoteFollowUp, unless they are to be dropped or the policy starts them only after
    a completed run; then each is a cycle with no rounds.
    """
    return_steers(draft)
    draft.place_state()
    run = draft.run
    if run:
        draft.ledger = replace(draft.ledger, live=False)
        draft.notify(RunStop(run, reason, detail, message))
    only_completed = draft.context.follow_up_policy is FollowUpPolicy.COMPLETED_ONLY
    if drop_queue or (only_completed and reason is not StopReason.COMPLETED):
        _drop_follow_ups(draft)


def return_steers(draft: Draft) -> None:
    """Waiting steers go back to whoever sent them: never in history, never run (C20)."""
    for steer in draft.ledger.steers:
        draft.notify(QueueChanged(steer, "steer", Fate.RETURNED))
    if draft.ledger.steers:
        draft.ledger = replace(draft.ledger, steers=())


def deliver_steers(draft: Draft) -> None:
    """Waiting steers enter the history, in the order they came (C19)."""
    steers = draft.ledger.steers
    if steers:
        draft.ledger = replace(draft.ledger, steers=())
    for steer in steers:
        draft.notify(QueueChanged(steer, "steer", Fate.DELIVERED))
        draft.say_user(steer.message_id, steer.text, steer.images, "steer")


def begin_follow_up(draft: Draft) -> None:
    """The oldest follow-up becomes the root of the next run."""
    deliver_interruption(draft)
    _open_with(draft, draft.ledger.follows[0], Fate.DELIVERED)


def _drop_follow_ups(draft: Draft) -> None:
    while draft.ledger.follows:
        _open_with(draft, draft.ledger.follows[0], Fate.DISCARDED)
        run = draft.run
        draft.ledger = replace(draft.ledger, live=False)
        draft.notify(RunStop(run, StopReason.INTERRUPTED, "not_run"))


def _open_with(draft: Draft, follow_up: QueuedInput, fate: Fate) -> None:
    draft.ledger = replace(draft.ledger, follows=draft.ledger.follows[1:])
    draft.notify(QueueChanged(follow_up, "follow_up", fate))
    open_run(draft)
    draft.say_user(follow_up.message_id, follow_up.text, follow_up.images, "follow_up")
