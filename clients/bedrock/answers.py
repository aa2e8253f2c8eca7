"""The answer of a run, and the types of the functions that decide its approvals and answer its tools' questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, cast

from bedrock.errors import NotAwaitingApproval, UnknownOrDecided
from bedrock.messages import Usage
from bedrock.states import Approval, Question

__all__ = ["Answer", "AsyncOnApproval", "AsyncOnQuestion", "OnApproval", "OnQuestion", "ToolAnswer"]

Decide = Callable[[Approval], bool]
"""A function that returns whether a tool call may run."""

AsyncDecide = Callable[[Approval], bool | Awaitable[bool]]
"""A function, possibly asynchronous, that returns whether a tool call may run."""

OnApproval = Literal["approve", "deny"] | Decide
"""Decides about tool calls that need approval: "approve" lets every call run, "deny" none; a function gets the
`Approval` and returns True or False."""

AsyncOnApproval = Literal["approve", "deny"] | AsyncDecide
"""`OnApproval` for the asyncio client, where the function may be asynchronous."""

Content = Mapping[str, Any] | None
"""The values that are filled into the form of a tool's question; None declines the question."""

OnQuestion = Callable[[Question], Content]
"""A function that answers a running tool's question. It gets the `Question` and returns the values of the form's
filled-in fields, ``{}`` if the question is a URL that was visited, or None to decline."""

AsyncOnQuestion = Callable[[Question], Content | Awaitable[Content]]
"""`OnQuestion` for the asyncio client, where the function may be asynchronous."""

ANSWERED = (NotAwaitingApproval, UnknownOrDecided)
"""The errors that are raised if another client has already answered the approval or the tool's question."""

DecideT = TypeVar("DecideT", bound=Callable[[Approval], Any])


class Answer(str):
    """The agent's last text, as a `str` with the attributes below."""

    run: str
    """The resource name of the run."""
    usage: Usage
    """The token usage of the model's responses in this run; that of sub-agents is in their own conversations."""
    output: Any
    """The JSON value that the run ended with; None if the message had no output schema."""
    stop_detail: str
    """Why the answer is incomplete: "max_tokens" (cut off at the token limit), "refusal" (the model declined, or a
    content filter cut the answer off) or "empty" (no text, at most reasoning). "context_exhausted" if it is complete
    but filled the context; otherwise empty. Later servers may send other values.
    """

    @classmethod
    def of(cls, text: str, *, run: str, usage: Usage, output: Any = None, stop_detail: str = "") -> Self:
        """Create an answer from its text and the run that it belongs to."""
        answer = cls(text)
        answer.run, answer.usage, answer.output, answer.stop_detail = run, usage, output, stop_detail
        return answer

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut off at its token limit, after the server has asked for the rest several times."""
        return self.stop_detail == "max_tokens"

    @property
    def conversation(self) -> str:
        """The resource name of the conversation. To continue it: ``client.conversation(answer.conversation)``."""
        return self.run.partition("/requestCycles/")[0]

    def to_dict(self) -> dict[str, Any]:
        """The text and the attributes as values for JSON; `usage` as `Usage.to_dict` returns it."""
        return {
            "text": str(self), "run": self.run, "conversation": self.conversation, "usage": self.usage.to_dict(),
            "output": self.output, "stop_detail": self.stop_detail, "truncated": self.truncated,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A result with images, to be returned by a tool's function. A result without images needs no wrapper."""

    value: Any = ""
    """The result without its images: a string, or a value that can be written as JSON."""
    images: Sequence[bytes | str] = ()
    """The bytes of images for the model to see, or the paths of their files: PNG, JPEG, GIF or WebP."""


def checked(decision: object) -> bool:
    """Return a decision.

    Raises TypeError unless it is True or False: a word such as "no", or a coroutine, is truthy.
    """
    if isinstance(decision, bool):
        return decision
    raise TypeError(f"the function that decides tool calls must return True or False, not {decision!r}")


def checked_content(content: object) -> Content:
    """Return the content. Raises TypeError unless it is a mapping, or None, which declines the question."""
    if content is None or isinstance(content, Mapping):
        return cast("Content", content)
    raise TypeError(f"the function that answers tools' questions must return a mapping or None, not {content!r}")


def decider(on_approval: Literal["approve", "deny"] | DecideT | None) -> DecideT | Decide | None:
    """The function that `on_approval` stands for. Raises ValueError for any other string or value."""
    if on_approval is None or callable(on_approval):
        return on_approval
    if on_approval in ("approve", "deny"):
        return lambda _approval: on_approval == "approve"
    raise ValueError(f'on_approval must be "approve", "deny", a function or None, not {on_approval!r}')
