"""Log entries that are not events of the state machine. The `tag` of a class is stored, so it must never change."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from actors.core.context import ApprovalRule, Profile
from actors.core.states import Ledger


class Created(Struct, frozen=True, omit_defaults=True, tag="created"):
    """The conversation was created."""

    at: int
    principal: str
    profile: Profile | None = None
    """The settings that the creator chose; None if all are defaults. Later values of these settings are not logged."""


class Forked(Struct, frozen=True, tag="forked"):
    """The conversation was created as a fork. The copied messages are stored as messages, not in the log."""

    at: int
    principal: str
    origin: str
    """The id of the original conversation."""
    run: str
    """The id of the last copied run in the original conversation (the copy has another id)."""
    ledger: Ledger
    """The ledger (counters and queues) with which the fork begins."""


class SettingsChanged(Struct, frozen=True, tag="settings_changed"):
    """A command changed these settings of the conversation."""

    at: int
    fields: tuple[str, ...]


class ApprovalRulesChanged(Struct, frozen=True, omit_defaults=True, tag="approval_rules_changed"):
    """A person created or deleted an approval rule."""

    at: int
    principal: str
    made: ApprovalRule | None = None
    revoked: tuple[str, ...] = ()
    """The ids of the rules that no longer apply; a new rule replaces those with the same subject."""


class TreeReaped(Struct, frozen=True, tag="tree_reaped"):
    """The processes of a cancelled tool call have exited."""

    at: int
    tool_use_id: str


Entry: TypeAlias = Created | Forked | SettingsChanged | ApprovalRulesChanged | TreeReaped
