"""What a company implements to decide itself who calls and what they may do; stable, for code outside of Bedrock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from server.auth.principals import Role

if TYPE_CHECKING:
    from collections.abc import Mapping


class Peer(Struct, frozen=True):
    """Where a call comes from."""

    address: str
    """As gRPC has it, such as `ipv4:10.0.0.5:41234` or `unix:`."""
    certificate: str = ""
    """The certificate of the client as PEM, which the listener's `client_ca` has signed; "" if it has none."""


class Identity(Struct, frozen=True):
    """Who calls."""

    principal: str
    """A name of [principals.NAME], or `ISSUER:VALUE` where that issuer has a template. Never the server's own user."""
    role: Role | None = None
    """What this caller may do at most; None: what the principal may. Never more than that."""
    expires_at: float = 0.0
    """When its streams end, in seconds since 1970; 0: with its connection."""


class Decision(Struct, frozen=True):
    """Whether a call may be made."""

    allowed: bool
    reason: str = ""
    """Why not, for the person who calls."""


class Authorizer(Protocol):
    """A company's own rules. Methods are called on several threads at once, each with a limit of time.

    A method that raises, or takes too long, refuses the call with UNAVAILABLE; the log has the exception, the client
    nothing of it. Made once, with the settings [authorizer.options] as keyword arguments.
    """

    def authenticate(self, metadata: Mapping[str, str], peer: Peer) -> Identity | None:
        """Return who makes a call that the server cannot tell by tokens; None if nobody may.

        `metadata`: what was sent with the call as text, `authorization` included, by names in small letters.
        """
        ...

    def authorize(self, principal: str, role: Role, method: str, resource: str) -> Decision:
        """Return whether a call may be made, which its role and the permissions of its principal allow.

        `method`: in full, such as `/bedrock.v1.ConversationService/SendMessage`. `resource`: the name of what it is
        about as the caller wrote it, such as `conversations/abc`; "" if about nothing with a name. Not asked for the
        server's own user.
        """
        ...
