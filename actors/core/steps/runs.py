"""Opening and closing runs (request cycles). The notification RunStop ends each run, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.content import Usage
from actors.core.context import FollowUpPolicy
from actors.core.notifications import Fate, QueueChanged, RunStop, StopReason
from actors.core.steps.notices import deliver_interruption_notice, notice_date

if TYPE_CHECKING:
    from actors.core.profile import Generation
    from actors.core.states import QueuedInput
    from actors.core.steps.transition_builder import TransitionBuilder


def open_run(builder: TransitionBuilder, generation: Generation | None = None, output_schema: str = "") -> None:
    """Open the next run. The mode at its beginning decides which tools of clients are offered until its end.

    `generation` and `output_schema` come from the message that begins the run.
    """
    ledger, context = builder.ledger, builder.context
    mode = context.mode if any(traits.client for traits in context.tools) else None
    builder.ledger = replace(
        ledger,
        run=ledger.run + 1,
        live=True,
        rounds=0,
        run_usage=Usage(),
        run_mode=mode,
        generation=generation,
        output_schema=output_schema,
        output="",
        nudges=0,
        failure="",
        repeats=0,
        budget_warned=False,
    )


def begin_run(builder: TransitionBuilder, generation: Generation | None = None, output_schema: str = "") -> None:
    """Deliver the notices of an interrupted run and of a new date, if there are any, and open the next run."""
    deliver_interruption_notice(builder)
    notice_date(builder)
    open_run(builder, generation, output_schema)


def close_run(
    builder: TransitionBuilder,
    reason: StopReason,
    detail: str = "",
    *,
    message: str = "",
    output: str = "",
    drop_queue: bool = False,
) -> None:
    """Return queued steers (messages for this run) to their senders, persist the state, and stop the run if it is open.

    Queued follow-ups (messages for later runs) stay queued until PromoteFollowUp. They are discarded with `drop_queue`,
    or if the policy starts them only after a completed run and this run did not complete. Each discarded follow-up is
    recorded as a run that was never executed.
    """
    return_steers(builder)
    builder.place_state()
    run = builder.run
    if run:
        builder.ledger = replace(builder.ledger, live=False)
        builder.notify(RunStop(run, reason, detail, message, output))
    only_completed = builder.context.follow_up_policy is FollowUpPolicy.COMPLETED_ONLY
    if drop_queue or (only_completed and reason is not StopReason.COMPLETED):
        _drop_follow_ups(builder)


def return_steers(builder: TransitionBuilder) -> None:
    """Return queued steers (messages that were to join the run) to their senders; they never enter the history."""
    for steer in builder.ledger.steers:
        builder.notify(QueueChanged(steer, "steer", Fate.RETURNED))
    if builder.ledger.steers:
        builder.ledger = replace(builder.ledger, steers=())


def deliver_steers(builder: TransitionBuilder) -> None:
    """Add queued steers (messages that join the run) to the history as user messages, the oldest first.

    What failed before a steer does not count as a repetition of what fails after it.
    """
    steers = builder.ledger.steers
    if steers:
        builder.ledger = replace(builder.ledger, steers=(), failure="", repeats=0)
        notice_date(builder)
    for steer in steers:
        builder.notify(QueueChanged(steer, "steer", Fate.DELIVERED))
        builder.add_user_message(steer.message_id, steer.text, steer.images, "steer")


def begin_follow_up(builder: TransitionBuilder) -> None:
    """Begin the next run with the oldest queued follow-up as its first message."""
    deliver_interruption_notice(builder)
    notice_date(builder)
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
    open_run(builder, follow_up.generation, follow_up.output_schema)
    builder.add_user_message(follow_up.message_id, follow_up.text, follow_up.images, "follow_up")
