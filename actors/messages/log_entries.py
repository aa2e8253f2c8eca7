"""Entries of the log besides the events of the state machine. Their tags are stored, so they must never change."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from actors.core.approval.approval_rules import ApprovalRule
from actors.core.profile import Profile
from actors.core.states import Ledger


class Created(Struct, frozen=True, omit_defaults=True, tag="created"):
    """The conversation was created."""

    at: int
    principal: str
    profile: Profile | None = None
    """What its creator chose; None: nothing. It may change later; the log does not keep the new values of settings."""


class Forked(Struct, frozen=True, tag="forked"):
    """The conversation was created as a fork. The copied messages are stored as messages only, not in the log."""

    at: int
    principal: str
    origin: str
    """The id of the conversation that it was forked from."""
    run: str
    """The last run that was copied, as the origin calls it."""
    ledger: Ledger
    """The ledger with which it begins."""


class SettingsChanged(Struct, frozen=True, tag="settings_changed"):
    """A command changed these fields of the record."""

    at: int
    fields: tuple[str, ...]


class ApprovalRulesChanged(Struct, frozen=True, omit_defaults=True, tag="approval_rules_changed"):
    """A person made or revoked an approval rule."""

    at: int
    principal: str
    made: ApprovalRule | None = None
    revoked: tuple[str, ...] = ()
    """Ids of the rules that hold no more; a new rule replaces one with the same subject."""


class TreeReaped(Struct, frozen=True, tag="tree_reaped"):
    """The processes of a cancelled tool call have exited."""

    at: int
    tool_use_id: str


Entry: TypeAlias = Created | Forked | SettingsChanged | ApprovalRulesChanged | TreeReaped
