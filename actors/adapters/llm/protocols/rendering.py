"""Encoding of turns that all wire protocols share, and the cache of encoded turns."""

from __future__ import annotations

import base64
import sys
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from actors.core.content import (
    Content,
    Image,
    SubAgentComplete,
    Text,
    ToolCancelled,
    ToolError,
    ToolResult,
    ToolSuccess,
    ToolUse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from actors.adapters.llm.protocols.answer_builder import PreparedRequest
    from actors.core.history import Turn
    from actors.ports import ImageView

ENCODER = msgspec.json.Encoder()


def is_tool_result(block: Content) -> TypeGuard[ToolResult]:
    """Return whether a block is the result of a tool call."""
    return isinstance(block, ToolSuccess | ToolError | ToolCancelled | SubAgentComplete)


def is_failed(result: ToolResult) -> bool:
    """Return whether the model should see the call as failed."""
    match result:
        case ToolSuccess():
            return False
        case SubAgentComplete():
            return not result.success
        case ToolError() | ToolCancelled():
            return True


def result_text(result: ToolResult) -> str:
    """Return a result as text for the model; never empty, since some providers refuse empty results."""
    images = result.images if isinstance(result, ToolSuccess) else ()
    parts = [result.output] if result.output.strip() else []
    return "\n".join((*parts, *map(image_placeholder, images))) or "(no output)"


def image_placeholder(image: Image) -> str:
    """Return the text that replaces an image for models without vision."""
    return f"[image {image.media_type} {image.width}x{image.height}]"


def view_of(image: Image, prepared: PreparedRequest) -> ImageView | None:
    """Return the view of an image that the model gets; None if `image_placeholder` has to replace it."""
    return prepared.request.view_of(image) if prepared.info.images else None


def separate_images(result: ToolResult, prepared: PreparedRequest) -> tuple[ToolResult, tuple[ImageView, ...]]:
    """Split a result into one without the images that the model gets, and their views."""
    if not isinstance(result, ToolSuccess) or not result.images:
        return result, ()
    views = [(image, view_of(image, prepared)) for image in result.images]
    hidden = tuple(image for image, view in views if view is None)
    return replace(result, images=hidden), tuple(view for _, view in views if view is not None)


def user_parts(content: Iterable[Content], prepared: PreparedRequest) -> list[str | ImageView]:
    """Return the texts and images of a user turn that are no tool results, without blank texts, in order."""
    parts: list[str | ImageView] = []
    for block in content:
        if isinstance(block, Image):
            parts.append(view_of(block, prepared) or image_placeholder(block))
        elif isinstance(block, Text) and block.text.strip():
            parts.append(block.text)
    return parts


def base64_text(view: ImageView) -> str:
    """Return the bytes of a view in base64."""
    return base64.b64encode(view.data).decode()


def data_url(view: ImageView) -> str:
    """Return a view as a "data:" URL."""
    return f"data:{view.media_type};base64,{base64_text(view)}"


def images_caption(result: ToolResult) -> str:
    """Return the text in front of a result's images where they cannot be part of the result."""
    return f"What tool call {result.tool_use_id} shows:"


def has_visible_content(content: Iterable[Content]) -> bool:
    """Return whether an assistant turn contains more than reasoning and blank texts."""
    return any(isinstance(b, ToolUse) or (isinstance(b, Text) and b.text.strip()) for b in content)


def json_elements(parts: Iterable[Any]) -> bytes:
    """Encode `parts` as the elements of a JSON array; b"" if there are none."""
    return b",".join(map(ENCODER.encode, parts))


def object_with_array(head: Mapping[str, Any], key: str, elements: Iterable[tuple[bytes, ...]]) -> bytes:
    """Encode the object `head` with an array as its last member; each element is given in chunks.

    Joined in one step, since a body may have megabytes.
    """
    pieces = [ENCODER.encode(head)[:-1], b',"', key.encode(), b'":[']
    for element in elements:
        pieces += element
        pieces.append(b",")
    if pieces[-1] == b",":
        pieces.pop()
    pieces.append(b"]}")
    return b"".join(pieces)


class TurnCache:
    """Cache encoded turns per conversation: a history only grows, so each request encodes only new turns.

    Any thread. Forgotten conversations are dropped; beyond `max_bytes` the least recently used are. The size counts
    encoded turns and their source, which is kept for comparison.
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._max = max_bytes
        self._lock = threading.Lock()  # guards _kept and _held; encoding happens outside, on entries taken out
        self._kept: OrderedDict[str, _Rendered] = OrderedDict()
        self._held = 0

    @property
    def held(self) -> int:
        """Return the bytes of memory in use."""
        return self._held

    def rendered(
        self, conversation_id: str, form: Hashable, turns: Sequence[Turn], render: Callable[[Turn], bytes]
    ) -> list[tuple[str, bytes]]:
        """Return each turn's role and encoded bytes, encoding only turns that are not cached.

        `form` is everything that `render` depends on beside the turn; turns of one form at a time are cached.
        """
        former = self._take(conversation_id)
        known = former.turns if former is not None and former.form == form else []
        now: list[_Turn] = []
        for index, turn in enumerate(turns):
            # Cheap: blocks in memory are identical objects, which tuple equality tests first.
            if index < len(known) and known[index].source == turn:
                now.append(known[index])
            else:
                text = render(turn)
                now.append(_Turn(turn, text, sys.getsizeof(text) + _bytes_of(turn)))
        self._put(conversation_id, _Rendered(form, now, sum(turn.held for turn in now)))
        return [(turn.source.role, turn.text) for turn in now]

    def forget(self, conversation_id: str) -> None:
        """Drop the turns of a conversation."""
        self._take(conversation_id)

    def _take(self, conversation_id: str) -> _Rendered | None:
        with self._lock:
            kept = self._kept.pop(conversation_id, None)
            self._held -= kept.held if kept is not None else 0
            return kept

    def _put(self, conversation_id: str, rendered: _Rendered) -> None:
        with self._lock:
            former = self._kept.pop(conversation_id, None)
            self._kept[conversation_id] = rendered
            self._held += rendered.held - (former.held if former is not None else 0)
            while self._held > self._max:
                _, oldest = self._kept.popitem(last=False)
                self._held -= oldest.held


class _Turn(NamedTuple):
    source: Turn
    text: bytes
    held: int


class _Rendered(NamedTuple):
    form: Hashable
    turns: list[_Turn]
    held: int


def _bytes_of(turn: Turn) -> int:
    """Return the memory of a turn in bytes: its blocks and their texts."""
    size = sys.getsizeof(turn.content)
    for block in turn.content:
        size += sys.getsizeof(block)
        size += sum(
            sys.getsizeof(value) for name in block.__struct_fields__ if isinstance(value := getattr(block, name), str)
        )
    return size
