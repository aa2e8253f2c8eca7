"""The interface of the authorizer, a class with which operators authenticate and authorize callers.

A stable public API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from server.auth.principals import Role


class Peer(Struct, frozen=True):
    """The client's end of the connection on which a call arrived."""

    address: str
    """The client's address as gRPC reports it, such as `ipv4:10.0.0.5:41234` or `unix:`; without a port over HTTP."""
    certificate: str = ""
    """The client's certificate as PEM, signed by the listener's `client_ca`; "" if the client has none."""


class Identity(Struct, frozen=True):
    """The identity of a caller, as an authorizer reports it."""

    principal: str
    """The name of a [principals.NAME] table, or `ISSUER:VALUE` for a template; never the server's own user."""
    role: Role | None = None
    """The highest role of this caller; None for the principal's role. A caller's role never exceeds the principal's."""
    expires_at: float = 0.0
    """When the identity expires and the caller's streams end, in seconds since 1970; 0 for never."""


class Decision(Struct, frozen=True):
    allowed: bool
    reason: str = ""
    """Why the call is refused; sent to the caller."""


class Authorizer(Protocol):
    """The interface of an operator's own class that authenticates and authorizes callers.

    Called on several threads, with a time limit. If a method raises or takes too long, the call is refused with
    UNAVAILABLE, and the exception is logged. The keyword arguments of the class are [authorizer.options].
    """

    def authenticate(self, metadata: Mapping[str, str], peer: Peer) -> Identity | None:
        """The identity of a caller whose token the server does not know; None to refuse the call.

        `metadata` is the call's text metadata, `authorization` included, by lower-case name.
        """
        ...

    def authorize(self, principal: str, role: Role, method: str, resource: str) -> Decision:
        """Decide about a call that role and permissions allow. Not called for the server's own user.

        `method` is a full name such as `/bedrock.v1.ConversationService/SendMessage`; `resource` is a name such as
        `conversations/abc`, as the caller wrote it, or "".
        """
        ...
