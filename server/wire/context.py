"""What a conversion must know that is not in the value itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.core.context import Limits, ToolGroup

if TYPE_CHECKING:
    from actors.core.content import ToolUse


def _no_jobs(_conversation_id: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class ConversionContext:
    """Given once, when the server is wired."""

    groups: Mapping[str, ToolGroup]
    """Of each tool that is offered."""
    usable_window: Callable[[str], int]
    """Tokens that a conversation with this model can use. Any thread; must not block."""
    limits: Limits
    background_jobs: Callable[[str], Sequence[str]] = _no_jobs
    """Handles of the jobs that a conversation has running now. Any thread; must not block."""

    def group_of(self, call: ToolUse) -> ToolGroup:
        """Return the group of the tool that is called."""
        return self.groups.get(call.name, ToolGroup.OTHER)
