"""What comes out of a run that was asked for its answer, and who decides about its tool calls meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, Self, TypeVar

from bedrock import v1
from bedrock.errors import NotAwaitingApproval, UnknownOrDecided
from bedrock.messages import Approval

__all__ = ["Answer", "Approve", "AsyncApprove"]

Decide = Callable[[Approval], bool]
"""Says whether a tool call may run."""

AsyncDecide = Callable[[Approval], bool | Awaitable[bool]]
"""The same for asyncio."""

Approve = Literal["all"] | Decide
"""Who answers when a tool call needs approval: "all" lets every one run; a function is asked, and says whether."""

AsyncApprove = Literal["all"] | AsyncDecide
"""The same for asyncio, where the function may be asynchronous."""

ANSWERED = (NotAwaitingApproval, UnknownOrDecided)
"""What an answer to an approval raises if somebody else was faster."""

DecideT = TypeVar("DecideT", bound=Callable[[Approval], Any])


class Answer(str):
    """What the agent said last, as a `str` that knows where it came from."""

    run: str
    """The resource name of the run."""
    usage: v1.Usage
    """What the model's responses in this run consumed; its sub-agents are counted in their own conversations."""

    @classmethod
    def of(cls, text: str, *, run: str, usage: v1.Usage) -> Self:
        """Make an answer of a text."""
        answer = cls(text)
        answer.run, answer.usage = run, usage
        return answer

    @property
    def conversation(self) -> str:
        """The resource name of the conversation. To go on in it: ``client.conversation(answer.conversation)``."""
        return self.run.partition("/requestCycles/")[0]


def checked(decision: object) -> bool:
    """Return a decision about a tool call.

    Raises:
        TypeError: It is neither True nor False. What only counts as true, such as "no" or a coroutine, allows nothing.
    """
    if isinstance(decision, bool):
        return decision
    raise TypeError(f"the function that decides about tool calls returned {decision!r}, neither True nor False")


def decider(approve: Literal["all"] | DecideT | None) -> DecideT | Decide | None:
    """Return the function that decides; None if nobody does.

    Raises:
        ValueError: `approve` is neither "all" nor a function.
    """
    if approve is None or callable(approve):
        return approve
    if approve == "all":
        return lambda approval: True
    raise ValueError(f'approve={approve!r} decides nothing; give "all", a function, or None')
