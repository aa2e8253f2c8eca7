"""Decodes images in sandboxed worker processes and stores them. Few workers run at a time; principals take turns."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from actors.core.content import Image
from actors.core.context import Mode
from actors.ports import (
    Attachment,
    AttachmentStore,
    CancelToken,
    ImagesUnavailableError,
    ImageView,
    InvalidImageError,
    Launch,
    ProcessEnd,
    ProcessLimits,
    ProcessStartError,
    Sandbox,
    SandboxUnavailableError,
)
from actors.ports.workspace import IMAGE_TYPES, MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS, Turn

# Limits for one worker. The largest accepted image takes about 700 MB in the format that needs the most memory.
LIMITS = ProcessLimits(wall_seconds=60, cpu_seconds=30, memory_bytes=1 << 30, open_files=64, processes=16)

# Maximum bytes that a worker may print: more than twice the maximum size of a view, which is most of its output.
OUTPUT_BYTES = 8 << 20

# The suffix of each view's id. A release that makes views in a different way must change this suffix, because stored
# views are never replaced.
VIEW_KIND = "view1"

# Maximum number of views (scaled-down images) whose size is cached.
KNOWN_SIZES = 10_000

PROGRAM = (
    "import sys; sys.path.insert(0, {root!r}); sys.path.append({pillow!r}); "
    "from actors.adapters.images import worker; worker.main(sys.argv[1:])"
)

FAILED = "the image process failed"
CANCELLED = "decoding the image was cancelled"


class Decoded(Struct, frozen=True):
    """A decoded image: the reference to the original, and the scaled-down copy (view) that models get."""

    image: Image
    view: Attachment


class ImageStore(AttachmentStore, Protocol):
    """The methods of the store that SandboxedImages uses."""

    def owner(self, conversation_id: str) -> str | None: ...


class SandboxedImages:
    """Implements ports.Images with a worker process for each image to decode. Thread-safe."""

    def __init__(self, store: ImageStore, sandbox: Sandbox, turn: Turn) -> None:
        self._store = store
        self._sandbox = sandbox
        self._turn = turn
        self._lock = threading.Lock()  # guards _sizes; not held while an image is decoded
        self._sizes: OrderedDict[str, int] = OrderedDict()

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken, *, uploaded: bool = False) -> Image:
        """See ports.Images. Each conversation has its own copy of an image, which is deleted with the conversation."""
        if len(data) > MAX_IMAGE_BYTES:
            raise InvalidImageError(f"has {len(data)} bytes; the limit is {MAX_IMAGE_BYTES}")
        if (stored := self.stored(conversation_id, data)) is not None:
            return stored
        name = content_name(data)
        seen = self._decode(self._waits_as(conversation_id, uploaded=uploaded), data, name, cancel)
        image = seen.image
        # Store the view first, so that every stored original has a view even after a crash.
        self._store.put_attachment(conversation_id, seen.view)
        self._store.put_attachment(conversation_id, Attachment(name, image.media_type, data, image.width, image.height))
        return image

    def stored(self, conversation_id: str, data: bytes) -> Image | None:
        name = content_name(data)
        kept = self._store.attachment(conversation_id, name)
        return None if kept is None else Image(name, kept.media_type, kept.width, kept.height)

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        view = self._store.attachment(conversation_id, view_name(image.attachment))
        if view is None:
            original = self._store.attachment(conversation_id, image.attachment)
            if original is None:
                return None
            try:
                view = self._decode(self._waits_as(conversation_id), original.data, original.id, cancel).view
            except InvalidImageError:
                return None
            self._store.put_attachment(conversation_id, view)
        return ImageView(view.media_type, view.data)

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        """See ports.Images.

        Cached for each conversation and image, because the views of one image may differ in size if an earlier release
        made some of them.
        """
        key = f"{conversation_id}/{image.attachment}"
        with self._lock:
            known = self._sizes.get(key)
        if known is not None:
            return known
        view = self.view(conversation_id, image, cancel)
        size = 0 if view is None else len(view.data)
        with self._lock:
            self._sizes[key] = size
            if len(self._sizes) > KNOWN_SIZES:
                self._sizes.popitem(last=False)
        return size

    def stored_as(self, image: Image) -> tuple[str, ...]:
        return (image.attachment, view_name(image.attachment))

    def _waits_as(self, conversation_id: str, *, uploaded: bool = False) -> str:
        """The list in which to wait for a turn. Raises StoreError.

        Each principal has one list for uploads and one for everything else.
        """
        principal = self._store.owner(conversation_id) or ""
        return f"{principal} (uploads)" if uploaded else principal

    def _decode(self, whose: str, data: bytes, name: str, cancel: CancelToken) -> Decoded:
        """Decode an image in a worker process, after waiting for a turn in the list `whose`.

        Raises InvalidImageError or ImagesUnavailableError.
        """
        with self._turn(whose, cancel) as begins:
            end = self._run(data, cancel) if begins else None
        if cancel.cancelled or end is None:
            raise ImagesUnavailableError(CANCELLED)
        verdict, _, rest = end.head.partition(b"\n")
        if verdict == b"error":
            raise InvalidImageError(rest.decode(errors="replace"))
        if verdict == b"ok" and end.exit_code == 0 and not end.cut_bytes:
            return _parse_answer(rest, name)
        if end.limit == "lease":
            raise ImagesUnavailableError(FAILED)
        if end.limit or end.exit_code is None:
            raise InvalidImageError("takes too much time or memory to decode")
        raise ImagesUnavailableError(FAILED)

    def _run(self, data: bytes, cancel: CancelToken) -> ProcessEnd:
        try:
            running = self._sandbox.start(self._launch(data), lambda _output: None)
        except (ProcessStartError, SandboxUnavailableError) as failed:
            raise ImagesUnavailableError(f"the image process could not be started: {failed}") from failed
        kill = running.kill
        cancel.on_cancel(kill)
        try:
            return running.wait()
        finally:
            cancel.forget(kill)

    def _launch(self, data: bytes) -> Launch:
        restricted = self._sandbox.report.restriction_available
        program = PROGRAM.format(root=str(Path(__file__).parents[3]), pillow=_pillow_directory())
        return Launch(
            argv=(sys.executable, "-I", "-S", "-c", program, str(MAX_IMAGE_PIXELS)),
            cwd="/",
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            mode=Mode.RESTRICTED if restricted else Mode.UNRESTRICTED,
            limits=LIMITS,
            stdin=data,
            output_bytes=OUTPUT_BYTES,
        )


def content_name(data: bytes) -> str:
    return f"sha256-{hashlib.sha256(data).hexdigest()}"


def view_name(original: str) -> str:
    return f"{original}.{VIEW_KIND}"


def _parse_answer(answer: bytes, name: str) -> Decoded:
    """Parse a worker's output, which a hostile image may have influenced. Raises ImagesUnavailableError."""
    line, _, view = answer.partition(b"\n")
    try:
        facts = json.loads(line)
        width, height = map(int, facts["size"])
        view_width, view_height = map(int, facts["view_size"])
        media_type, view_type = facts["media_type"], facts["view_type"]
    except (ValueError, KeyError, TypeError):
        raise ImagesUnavailableError(FAILED) from None
    if media_type not in IMAGE_TYPES or view_type not in IMAGE_TYPES[:2] or not view:
        raise ImagesUnavailableError(FAILED)
    image = Image(name, media_type, width, height)
    return Decoded(image, Attachment(view_name(name), view_type, view, view_width, view_height))


def _pillow_directory() -> str:
    """The directory from which Pillow would be imported. Raises ImagesUnavailableError if it is not installed."""
    found = find_spec("PIL")
    if found is None or found.origin is None:
        raise ImagesUnavailableError("the Python package Pillow is not installed; reinstall the server")
    return str(Path(found.origin).parents[1])
