"""What the edges (gRPC handlers, tests) ask of a conversation, and what they get back.

A request carries a deadline: an expired one is dropped unapplied. Refusals are raised as core.errors.Rejected or as
one of the exceptions below; nothing else crosses the edge.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from msgspec import Struct

from actors.core.content import Image, Message, Usage
from actors.core.context import ApprovalPolicy, Budget, FollowUpPolicy, Mode
from actors.core.errors import Reason, Rejected
from actors.core.states import QueuedInput
from actors.core.summary import StateSummary
from actors.ports import ConversationRecord


class NotFound(Exception):
    """There is no such conversation."""


class Invalid(Exception):
    """A field of the request is wrong."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class Expired(Exception):
    """The request's deadline passed before it was applied; nothing was changed."""


class EtagMismatch(Exception):
    """The conversation's settings changed since they were read."""


class Create(Struct, frozen=True):
    """Start a conversation."""

    principal: str
    working_directory: str
    model: str = ""
    slug: str = ""
    title: str = ""
    mode: Mode | None = None
    labels: dict[str, str] = {}
    approval_policy: ApprovalPolicy = ApprovalPolicy.AUTO
    follow_up_policy: FollowUpPolicy = FollowUpPolicy.ALWAYS
    budget: Budget = Budget()
    request_id: str = ""
    body_hash: str = ""


class Send(Struct, frozen=True):
    """Say something."""

    text: str
    delivery: str = "reject"
    images: tuple[Image, ...] = ()
    expected_run: str = ""
    request_id: str = ""
    body_hash: str = ""


class Sent(Struct, frozen=True):
    """How it was taken."""

    message_id: str
    disposition: str
    """"direct", "steer_queued", "follow_up_queued"."""
    run: str
    """Empty while a follow-up waits."""
    revision: int
    """Subscribe after it to see all that the message causes."""
    message: Message | None = None
    queued: QueuedInput | None = None
    duplicate: bool = False


class Cancel(Struct, frozen=True):
    """Stop what is under way; control lane."""

    run_id: str = ""
    discard_queued: bool = False
    kill_jobs: bool = False
    reason: str = ""


class Cancelled(Struct, frozen=True):
    """What the cancel did."""

    no_op: bool
    state: StateSummary
    recorded: bool = True
    """False: all of this was stopped, but the store cannot take it yet. It will be tried again; `state` is still that
    of before, and what becomes of the queue is not decided."""
    run: str = ""
    revision: int = 0
    """The newest revision after the cancel."""
    llm_request_id: str = ""
    tool_use_ids: tuple[str, ...] = ()
    """Calls that got a synthetic result, in request order."""
    sub_agents: tuple[str, ...] = ()
    returned: tuple[QueuedInput, ...] = ()
    discarded: tuple[QueuedInput, ...] = ()
    ended_jobs: tuple[str, ...] = ()
    """Handles of the background jobs that were killed; that they are gone is told by an event for each."""
    surviving_jobs: tuple[str, ...] = ()
    """Handles of those that go on running."""


class Resolve(Struct, frozen=True):
    """Answer a question; answered with the record."""

    tool_use_id: str
    approve: bool
    always: bool = False
    note: str = ""


class ChangeMode(Struct, frozen=True):
    """Set what tools that start from now on may do; control lane."""

    mode: Mode
    stop_running: bool = False
    """End the call and the background jobs that run with more rights than the mode gives."""


class ModeSet(Struct, frozen=True):
    """The mode holds."""

    record: ConversationRecord
    surviving_jobs: tuple[str, ...] = ()
    """Handles of the background jobs that go on running with more rights than the mode gives."""
    surviving_calls: tuple[str, ...] = ()
    """Tool calls that go on running with more rights than the mode gives."""
    ended_jobs: tuple[str, ...] = ()
    """Handles of the background jobs that were killed; that they are gone is told by an event for each."""
    stopped_calls: tuple[str, ...] = ()
    """The tool calls that were stopped."""


class Trigger(Struct, frozen=True):
    """Write the continuation summary now; answered with the record."""


class Update(Struct, frozen=True):
    """Change settings; None leaves a field as it is; answered with the record."""

    etag: str = ""
    slug: str | None = None
    title: str | None = None
    model: str | None = None
    labels: dict[str, str] | None = None
    approval_policy: ApprovalPolicy | None = None
    always_approved: tuple[str, ...] | None = None
    """May only leave tools out: approving is the answer to a question."""
    follow_up_policy: FollowUpPolicy | None = None
    budget: Budget | None = None


class Entitle(Struct, frozen=True):
    """Give a title that nobody asked for, unless somebody has given another one; answered with the record."""

    title: str
    """Empty: there is none, only its cost."""
    instead_of: str
    """The title that it may replace."""
    usage: Usage | None = None
    """What the title has cost."""


class Archive(Struct, frozen=True):
    """Set or clear the archive flag; setting it ends the background jobs. Answered with the record."""

    archived: bool


class Continue(Struct, frozen=True):
    """Start, or find, the successor of an exhausted conversation; answered with the successor's record."""

    include_summary: bool = False
    request_id: str = ""
    body_hash: str = ""


class Delete(Struct, frozen=True):
    """Remove it, once all that it has running is dead; `force` cancels first. Answered with a tuple of warnings."""

    force: bool = False
    archived_before: int | None = None
    """Only if it has been archived since before this time; else EtagMismatch."""


class SpawnTask(Struct, frozen=True):
    """The task of one sub-agent, as it is asked for."""

    task: str
    model: str = ""
    """That of the conversation if empty."""
    max_turns: int = 0
    """The server's default if 0."""
    timeout_ms: int = 0
    """The server's default if 0."""
    read_first: tuple[str, ...] = ()
    working_directory: str = ""
    """That of the conversation if empty."""
    given: str = ""
    """What is in the files of `read_first`. The supervisor fills it in, before the conversation is asked."""


class TaskRefused(Rejected):
    """One of the tasks is why none is started."""

    def __init__(self, index: int, reason: Reason, text: str) -> None:
        super().__init__(reason, text)
        self.index = index


class Spawn(Struct, frozen=True):
    """Start sub-agents by hand, as a run of its own."""

    tasks: tuple[SpawnTask, ...]
    request_id: str = ""
    body_hash: str = ""


class Spawned(Struct, frozen=True):
    """They were started."""

    message: Message
    """The root of the run."""
    run: str
    sub_agents: tuple[str, ...]
    """Their conversations, in the order of the tasks."""
    revision: int
    """The newest one from before the call."""


class Withdraw(Struct, frozen=True):
    """Take back a steer or follow-up that waits; answered with the QueueChanged that tells it."""

    message_id: str


Request: TypeAlias = (
    Send | Cancel | Resolve | ChangeMode | Trigger | Update | Entitle | Archive | Continue | Delete | Spawn | Withdraw
)


def etag_of(record: ConversationRecord) -> str:
    """Changes with the settings that Update can change."""
    settings = (
        record.slug, record.title, record.model, sorted(record.labels.items()), record.approval_policy,
        record.always_approved, record.follow_up_policy, record.budget, record.archived_at, record.mode,
    )  # fmt: skip
    return hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
