"""The metadata of calls that one node of a cluster makes to another: the caller, and the token that all nodes share.

The token proves that a node has sent the call. The node that a client called has authenticated the caller, and checked
the role, the quotas and the operator's rules; it does not pass on the caller's own token. The node that receives the
call believes the metadata about the caller only if the token is right.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from actors.ports.records import CommandOrigin
from actors.ports.telemetry import trace_parent

if TYPE_CHECKING:
    from collections.abc import Iterable

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]

TOKEN, ORIGIN = "bedrock-node-token", "bedrock-origin-bin"
OWNER = "bedrock-owner"
"""The trailer (gRPC metadata at the end of a response) with the address of the node that has served a call.

Every response of a node has this trailer.
"""
NOT_OWNER = "bedrock-not-owner"
"""The trailer with which a node refuses a forwarded call, without any effect, as it does not own the conversation."""
MAX_ORIGIN_BYTES = 4_096
MIN_TOKEN_CHARS = 32

_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(CommandOrigin)


class NodeMarks:
    """Writes and checks the metadata of calls between nodes."""

    def __init__(self, token: str) -> None:
        """Keep the token that all nodes share. Raises ValueError if the token is too short, or not printable ASCII."""
        if len(token) < MIN_TOKEN_CHARS or not (token.isascii() and token.isprintable()) or token != token.strip():
            raise ValueError(f"the nodes' token must have at least {MIN_TOKEN_CHARS} printable characters")
        self._token = token

    def on(self, origin: CommandOrigin) -> Metadata:
        """Return the metadata of a call to another node: the token, the caller `origin` and any trace context."""
        marks = ((TOKEN, self._token), (ORIGIN, _encode(origin)))
        traced = trace_parent.get()
        return (*marks, ("traceparent", traced)) if traced else marks

    @staticmethod
    def among(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Return whether the metadata claims, rightly or not, that another node has sent the call."""
        return any(key in (TOKEN, ORIGIN) for key, _ in metadata)

    def origin(self, metadata: Iterable[tuple[str, str | bytes]]) -> CommandOrigin | None:
        """Return the caller that a forwarded call's metadata names; None if token or caller are missing or invalid."""
        found = [(key, value) for key, value in metadata if key in (TOKEN, ORIGIN)]
        tokens = [value for key, value in found if key == TOKEN]
        origins = [value for key, value in found if key == ORIGIN]
        token = tokens[0] if len(tokens) == 1 else ""
        given = token.encode() if isinstance(token, str) else token
        if not hmac.compare_digest(given, self._token.encode()) or len(origins) != 1:
            return None
        raw = origins[0]
        if isinstance(raw, str) or len(raw) > MAX_ORIGIN_BYTES:
            return None
        try:
            origin = _decoder.decode(raw)
        except msgspec.MsgspecError:
            return None
        return origin if origin.principal else None
