"""Converts the result of an MCP tool to the output that the model gets."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from actors.ports import ImagesUnavailableError, InvalidImageError, ToolOutput
from actors.ports.terminal_text import without_escapes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_types import CallToolResult

    from actors.core.content import Image

TEXT_CHARACTERS = 128 * 1024
"""Maximum characters of a result. Of a longer result the beginning and the end are kept.

Structured content is kept for clients up to this size.
"""

MAX_IMAGES = 8
"""Maximum number of images of a result that are decoded; a process is started for each of them."""


def output_of(result: CallToolResult, keep_image: Callable[[bytes], Image], note: str = "") -> ToolOutput:
    """Return a tool's result with its texts joined and its images stored by `keep_image`.

    The text begins with `note`. An image that cannot be stored is mentioned in the text instead. Called on the thread
    that runs the tool, because storing images blocks.
    """
    texts = [note] if note else []
    images: list[Image] = []
    seen = 0
    for part in result.content:
        match part:
            case TextContent(text=text):
                texts.append(without_escapes(text))
            case ImageContent(data=data):
                seen += 1
                kept = _image(data, keep_image) if seen <= MAX_IMAGES else ""
                if isinstance(kept, str):
                    texts += [kept] if kept else []
                else:
                    images.append(kept)
            case AudioContent(mime_type=kind):
                texts.append(f"(Audio of type {kind} was left out.)")
            case ResourceLink(uri=uri, name=name):
                texts.append(f"(The resource {name}: {uri})")
            case EmbeddedResource():
                texts.append(_resource(part.resource))
    if seen > MAX_IMAGES:
        texts.append(f"(Further images were left out, {seen - MAX_IMAGES:,} of {seen:,}: {MAX_IMAGES} are the most.)")
    display = ""
    if result.structured_content is not None:
        if not any(isinstance(part, TextContent) for part in result.content):
            texts.append(json.dumps(result.structured_content, ensure_ascii=False))
        display = _well_formed(json.dumps({"structured_content": result.structured_content}, ensure_ascii=False))
    text = _cut(_well_formed("\n".join(texts))) or ("" if images else "(no content)")
    display = display if len(display) <= TEXT_CHARACTERS else ""
    return ToolOutput(text, is_error=result.is_error, images=tuple(images), display=display)


def _resource(resource: TextResourceContents | BlobResourceContents) -> str:
    if isinstance(resource, TextResourceContents):
        return f"{resource.uri}:\n{without_escapes(resource.text)}"
    return f"(The resource {resource.uri} of type {resource.mime_type} was left out: it is no text.)"


def _image(data: str, keep_image: Callable[[bytes], Image]) -> Image | str:
    """Store an image and return it; if that fails, return the reason in brackets, as text for the model."""
    try:
        return keep_image(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return "(An image was left out: it is not valid base64.)"
    except InvalidImageError as invalid:
        return f"(An image was left out: it {invalid}.)"
    except ImagesUnavailableError as unavailable:
        return f"(An image was left out: {unavailable}.)"


def _cut(text: str) -> str:
    """Return a text of at most about TEXT_CHARACTERS, by replacing the middle of a longer one with a remark."""
    over = len(text) - TEXT_CHARACTERS
    if over <= 0:
        return text
    half = TEXT_CHARACTERS // 2
    return f"{text[:half]}\n[… {over:,} characters left out …]\n{text[-half:]}"


def _well_formed(text: str) -> str:
    """Replace characters that cannot be stored: NUL and unpaired surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
