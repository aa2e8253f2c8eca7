"""The interface of an authorizer, with which an operator authenticates and authorizes callers. A stable, public API."""

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
    """The name of a table [principals.NAME], or `ISSUER:VALUE` for a user of an issuer with a template.

    Never the server's own user.
    """
    role: Role | None = None
    """The highest role of this caller; None for the principal's own role, which a caller never exceeds."""
    expires_at: float = 0.0
    """When the identity expires and the caller's streams end, in seconds since 1970; 0 for never."""


class Decision(Struct, frozen=True):
    """The decision of an authorizer about one call."""

    allowed: bool
    reason: str = ""
    """Why the call is refused; the caller reads this text."""


class Authorizer(Protocol):
    """The methods that an operator's own class must have to authenticate and authorize callers.

    The methods are called on several threads at once, each call with a time limit. If a method raises an exception or
    takes too long, the call is refused with UNAVAILABLE; the exception is logged and not shown to the client. The class
    is instantiated once, with the settings in [authorizer.options] as keyword arguments.
    """

    def authenticate(self, metadata: Mapping[str, str], peer: Peer) -> Identity | None:
        """Return the identity of a caller whose token the server does not know; None if the caller is refused.

        `metadata` contains the call's text metadata, including `authorization`, by lower-case name.
        """
        ...

    def authorize(self, principal: str, role: Role, method: str, resource: str) -> Decision:
        """Decide about a call that the caller's role and the principal's permissions already allow.

        `method` is the full name, such as `/bedrock.v1.ConversationService/SendMessage`. `resource` is the resource
        name in the request as the caller wrote it, such as `conversations/abc`; "" if there is none. Not called for the
        server's own user.
        """
        ...
