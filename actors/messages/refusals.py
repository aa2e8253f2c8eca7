"""Refusals of commands, besides core.errors.Rejected. A refused command has changed nothing."""

from __future__ import annotations

from actors.core.errors import Reason, Rejected


class UnknownConversationError(Exception):
    """There is no conversation with this id."""


class UnknownApprovalRuleError(Exception):
    """The conversation has no approval rule with this id."""


class InvalidFieldError(Exception):
    """A field of the command has an invalid value."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class DeadlineExceededError(Exception):
    """The deadline of the command passed before it was applied."""


class EtagMismatchError(Exception):
    """The settings of the conversation have changed since the caller read them."""


class TaskRefusedError(Rejected):
    """A task of a SpawnSubAgents command was refused; no sub-agent was started."""

    def __init__(self, index: int, reason: Reason, text: str) -> None:
        super().__init__(reason, text)
        self.index = index
        """The position of the refused task among the tasks of the command, from 0."""
