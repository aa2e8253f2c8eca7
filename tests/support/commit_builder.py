"""Build commits for tests: what an actor would hand to the store, transition after transition."""

from typing import Any, Self

from msgspec.structs import replace

from actors.core.content import Message, MessageType, Text, ToolUse, Usage
from actors.core.context import Mode
from actors.core.notifications import Durable, MessageAdded, StateChanged
from actors.core.states import Idle, Ledger, State
from actors.core.summary import ContextState, StateSummary
from actors.ports import CommandRecord, Commit, ConversationRecord, LogEntry, Store

CHANGED = StateChanged(StateSummary("idle"), (ContextState.IDLE,))


def record_of(conversation_id: str, **fields: Any) -> ConversationRecord:
    """Return the record of a new conversation."""
    record = ConversationRecord(
        id=conversation_id,
        slug=conversation_id,
        cwd="/work",
        state=Idle(),
        state_updated_at=1,
        created_at=1,
        updated_at=1,
        mode=Mode.RESTRICTED,
        model="demo",
        principal="local",
    )
    return replace(record, **fields)


def message_of(sequence: int, text: str = "", **fields: Any) -> Message:
    """An agent's message with a tool call."""
    content = (Text(text or f"message {sequence} — ünïcode"), ToolUse(f"call-{sequence}", "bash", '{"command": "ls"}'))
    message = Message(f"m{sequence}", sequence, MessageType.AGENT, content, 1_000 + sequence, usage=Usage(sequence, 10))
    return replace(message, **fields)


class CommitBuilder:
    """Build successive commits of one conversation; each call assumes that the commits before were stored."""

    def __init__(self, conversation_id: str, **fields: Any) -> None:
        self.record = record_of(conversation_id, **fields)

    @classmethod
    def stored(cls, store: Store, conversation_id: str, **fields: Any) -> Self:
        """Build commits of a conversation whose first one is stored."""
        made = cls(conversation_id, **fields)
        store.commit(made.create())
        return made

    @property
    def id(self) -> str:
        return self.record.id

    def create(self, *, command: CommandRecord | None = None, steps: int = 1) -> Commit:
        """Return the first commit."""
        return replace(
            self.next(command=command, steps=steps, messages=0), create=True, create_command=command is not None
        )

    def next(
        self,
        *,
        messages: int = 1,
        steps: int = 1,
        events: tuple[Durable, ...] = (CHANGED,),
        command: CommandRecord | None = None,
        state: State | None = None,
        context: bytes | None = None,
        **fields: Any,
    ) -> Commit:
        """Return a commit of `steps` transitions, the first of which adds `messages` messages."""
        before = self.record
        sequence = before.state.ledger.seq
        fresh = tuple(message_of(sequence + offset + 1) for offset in range(messages))
        log: list[LogEntry] = []
        revision = before.revision
        for step in range(before.step + 1, before.step + steps + 1):
            notifications = (*(map(MessageAdded, fresh) if not log else ()), *events)
            event = f'{{"type":"test","step":{step}}}'.encode()
            log.append(LogEntry(step, 5_000 + step, event, revision + 1, notifications, context))
            revision += len(notifications)
        ends = state or Idle(Ledger(seq=sequence + messages))
        self.record = replace(
            before, state=ends, step=before.step + steps, revision=revision, updated_at=5_000 + before.step, **fields
        )
        return Commit(self.record, before.step, fresh, tuple(log), command)
