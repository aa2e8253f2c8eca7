"""The interface that a company implements to authenticate and authorize callers itself. A stable, public API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from server.auth.principals import Role

if TYPE_CHECKING:
    from collections.abc import Mapping


class Peer(Struct, frozen=True):
    """The peer that makes a call."""

    address: str
    """The peer's address as gRPC reports it, such as `ipv4:10.0.0.5:41234` or `unix:`."""
    certificate: str = ""
    """The certificate of the client as PEM, which the listener's `client_ca` has signed; "" if it has none."""


class Identity(Struct, frozen=True):
    """The identity of a caller."""

    principal: str
    """A name of [principals.NAME], or `ISSUER:VALUE` where that issuer has a template. Never the server's own user."""
    role: Role | None = None
    """The highest role of this caller; None: the principal's own role, which it never exceeds."""
    expires_at: float = 0.0
    """When the identity expires and its streams end, in seconds since 1970; 0: when the connection closes."""


class Decision(Struct, frozen=True):
    """The decision whether a call is allowed."""

    allowed: bool
    reason: str = ""
    """The reason of a refusal, which the caller is shown."""


class Authorizer(Protocol):
    """A company's own rules. Methods are called on several threads at once, each with a time limit.

    If a method raises or takes too long, the call is refused with UNAVAILABLE; the exception is logged, and not shown
    to the client. The class is instantiated once, with the settings [authorizer.options] as keyword arguments.
    """

    def authenticate(self, metadata: Mapping[str, str], peer: Peer) -> Identity | None:
        """Return the identity of a caller whose token the server does not know; None if the caller is unknown.

        `metadata`: the call's text metadata, including `authorization`, by lower-case name.
        """
        ...

    def authorize(self, principal: str, role: Role, method: str, resource: str) -> Decision:
        """Decide about a call that the caller's role and the principal's permissions already allow.

        `method`: the full name, such as `/bedrock.v1.ConversationService/SendMessage`. `resource`: the resource name in
        the request as the caller wrote it, such as `conversations/abc`; "" if there is none. Not called for the
        server's own user.
        """
        ...
