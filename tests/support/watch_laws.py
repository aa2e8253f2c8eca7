"""What Subscribe promises, as laws over recorded streams: etcd's properties of a watch, and what belongs to text.

The checker knows the log and what streams brought, and nothing of how a server makes one from the other:

* Ordered: revisions grow.
* Unique: no revision comes twice.
* Reliable: none is left out between the first and the last, and each is what the log says.
* Atomic: the events of one commit come in one response, unless they do not fit.
* Resumable: a stream begins right after the revision that was asked for, or that its snapshot was taken at.
* Bookmarkable: whoever is told a head revision has everything up to it, and gets nothing of that any more.
* Begun: a snapshot is first, `caught_up` comes once, and nothing passing comes between.
* Final: the text of a slot (request id, attempt) has no gap, is the beginning of its message, and ends in exactly one
  message or StreamDiscarded, after which nothing of it comes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from bedrock import v1

from actors.core import notifications as told
from actors.core.content import Message, Reasoning, Text
from actors.ports import StoredEvent
from server.contract.limits import BATCH_BYTES, BATCH_EVENTS

Slot: TypeAlias = tuple[str, int]
"""Request id and attempt."""

FRAME_BYTES = 4
"""What an event takes in a response beyond its own bytes, at most: tag and length."""
KINDS: Mapping[type[told.Durable], str] = {
    told.StateChanged: "state_changed",
    told.MessageAdded: "message_added",
    told.StreamDiscarded: "stream_discarded",
    told.Retrying: "retrying",
    told.QueueChanged: "queue_changed",
    told.ApprovalRequested: "approval_changed",
    told.ApprovalResolved: "approval_changed",
    told.ClientToolCall: "client_tool_call_changed",
    told.QuestionChanged: "question_changed",
    told.BackgroundJobChanged: "background_job_changed",
    told.UsageChanged: "conversation_updated",
    told.ContextWarning: "context_warning",
    told.SubAgents: "sub_agents_changed",
    told.ModeChanged: "conversation_updated",
    told.RunStop: "run_stopped",
    told.ToolTreeReaped: "tool_tree_reaped",
    told.ConversationUpdated: "conversation_updated",
}
"""What each notification is called on the wire."""


class Violation(NamedTuple):
    """A law that was broken, and where."""

    law: str
    stream: str
    response: int
    """Its number within the stream; -1 if it is about the stream as a whole."""
    what: str


class Logged(NamedTuple):
    """A durable event as the log has it."""

    event: StoredEvent
    commit: int
    """Equal for the events of one commit, or -1 if that is not known."""

    @property
    def closes(self) -> Slot | None:
        """The slot that ends with it."""
        match self.event.notification:
            case told.StreamDiscarded(request_id=request_id, attempt=attempt):
                return request_id, attempt
            case told.MessageAdded(message=Message(request_id=request_id, attempt=attempt)) if request_id:
                return request_id, attempt
            case _:
                return None

    def says(self, *, reasoning: bool) -> str | None:
        """The whole text that its slot was streamed for; None if there is no such message."""
        notification = self.event.notification
        if not isinstance(notification, told.MessageAdded):
            return None
        kind = Reasoning if reasoning else Text
        return "".join(block.text for block in notification.message.content if isinstance(block, kind))


@dataclass
class Recorded:
    """What one stream brought."""

    name: str
    """For people who look for a violation."""
    after: int | None = None
    """The revision that was asked for; None for a fresh start."""
    responses: list[v1.SubscribeResponse] = field(default_factory=list)
    code: str = ""
    """How it ended; empty if it was left."""
    oldest: int = 0
    """What a refusal named as the oldest revision."""
    whole: bool = True
    """Whether this is a server's stream; a client's has one event in each response, goes on over several streams, and
    may show another snapshot where events were no longer kept."""


def log_of(commits: Iterable[Sequence[StoredEvent]]) -> list[Logged]:
    """A log from its commits."""
    return [Logged(event, number) for number, commit in enumerate(commits) for event in commit]


def violations(log: Sequence[Logged], streams: Iterable[Recorded], *, settled: bool = True) -> list[Violation]:
    """Everything that is wrong with these streams of one conversation.

    `log` holds all events there ever were, or all from some revision on. `settled`: nothing was under way when it was
    read, so every slot must have ended.
    """
    known = {logged.event.revision: logged for logged in log}
    found = list(_closings(log))
    opened: dict[Slot, str] = {}
    for stream in streams:
        check = _Check(stream, known)
        found += check.run()
        opened |= dict.fromkeys(check.shown_slots, stream.name)
    if settled:
        closed = {logged.closes for logged in log}
        found += [
            Violation("final", name, -1, f"slot {slot} never ended")
            for slot, name in opened.items()
            if slot not in closed
        ]
    return found


def _closings(log: Sequence[Logged]) -> Iterator[Violation]:
    for slot, times in Counter(logged.closes for logged in log if logged.closes).items():
        if times > 1:
            yield Violation("final", "log", -1, f"slot {slot} ended {times} times")


class _Check:
    """One pass over one stream."""

    def __init__(self, stream: Recorded, log: Mapping[int, Logged]) -> None:
        self._stream = stream
        self._log = log
        self._found: list[Violation] = []
        self._number = -1
        self._last = stream.after
        """The revision that everything up to which was sent; None before the snapshot."""
        self._seen: set[int] = set()
        self._begun = stream.after is not None and not stream.whole
        self._caught_up = False
        self._texts: dict[tuple[Slot, bool], str] = {}
        self._closed: set[Slot] = set()
        self._holders: dict[int, set[int]] = {}
        """The responses that brought something of a commit."""

    @property
    def shown_slots(self) -> set[Slot]:
        return {slot for slot, _ in self._texts}

    def run(self) -> list[Violation]:
        for number, response in enumerate(self._stream.responses):
            self._number = number
            for event in response.events:
                self._take(event)
        if self._stream.whole:
            self._check_atomic()
        self._check_end()
        return self._found

    def _broken(self, law: str, what: str) -> None:
        self._found.append(Violation(law, self._stream.name, self._number, what))

    def _take(self, event: v1.Event) -> None:
        kind = str(event.WhichOneof("event"))
        if kind == "snapshot":
            self._snapshot(event.snapshot)
            return
        if not self._begun:
            self._broken("begun", f"{kind} before the snapshot")
        if event.revision:
            self._durable(event, kind)
            return
        match kind:
            case "caught_up":
                if self._caught_up:
                    self._broken("begun", "caught up twice")
                self._caught_up = True
                self._bookmark(event.caught_up.head_revision)
            case "heartbeat":
                self._bookmark(event.heartbeat.head_revision)
            case "text_delta":
                if not self._caught_up:
                    self._broken("begun", "text before caught_up")
                self._text(event.text_delta)
            case "tool_output_delta" | "deleted":
                pass
            case _:
                self._broken("reliable", f"{kind} has no revision")

    def _snapshot(self, snapshot: v1.Event.Snapshot) -> None:
        revision = snapshot.conversation.revision
        if self._begun and self._stream.whole:
            self._broken("begun", "a second snapshot")
        if revision < (self._last or 0):
            self._broken("resumable", f"a snapshot of {revision} after revision {self._last}")
        if self._stream.after is None or self._begun:
            self._last = revision
        self._begun = True
        self._texts.clear()
        for part in snapshot.partial:
            if part.offset:
                self._broken("final", f"a partial text that begins at {part.offset}")
            if self._stream.whole:  # a client tells it once more, as text
                self._texts[_slot(part), part.reasoning] = part.text

    def _durable(self, event: v1.Event, kind: str) -> None:
        revision = event.revision
        self._check_place(revision)
        self._last = max(revision, self._last or 0)
        self._seen.add(revision)
        logged = self._log.get(revision)
        if logged is None:
            if self._log and revision >= min(self._log):
                self._broken("reliable", f"{revision} is not in the log")
            return
        expected = (KINDS[type(logged.event.notification)], logged.event.at)
        if (kind, event.time.ToMilliseconds()) != expected:
            self._broken("reliable", f"{revision} is a {kind}, in the log it is {expected[0]} of {expected[1]} ms")
        if logged.commit >= 0:
            self._holders.setdefault(logged.commit, set()).add(self._number)
        if logged.closes:
            self._close(logged.closes, event, logged)

    def _check_place(self, revision: int) -> None:
        last = self._last
        if last is None or revision == last + 1:
            return
        if revision in self._seen:
            self._broken("unique", f"{revision} comes again")
        elif revision <= last:
            law = "ordered" if self._seen and revision > min(self._seen) else "resumable"
            self._broken(law, f"{revision} comes after {last}")
        else:
            law = "reliable" if self._seen else "resumable"
            self._broken(law, f"{revision} follows {last}: {revision - last - 1} left out")

    def _bookmark(self, head: int) -> None:
        if head != self._last:
            self._broken("bookmarkable", f"the head is told as {head} after revision {self._last}")

    def _text(self, delta: v1.Event.TextDelta) -> None:
        slot, part = _slot(delta), (_slot(delta), delta.reasoning)
        if slot in self._closed:
            self._broken("final", f"text after the end of {slot}")
        shown = self._texts.get(part, "")
        if delta.offset != len(shown):
            self._broken("final", f"text of {slot} at {delta.offset}, {len(shown)} were shown")
        self._texts[part] = shown[: delta.offset] + delta.text

    def _close(self, slot: Slot, event: v1.Event, logged: Logged) -> None:
        told_slot = _slot(event.message_added if event.HasField("message_added") else event.stream_discarded)
        if told_slot != slot:
            self._broken("reliable", f"{event.revision} ends {told_slot}, in the log it ends {slot}")
        self._closed.add(slot)
        for reasoning in (False, True):
            whole, shown = logged.says(reasoning=reasoning), self._texts.get((slot, reasoning), "")
            if whole is not None and not whole.startswith(shown):
                self._broken("final", f"the message of {slot} does not begin as it was streamed")

    def _check_atomic(self) -> None:
        for commit, holders in self._holders.items():
            if len(holders) > 1 and self._fits(commit, holders):
                self._broken("atomic", f"commit {commit} came in the responses {sorted(holders)}")

    def _fits(self, commit: int, holders: Iterable[int]) -> bool:
        """Whether one response could hold the commit, and all others of the same millisecond: they count as one."""
        at = next(logged.event.at for logged in self._log.values() if logged.commit == commit)
        events = [event for number in holders for event in self._stream.responses[number].events]
        together = [event.ByteSize() + FRAME_BYTES for event in events if event.time.ToMilliseconds() == at]
        return len(together) <= BATCH_EVENTS and sum(together) <= BATCH_BYTES

    def _check_end(self) -> None:
        after, stream = self._stream.after, self._stream
        if stream.code != "OUT_OF_RANGE":
            return
        if (self._last or 0) >= stream.oldest:
            self._broken("resumable", f"refused after {self._last}, though all after {stream.oldest} is kept")
        if after is not None and after >= stream.oldest:
            self._broken("resumable", f"a start after {after} was refused, {stream.oldest} is kept")


def _slot(part: v1.Event.TextDelta | v1.Message | v1.Event.StreamDiscarded) -> Slot:
    return part.llm_request_id, part.attempt
