"""Scripts of connections for a fake provider on 127.0.0.1, with real sockets, plain or TLS."""

import json
import ssl
from collections.abc import Iterable
from typing import Any

from bedrock.testing.anthropic_stream import named
from bedrock.testing.http_server import (
    KEPT_STREAM_HEAD,
    STREAM_HEAD,
    Received,
    ScriptedServer,
    ServedConnection,
    chunked,
    whole,
)
from bedrock.testing.http_server import HttpScript as Script

__all__ = ["KEPT_STREAM_HEAD", "STREAM_HEAD", "Received", "Script", "ScriptedServer", "ServedConnection"]
__all__ += ["answer", "chunked", "in_turn", "kept", "named", "plain", "stream", "tunnelling", "whole"]


def answer(status: int, body: bytes, content_type: str = "application/json", **headers: str) -> Script:
    """Read a request and give a whole answer."""

    def play(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(whole(status, body, content_type, **headers))

    return play


def kept(body: bytes, **headers: str) -> Script:
    """Read a request and give a whole answer after which the connection can be used again."""
    return answer(200, body, connection="keep-alive", **headers)


def in_turn(*scripts: Script) -> Script:
    """Play scripts one after the other on one connection, and wait for its end."""

    def play(connection: ServedConnection) -> None:
        for script in scripts:
            script(connection)
        connection.wait_for_close()

    return play


def tunnelling(tls: ssl.SSLContext, script: Script) -> Script:
    """A proxy that connects as it is asked to: to a server in itself that speaks TLS and plays `script`."""

    def play(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(b"HTTP/1.1 200 Connected\r\n\r\n")
        connection.sock = tls.wrap_socket(connection.sock, server_side=True)
        try:
            script(connection)
        finally:
            connection.sock.close()

    return play


def stream(pieces: Iterable[bytes], then: Script | None = None) -> Script:
    """A chunked event stream; `then` plays instead of its end."""

    def play(connection: ServedConnection) -> None:
        connection.read_request()
        connection.send(STREAM_HEAD)
        for piece in pieces:
            connection.send(chunked(piece))
        if then is not None:
            then(connection)
        else:
            connection.send(b"0\r\n\r\n")

    return play


def plain(*chunks: dict[str, Any] | str) -> list[bytes]:
    """Events as OpenAI writes them."""
    return [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n".encode() for chunk in chunks]
