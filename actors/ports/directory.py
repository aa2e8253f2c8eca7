"""The port to the directory of running conversations: finds their actors and delivers messages to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from concurrent.futures import Future

    from actors.core.states import Ledger


class LiveConversation(Protocol):
    """A conversation that currently has an actor. Safe to call from any thread; nothing here blocks."""

    @property
    def conversation_id(self) -> str:
        """The id of the conversation."""
        ...

    @property
    def ledger(self) -> Ledger | None:
        """The counters and queues of the conversation's state (its ledger); None while the state is not loaded."""
        ...

    def deliver(self, message: object) -> bool:
        """Put a message into the actor's mailbox; return False if the actor has stopped."""
        ...

    def cancel_run_now(self, run: str) -> None:
        """Stop this run's work at once, bypassing the mailbox, and prevent the run from starting further work.

        Deliver the cancel message first: otherwise the conversation handles the stopped work as a failure.
        """
        ...


class ConversationDirectory(Protocol):
    """The conversations of one process, by id. Safe to call from any thread; nothing here blocks."""

    def deliver(self, conversation_id: str, message: object) -> Future[Any] | None:
        """Put a message into the mailbox of a conversation's actor, and start an actor if there is none.

        Returns the future for the answer; None while the server stops. Raises RuntimeError if this machine has no
        thread left for an actor.
        """
        ...

    def live(self, conversation_id: str) -> LiveConversation | None:
        """Return the conversation if it has an actor that accepts messages, else None."""
        ...

    def on_started(self, conversation: Any) -> None:
        """Add a conversation whose actor is being started by `deliver`."""
        ...

    def on_idle(self) -> None:
        """Note that a conversation has become idle; a server that is shutting down waits for this."""
        ...

    def on_stopped(self, conversation: LiveConversation) -> None:
        """Remove a conversation whose actor has closed its mailbox."""
        ...
