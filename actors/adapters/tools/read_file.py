"""The tools read_file, which shows numbered lines of a text file, and read_image, which shows an image file.

A worker process, which can be killed, reads the file with the call's permissions; another one decodes an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.adapters.tools.program_launch import run_worker, worker_answer
from actors.core.content import Image
from actors.core.context import ToolGroup, ToolTraits
from actors.ports import (
    ImagesUnavailableError,
    InvalidImageError,
    ToolContext,
    ToolOutput,
    ToolSpec,
    ToolTransientError,
)
from actors.ports.tools import object_schema
from actors.ports.workspace import MAX_IMAGE_BYTES

DEFAULT_LIMIT = 2000

READ_FILE = ToolSpec(
    description=(
        "Read a UTF-8 text file. Lines come with their numbers; a last line in brackets says how many were not shown. "
        "Relative paths start at the working directory. For binary files and directories use bash."
    ),
    input_schema=object_schema(
        ["path"],
        path={"type": "string", "minLength": 1, "maxLength": 4096, "description": "Path of the file."},
        offset={"type": "integer", "minimum": 1, "description": "First line to show, from 1; default 1."},
        limit={
            "type": "integer",
            "minimum": 1,
            "description": f"Maximum number of lines to show; default {DEFAULT_LIMIT}.",
        },
    ),
    traits=ToolTraits("read_file", ToolGroup.READ, retry_safe=True),
    essential=True,
)


class ReadFileTool:
    spec = READ_FILE

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        path = arguments["path"]
        if "\0" in path:
            return ToolOutput("Cannot read the file: the path contains a NUL character.", is_error=True)
        offset, limit = int(arguments.get("offset", 1)), int(arguments.get("limit", DEFAULT_LIMIT))
        return run_worker("read_file", (path, str(offset), str(limit)), context, what=f"Reading {path}")


ANIMATED = ("image/gif", "image/webp")

HEADER_BYTES = 4096

READ_IMAGE = ToolSpec(
    description=(
        "View a PNG, JPEG, GIF or WebP image file. You see it scaled down to a size that you can process; of an "
        "animated image, you see the first frame. Relative paths start at the working directory."
    ),
    input_schema=object_schema(
        ["path"], path={"type": "string", "minLength": 1, "maxLength": 4096, "description": "Path of the file."}
    ),
    traits=ToolTraits("read_image", ToolGroup.READ, retry_safe=True),
)


class ReadImageTool:
    spec = READ_IMAGE

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        path = arguments["path"]
        if "\0" in path:
            return ToolOutput("Cannot read the file: the path contains a NUL character.", is_error=True)
        what, room = f"Reading {path}", MAX_IMAGE_BYTES + HEADER_BYTES
        read = worker_answer("read_file", (path, str(MAX_IMAGE_BYTES)), context, what=what, output_bytes=room)
        if isinstance(read, ToolOutput):
            return read
        try:
            image = context.keep_image(read)
        except InvalidImageError as invalid:
            return ToolOutput(f"Cannot show {path}: the image {invalid}.", is_error=True)
        except ImagesUnavailableError as unavailable:
            raise ToolTransientError(f"{path} could not be shown: {unavailable}.", begun=True) from unavailable
        return ToolOutput(_description(path, image), images=(image,))


def _description(path: str, image: Image) -> str:
    frame = " If it is animated, this is its first frame." if image.media_type in ANIMATED else ""
    return f"{path}: {image.media_type}, {image.width} x {image.height} pixels.{frame}"
