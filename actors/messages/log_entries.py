"""What is written to the log beside the machine's own events (SEMANTICS §2.12): settings, receipts, births."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class Created(Struct, frozen=True, tag="created"):
    """The conversation came to be."""

    at: int
    principal: str


class SettingsChanged(Struct, frozen=True, tag="settings_changed"):
    """Somebody changed these fields of the record."""

    at: int
    fields: tuple[str, ...]


class TreeReaped(Struct, frozen=True, tag="tree_reaped"):
    """A cancelled call's processes are gone."""

    at: int
    tool_use_id: str


Entry: TypeAlias = Created | SettingsChanged | TreeReaped
