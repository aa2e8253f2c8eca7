"""The tool read_image: shows an image file to the model.

One worker process reads the file with the permissions of the call; another one decodes the image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.adapters.tools.program_launch import worker_answer
from actors.core.context import ToolGroup, ToolTraits
from actors.ports import (
    ImagesUnavailableError,
    InvalidImageError,
    ToolContext,
    ToolOutput,
    ToolSpec,
    ToolTransientError,
)
from actors.ports.images import MAX_IMAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.core.content import Image

ALIASES = {"file_path": "path", "filename": "path"}
"""Wrong argument names that models often use, each with the right name."""

ANIMATED = ("image/gif", "image/webp")
"""Formats that may contain more than one frame."""

HEADER_BYTES = 4096
"""Maximum bytes that the worker writes before the file's content."""

SPEC = ToolSpec(
    description=(
        "Look at a PNG, JPEG, GIF or WebP image file. You see it scaled down to what you can take; of an animated one "
        "you see the first frame. Relative paths start at the working directory."
    ),
    input_schema={
        "type": "object",
        "required": ["path"],
        "properties": {
            "path": {"type": "string", "minLength": 1, "maxLength": 4096, "description": "Path of the file."}
        },
        "additionalProperties": False,
    },
    traits=ToolTraits("read_image", ToolGroup.READ, retry_safe=True),
)


class ReadImageTool:
    """The tool that shows image files (ports.Tool)."""

    @property
    def spec(self) -> ToolSpec:
        """Return the tool's specification."""
        return SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Read the image and return it. Raises ToolTransientError if a worker process cannot start or dies."""
        path = arguments["path"]
        if "\0" in path:
            return ToolOutput("Cannot read it: the path contains a NUL character.", is_error=True)
        what, room = f"Reading {path}", MAX_IMAGE_BYTES + HEADER_BYTES
        read = worker_answer("read_image", (path, str(MAX_IMAGE_BYTES)), context, what=what, output_bytes=room)
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
