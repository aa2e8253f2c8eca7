"""Lives of conversations, written to a store as their actor writes them: draft, commit, now and then another owner."""

from typing import Any

import msgspec

from actors.conversation.pipeline import taken_over
from actors.conversation.unit_of_work import UnitOfWork
from actors.core.context import ConvContext
from actors.core.errors import InvalidTransition, Reason
from actors.core.events import Event
from actors.core.notifications import ConversationUpdated, ToolTreeReaped
from actors.messages import Created, SettingsChanged, TreeReaped
from actors.ports import Commit, ConversationRecord, LogEntry, Store
from tests.property.tape import Tape
from tests.property.world import World
from tests.support.commit_builder import record_of

SETTINGS = {
    "model_id": "model",
    "approval_policy": "approval_policy",
    "approval_rules": "approval_rules",
    "follow_up_policy": "follow_up_policy",
    "budget": "budget",
}
"""Fields of the context that people set, and what the record calls them."""


class WrittenWorld(World):
    """A world whose every commit is stored."""

    record: ConversationRecord

    def __init__(self, store: Store, context: ConvContext, *, begin: bool = True) -> None:
        """`begin`: store a new conversation; without it, the subclass has stored one."""
        super().__init__(context)
        self.store = store
        self._told = context
        self._logged: ConvContext | None = None
        if not begin:
            return
        self.record = stored_record(context)
        born = LogEntry(1, self.at, msgspec.json.encode(Created(self.at, self.record.principal)), 1, ())
        store.commit(Commit(record=self.record, expected_step=0, log=(born,), create=True))

    def apply(self, event: Event) -> bool | Reason:
        self._write_settings()
        draft = self._draft()
        try:
            draft.run(event)
        except InvalidTransition:
            return super().apply(event)
        verdict = super().apply(event)
        self._commit(draft)
        self._told = self.context
        assert self.record.state == self.state
        return verdict

    def reap(self, tape: Tape) -> None:
        """The processes of some call are gone."""
        self._write(TreeReaped(self.now, "t-1"), (ToolTreeReaped("t-1", (tape.number(200) + 2,), 3),))

    def a_commit(self) -> Commit:
        """One that changes the title."""
        draft = self._draft()
        draft.change(SettingsChanged(self.now, ("title",)), self.at, (ConversationUpdated(("title",)),), title="Other")
        self.record = draft.record
        self._logged = draft.logged_context
        return draft.commit()

    def lose(self) -> None:
        """Another owner takes over; memory is gone, and nothing was under way."""
        self.record, self._logged = taken_over(self.record, "other"), None

    def _write_settings(self) -> None:
        fields = {
            there: getattr(self.context, here)
            for here, there in SETTINGS.items()
            if getattr(self.context, here) != getattr(self._told, here)
        }
        if fields:
            names = tuple(fields)
            self._write(SettingsChanged(self.at, names), (ConversationUpdated(names),), **fields)

    def _write(self, entry: Any, told: tuple[Any, ...], **fields: Any) -> None:
        draft = UnitOfWork(self.record, self._told, self._logged)
        draft.change(entry, entry.at, told, **fields)
        self._commit(draft)

    def _draft(self) -> UnitOfWork:
        return UnitOfWork(self.record, self.context, self._logged)

    def _commit(self, draft: UnitOfWork) -> None:
        if draft.entries:
            self.store.commit(draft.commit())
            self._logged = draft.logged_context
        self.record = draft.record


def stored_record(context: ConvContext) -> ConversationRecord:
    """What the store keeps of a conversation that has this context and has just come to be."""
    return record_of(
        context.conversation_id,
        slug=f"slug-{context.conversation_id}", cwd=context.working_dir, mode=context.mode, model=context.model_id,
        user_initiated=not context.is_sub_agent, title="A title", labels={"team": "blue"},
        system_prompt="You are careful.", approval_policy=context.approval_policy,
        follow_up_policy=context.follow_up_policy, budget=context.budget, epoch=1, step=1,
    )  # fmt: skip
