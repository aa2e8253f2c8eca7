"""Refusals of commands beside core.errors.Rejected. Nothing was changed when one of them is raised."""

from __future__ import annotations

from actors.core.errors import Reason, Rejected


class UnknownConversationError(Exception):
    """There is no such conversation."""


class InvalidFieldError(Exception):
    """A field of the command has an invalid value."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class DeadlineExceededError(Exception):
    """The deadline of the command passed before it was applied."""


class EtagMismatchError(Exception):
    """The settings of the conversation changed since they were read."""


class TaskRefusedError(Rejected):
    """One of the sub-agent tasks is refused, so that none is started."""

    def __init__(self, index: int, reason: Reason, text: str) -> None:
        super().__init__(reason, text)
        self.index = index
        """The position of the refused task in the command."""
