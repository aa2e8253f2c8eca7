"""What a conversion must know that is not in the value itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from actors.core.content import ToolUse
from actors.core.context import Limits, ToolGroup


@dataclass(frozen=True)
class Facts:
    """Given once, when the server is wired."""

    groups: Mapping[str, ToolGroup]
    """Of each tool that is offered."""
    usable_window: Callable[[str], int]
    """Tokens that a conversation with this model can use. Any thread; must not block."""
    limits: Limits

    def group_of(self, call: ToolUse) -> ToolGroup:
        return self.groups.get(call.name, ToolGroup.OTHER)
