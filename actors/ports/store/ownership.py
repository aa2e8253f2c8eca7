"""The part of the Store port for ownership: which of the servers that share a store may change a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from actors.ports.store.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.ports.store.records import ConversationRecord


class Owner(Struct, frozen=True):
    """A server process that can own conversations, from its start to its end."""

    incarnation: int
    """A number that is never used again: after a restart the server is another owner."""
    name: str = ""
    address: str = ""
    """The address of the gRPC listener for other servers, "host:port"; "" if unknown."""


class NotOwnerError(StoreError):
    """Another server owns the conversation, so this server may neither change the conversation nor act for it."""

    def __init__(self, text: str = "", *, owner: Owner | None = None) -> None:
        super().__init__(text)
        self.owner = owner
        """The owner; None if no living server owns the conversation or it is being taken over: a retry may succeed."""


class ConversationOwnership(Protocol):
    """Ownership of conversations. Safe to call from any thread.

    Both methods block, and may raise StoreUnavailableError. A store that only one process uses, such as SQLite, has no
    owners: every claim succeeds.
    """

    def claim(
        self, conversation_id: str, taken: Callable[[tuple[str, ...]], object] = lambda _: None
    ) -> ConversationRecord | None:
        """Make this server the owner of a conversation and return its row; None if the conversation does not exist.

        The claim covers a whole tree: the conversation at the top and all sub-agents beneath it. It succeeds if the
        tree has no owner, or if its owner was declared dead. If the owner has changed, `taken` is called with the ids
        of the tree's conversations whose work was interrupted, if there are any: the caller must recover them.

        Raises NotOwnerError if another server is the owner, or if this server was declared dead or is about to stop and
        takes no conversations any more; StoreDamagedError.
        """
        ...

    def unsettled(self) -> tuple[str, ...]:
        """Return the ids of this server's conversations that a restart must recover.

        These are conversations that are not idle, and sub-agents without an outcome.
        """
        ...
