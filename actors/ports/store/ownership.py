"""Who owns a conversation where several servers share one store: the one server that may change it and act for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from actors.ports.store.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.ports.store.records import ConversationRecord


class Owner(Struct, frozen=True):
    """A server as the store knows it: one start of its process."""

    incarnation: int
    """Never used again: a server that starts anew is another owner."""
    name: str = ""
    address: str = ""
    """Where its own gRPC listener is reached by the others, "host:port"; "" if it is not known."""


class NotOwnerError(StoreError):
    """Another server owns the conversation, so that this one may neither change it nor act for it any longer."""

    def __init__(self, text: str = "", *, owner: Owner | None = None) -> None:
        super().__init__(text)
        self.owner = owner
        """The owner; None if nobody alive has it or it is being taken over, and a later attempt may succeed."""


class ConversationOwnership(Protocol):
    """The conversations of one server. Any thread; both methods block, and raise StoreUnavailableError.

    A store that one process has to itself, such as SQLite, has no owners: it claims and finds everything.
    """

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> ConversationRecord | None:
        """Return the conversation's row, which this server owns from now on; None if there is no such conversation.

        Its whole family comes with it: the conversation at the top and all sub-agents beneath. A conversation can be
        claimed that nobody owns, or a server that is declared dead. If that has changed the owner, `taken` is called
        with those of the family that are unsettled, if there are any: they must be woken.

        Raises NotOwnerError if another server has it, or if this one is itself declared dead or gives its conversations
        up; StoreDamagedError.
        """
        ...

    def unsettled(self) -> tuple[str, ...]:
        """Return the ids of this server's conversations that a restart must recover.

        These are conversations of people that are not idle, and sub-agents without an end.
        """
        ...
