"""Sends attachments and exports as what they are, with their type, length and name, instead of events."""

from __future__ import annotations

import mimetypes
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from server.gateway.answers import as_error, encoded, on_one_line
from server.gateway.event_streams import HEADERS, LINES, first_of, pieces

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.responses import Response

    from server.gateway.routes import Route

DOWNLOAD, EXPORT = "DownloadAttachment", "ExportConversation"


def is_bytes(route: Route) -> bool:
    """Return whether the responses of a call are the pieces of one file."""
    return route.name in {DOWNLOAD, EXPORT}


async def file_response(route: Route, name: str, responses: AsyncGenerator[Any]) -> Response:
    """Return the response with a file once its first piece is there. `name` is that of the resource."""
    first: Any = await first_of(responses) or route.response()
    of = name.rpartition("/")[2]
    if route.name == EXPORT:
        return _response(_lines(first, responses), LINES, f"attachment; filename={_safe(of)}.jsonl")
    kind = first.media_type if first.media_type.startswith("image/") else "application/octet-stream"
    suffix = mimetypes.guess_extension(kind) or ""
    response = _response(_bytes(first, responses), kind, f"inline; filename={_safe(of)}{suffix}")
    response.headers["Content-Length"] = str(first.size_bytes)
    return response


def _response(content: AsyncGenerator[bytes], kind: str, disposition: str) -> Response:
    headers = HEADERS | {"Content-Disposition": disposition}
    return StreamingResponse(pieces(content), headers=headers, media_type=kind)


async def _lines(first: Any, rest: AsyncGenerator[Any]) -> AsyncGenerator[bytes]:
    """Yield the lines of an export. One that fails ends with a line about the error, as it cannot be resumed."""
    async with aclosing(rest):
        yield on_one_line(first.line.encode()) + b"\n"
        try:
            async for each in rest:
                yield on_one_line(each.line.encode()) + b"\n"
        except Exception as error:  # noqa: BLE001 -- the client gets a status for every error
            yield encoded(as_error(error)[1]) + b"\n"


async def _bytes(first: Any, rest: AsyncGenerator[Any]) -> AsyncGenerator[bytes]:
    """Yield the bytes of an attachment. If they fail, the connection is closed before the length that was announced."""
    async with aclosing(rest):
        yield first.data
        async for each in rest:
            yield each.data


def _safe(name: str) -> str:
    return "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in name)
