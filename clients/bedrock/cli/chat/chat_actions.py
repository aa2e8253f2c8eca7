"""The interface that a chat offers to its slash commands, so that the commands do not import the chat session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence

    from bedrock import AsyncConversation, v1
    from bedrock.catalog import Model
    from bedrock.cli.display.approval_prompt import Offer
    from bedrock.cli.display.conversation_view import ConversationView
    from bedrock.cli.display.transcript import Transcript
    from bedrock.cli.text.line_wrap import Say
    from bedrock.cli.text.style import Paint
    from bedrock.conversations import ConversationInfo
    from bedrock.types import Delivery

T = TypeVar("T")


class ChatActions(Protocol):
    """The operations of a chat that slash commands use. Call them only on the chat's event loop."""

    images: list[v1.Image]
    """The images that are sent with the next message."""
    paint: Paint
    say: Say
    """Prints a line, which is broken at words to fit the terminal."""
    over: asyncio.Event
    """The event that ends the chat when it is set."""
    clear_screen: Callable[[], None]

    @property
    def conversation(self) -> AsyncConversation:
        """Return the conversation of the chat; `move_to` switches to another one."""
        ...

    @property
    def view(self) -> ConversationView:
        """Return the latest known state of the conversation."""
        ...

    @property
    def transcript(self) -> Transcript:
        """Return the printed transcript of the conversation."""
        ...

    async def models(self) -> Sequence[Model]:
        """Return the models of the server."""
        ...

    async def model(self) -> Model | None:
        """Return the model of the conversation; None if the server does not list it, or does not answer."""

    async def attempt(self, call: Awaitable[T]) -> T | None:
        """Return the result of a call to the server. If the call is refused, print why and return None."""

    async def send(self, text: str, delivery: Delivery) -> None:
        """Send a message, with the images that are attached."""

    async def cancel(self, *, kill_jobs: bool = False) -> None:
        """Cancel the run and discard the queue; with `kill_jobs`, end background jobs, too."""

    async def decline(self) -> None:
        """Refuse to answer the open question of a tool."""

    async def compact(self) -> None:
        """Request a summary of the conversation.

        When the summary is complete, continue in the successor conversation.
        """

    async def create_alike(self) -> ConversationInfo:
        """Create a conversation with the directory, model, mode and other settings of this one."""
        ...

    async def go_on(self) -> None:
        """Continue the chat in the successor of a conversation whose context is used up."""

    def move_to(self, name: str) -> None:
        """Continue the chat in another conversation."""

    def offer(self, offer: Offer) -> None:
        """Ask the user a question that comes from the chat itself, not from the agent or a tool."""

    def show_output(self, number: int = 1) -> None:
        """Print the whole output of a tool call: `number` 1 is the latest call, 2 the one before, and so on."""
