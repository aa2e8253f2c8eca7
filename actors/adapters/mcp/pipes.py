"""The transport of MCP over the stdin and stdout of a program: one JSON-RPC message per line."""

from __future__ import annotations

import json
import os
import re
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from actors.adapters.mcp.bounded_messages import error_of, mended

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

CHUNK = 1 << 16

ID_WITHIN = 256
"""How many bytes at the beginning and at the end of an unreadable response are searched for its id."""

_ID = re.compile(rb'"id"\s*:\s*([0-9]{1,15}|"[^"\\\x00-\x1f]{1,64}")')

LINE_BYTES = 32 << 20
"""Maximum size of a message in bytes. A server that sends a larger one is disconnected."""


@asynccontextmanager
async def pipe_transport(
    stdin: int, stdout: int, ended: anyio.Event
) -> AsyncGenerator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    """Yield the streams of messages from and to a program.

    The descriptors are non-blocking pipes, which the caller closes. `ended` is set when the program can no longer be
    reached.
    """
    arriving, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sent, leaving = anyio.create_memory_object_stream[SessionMessage](0)
    async with arriving, received, sent, leaving, anyio.create_task_group() as tasks:

        async def read() -> None:
            async with arriving:
                await _read(stdout, arriving)
            ended.set()

        async def write() -> None:
            try:
                await _write(stdin, leaving)
            except OSError:  # the program does not read any more, so it would not respond to a request
                await arriving.aclose()
                ended.set()

        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield received, sent
        finally:
            tasks.cancel_scope.cancel()


async def _read(stdout: int, arriving: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    """Pass on the messages of a program until it ends, sends too long a line, or the receiver is closed."""
    waiting = bytearray()
    while chunk := await _chunk(stdout):
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            message = _message(bytes(waiting + line))
            waiting.clear()
            if message is None:
                if line.startswith(b"{"):
                    await anyio.lowlevel.checkpoint()
                continue
            try:
                await arriving.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
        waiting += rest
        if len(waiting) > LINE_BYTES:
            if refusal := _answer_error(
                bytes(waiting[:ID_WITHIN]), f"its answer is larger than {LINE_BYTES >> 20} MiB"
            ):
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await arriving.send(refusal)
            return


async def _chunk(stdout: int) -> bytes:
    """Return the next bytes that a program wrote; b"" at the end of its output.

    Lets other tasks run first, even if the program writes all the time.
    """
    await anyio.lowlevel.checkpoint()
    while True:
        try:
            return os.read(stdout, CHUNK)
        except BlockingIOError:
            await anyio.wait_readable(stdout)
        except OSError:
            return b""


def _message(line: bytes) -> SessionMessage | None:
    """Parse a line as an MCP message; return None for other text, which some programs print, too.

    For a response that cannot be parsed, return an error message in its place; see `_unreadable`.
    """
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        with suppress(ValueError):
            return SessionMessage(jsonrpc_message_adapter.validate_json(mended(line), by_name=False))
        return _unreadable(line)


def _unreadable(line: bytes) -> SessionMessage | None:
    """Return an error message in place of a response that cannot be parsed; None if the line is no response.

    The error ends the call that waits for the response. The response's id is searched near the beginning and near the
    end of the line.
    """
    return _answer_error(line[:ID_WITHIN] + b"\n" + line[-ID_WITHIN:], "its answer is no valid JSON-RPC")


def _answer_error(ends: bytes, why: str) -> SessionMessage | None:
    """Return an error message in place of a response, with its id; `ends` is its beginning, or its beginning and end.

    Returns None if `ends` contains no id, or is part of a message that is no response.
    """
    found = _ID.search(ends)
    if found is None or b'"method"' in ends or not (b'"result"' in ends or b'"error"' in ends):
        return None
    unreadable: SessionMessage = error_of(json.loads(found[1]), why)
    return unreadable


async def _write(stdin: int, leaving: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """Write messages to a program. Raises OSError if the program does not read any more."""
    async for each in leaving:
        data = memoryview(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        while data:
            try:
                data = data[os.write(stdin, data) :]
            except BlockingIOError:
                await anyio.wait_writable(stdin)
