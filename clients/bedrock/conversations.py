"""Classes for conversations as the server describes them, and for arguments and results of calls about them."""

# ruff: noqa: I001, PLC0414 -- one statement exports what is generated in another module

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from bedrock import v1
from bedrock._shared.deadline import checked_timeout
from bedrock._shared.values import (
    Budget as Budget, CancelConversationResult as CancelConversationResult, ClientTool as ClientTool,
    ContextUsage as ContextUsage, ConversationInfo as ConversationInfo, ConversationListEvent as ConversationListEvent,
    Generation as Generation, Instructions as Instructions, ReplayStep as ReplayStep, SetModeResult as SetModeResult,
    ToolSelection as ToolSelection, Transition as Transition, UnofferedTool as UnofferedTool,
)  # fmt: skip
from bedrock._shared.wrapper import new_message, resource_name


def quoted(text: str) -> str:
    """Quote a string for use in a filter: ``f"labels.team = {quoted(team)}"``."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a sub-agent. Values that are not given default to the conversation's or the server's."""

    task: str
    """The task as text. It must be complete, because the sub-agent does not see the conversation."""
    model: str = ""
    max_turns: int = 0
    """Maximum number of turns (model requests); zero for the server's default.

    After the last one, the sub-agent gets one more turn, in which it can only submit its result.
    """
    timeout: float = 0.0
    """Time limit in seconds; zero for the server's default."""
    read_first: Sequence[str] = field(default=(), hash=False)
    """Paths of files whose content the sub-agent gets at the start."""
    working_directory: str = ""

    def __post_init__(self) -> None:
        """Check the values. Raises the errors of `to_proto`."""
        self.to_proto()

    def to_proto(self) -> v1.SpawnSubAgentsRequest.Task:
        """The task as a protobuf message.

        Raises:
            TypeError, ValueError: A value is invalid; the message names the field.
        """
        made = new_message(
            v1.SpawnSubAgentsRequest.Task, task=self.task,
            model=resource_name("models", self.model) if self.model else "", max_turns=self.max_turns,
            read_first=self.read_first, working_directory=self.working_directory,
        )  # fmt: skip
        if seconds := checked_timeout(self.timeout):
            made.timeout.FromTimedelta(timedelta(seconds=seconds))
        return made
