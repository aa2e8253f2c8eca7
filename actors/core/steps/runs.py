"""Opening and closing a request cycle: exactly one run-stop for each (decision 8 in docs/semantics.md, C18, C20)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import Usage
from actors.core.context import FollowUpPolicy
from actors.core.notifications import Fate, QueueChanged, RunStop, StopReason
from actors.core.steps.notices import deliver_interruption_notice

if TYPE_CHECKING:
    from actors.core.states import QueuedInput
    from actors.core.steps.transition_builder import TransitionBuilder


def open_run(builder: TransitionBuilder) -> None:
    """The next request cycle begins."""
    ledger = builder.ledger
    builder.ledger = replace(ledger, run=ledger.run + 1, live=True, rounds=0, run_usage=Usage())


def begin_run(builder: TransitionBuilder) -> None:
    """The same, once the agent is told if the run before was cut off."""
    deliver_interruption_notice(builder)
    open_run(builder)


def close_run(
    builder: TransitionBuilder,
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
    return_steers(builder)
    builder.place_state()
    run = builder.run
    if run:
        builder.ledger = replace(builder.ledger, live=False)
        builder.notify(RunStop(run, reason, detail, message))
    only_completed = builder.context.follow_up_policy is FollowUpPolicy.COMPLETED_ONLY
    if drop_queue or (only_completed and reason is not StopReason.COMPLETED):
        _drop_follow_ups(builder)


def return_steers(builder: TransitionBuilder) -> None:
    """Waiting steers go back to whoever sent them: never in history, never run (C20)."""
    for steer in builder.ledger.steers:
        builder.notify(QueueChanged(steer, "steer", Fate.RETURNED))
    if builder.ledger.steers:
        builder.ledger = replace(builder.ledger, steers=())


def deliver_steers(builder: TransitionBuilder) -> None:
    """Waiting steers enter the history, in the order they came (C19)."""
    steers = builder.ledger.steers
    if steers:
        builder.ledger = replace(builder.ledger, steers=())
    for steer in steers:
        builder.notify(QueueChanged(steer, "steer", Fate.DELIVERED))
        builder.add_user_message(steer.message_id, steer.text, steer.images, "steer")


def begin_follow_up(builder: TransitionBuilder) -> None:
    """The oldest follow-up becomes the root of the next run."""
    deliver_interruption_notice(builder)
    _open_with(builder, builder.ledger.follows[0], Fate.DELIVERED)


def _drop_follow_ups(builder: TransitionBuilder) -> None:
    while builder.ledger.follows:
        _open_with(builder, builder.ledger.follows[0], Fate.DISCARDED)
        run = builder.run
        builder.ledger = replace(builder.ledger, live=False)
        builder.notify(RunStop(run, StopReason.INTERRUPTED, "not_run"))


def _open_with(builder: TransitionBuilder, follow_up: QueuedInput, fate: Fate) -> None:
    builder.ledger = replace(builder.ledger, follows=builder.ledger.follows[1:])
    builder.notify(QueueChanged(follow_up, "follow_up", fate))
    open_run(builder)
    builder.add_user_message(follow_up.message_id, follow_up.text, follow_up.images, "follow_up")
