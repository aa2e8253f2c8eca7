"""Images on their way out and in: a reader or a sender who is too slow ends, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest
from bedrock import v1

from actors.core.content import Image
from actors.core.errors import QuotaExceededError, Reason, Rejected
from actors.ports import Attachment, CancelToken, Commit, ImagesUnavailableError, ImageView, Store
from server.auth.authentication import caller
from server.auth.principals import Caller, Role
from server.contract import limits
from server.contract.errors import AnswerTimeoutError, ConversationNotFoundError, SlowReaderError
from server.queries.downloads import AttachmentDownloads
from server.queries.read_pool import ReadPool
from server.services.image_upload import THREADS, ImageUploads
from tests.support.commit_builder import record_of
from tests.support.stores import new_store

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = bytes(range(256)) * (limits.ATTACHMENT_PIECE_BYTES // 256 * 5 // 2)
NAME = "conversations/c1/attachments/a1"


@pytest.fixture
def reads() -> Iterator[ReadPool]:
    pool = ReadPool(1)
    yield pool
    pool.close()


@pytest.fixture
def store() -> Store:
    kept = new_store()
    kept.commit(Commit(record_of("c1"), 0, create=True))
    kept.put_attachment("c1", Attachment("a1", "image/png", DATA, 30, 20))
    return kept


def test_an_attachment_comes_in_pieces_that_say_first_what_it_is(store: Store, reads: ReadPool) -> None:
    pieces: list[v1.DownloadAttachmentResponse] = []

    async def write(piece: v1.DownloadAttachmentResponse) -> None:
        pieces.append(piece)

    asyncio.run(AttachmentDownloads(store, reads).serve("c1", v1.DownloadAttachmentRequest(name=NAME), write))
    assert b"".join(piece.data for piece in pieces) == DATA
    assert [(piece.media_type, piece.size_bytes) for piece in pieces] == [("image/png", len(DATA)), ("", 0), ("", 0)]


def test_a_reader_who_stops_reading_is_ended(store: Store, reads: ReadPool) -> None:
    async def write(_: v1.DownloadAttachmentResponse) -> None:
        await asyncio.Event().wait()

    downloads = AttachmentDownloads(store, reads, stall_seconds=0.01)
    with pytest.raises(SlowReaderError):
        asyncio.run(downloads.serve("c1", v1.DownloadAttachmentRequest(name=NAME), write))


def test_what_is_not_there_is_missing(store: Store, reads: ReadPool) -> None:
    async def write(_: v1.DownloadAttachmentResponse) -> None:
        raise AssertionError("there is nothing to write")

    for name in (f"{NAME}.view1", "conversations/c1/attachments/a2"):
        with pytest.raises(ConversationNotFoundError):
            asyncio.run(AttachmentDownloads(store, reads).serve("c1", v1.DownloadAttachmentRequest(name=name), write))


KNOWN = Image("sha256-1", "image/png", 1, 1)


class Endless:
    """Looks at an image until it is told to stop (Images)."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stored(self, conversation_id: str, data: bytes) -> Image | None:
        return KNOWN if data == b"known" else None

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken, *, uploaded: bool = False) -> Image:
        assert uploaded
        cancel.wait(60)
        self.stopped.set()
        raise ImagesUnavailableError("was stopped")

    def view(self, conversation_id: str, image: Image, cancel: CancelToken) -> ImageView | None:
        self._unused()

    def stored_as(self, image: Image) -> tuple[str, ...]:
        return (image.attachment,)

    def view_bytes(self, conversation_id: str, image: Image, cancel: CancelToken) -> int:
        self._unused()

    def _unused(self) -> NoReturn:
        raise AssertionError("nobody looks at this one")


def test_an_image_that_takes_too_long_fails_and_its_decoder_is_stopped() -> None:
    images = Endless()
    pictures = ImageUploads(images)
    request = v1.SendMessageRequest(images=[v1.Image(media_type="image/png", data=b"x")])
    try:
        with pytest.raises(AnswerTimeoutError):
            asyncio.run(pictures.taken("c1", request, 0.01))
        assert images.stopped.wait(30)
    finally:
        pictures.close()


def test_no_image_is_looked_at_or_kept_for_a_principal_who_may_store_nothing_more() -> None:
    images, asked = Endless(), []

    def refuse(principal: str, more: int) -> None:
        asked.append((principal, more))
        raise QuotaExceededError("stored_bytes", principal, limit=1, used=1, retry_ms=1, dollars=False)

    pictures = ImageUploads(images, refuse)
    request = v1.SendMessageRequest(images=[v1.Image(media_type="image/png", data=b"x")])
    try:
        with pytest.raises(QuotaExceededError):
            asyncio.run(pictures.taken("c1", request, 60))
        assert (asked, images.stopped.is_set()) == ([("local", 1)], False)
        repeated = v1.SendMessageRequest(images=[v1.Image(media_type="image/png", data=b"known")])
        assert asyncio.run(pictures.taken("c1", repeated, 60)) == (KNOWN,), "it needs no more room"
    finally:
        pictures.close()


def test_no_image_is_looked_at_or_kept_for_a_model_that_takes_none() -> None:
    images, asked = Endless(), []

    def refuse(conversation_id: str) -> None:
        asked.append(conversation_id)
        raise Rejected(Reason.IMAGE_INVALID)

    pictures = ImageUploads(images, check_model=refuse)
    picture = v1.Image(media_type="image/png", data=b"x")
    try:
        with pytest.raises(Rejected):
            asyncio.run(pictures.taken("c1", v1.SendMessageRequest(images=[picture]), 60))
        assert (asked, images.stopped.is_set()) == (["c1"], False)
        repeated = v1.SendMessageRequest(images=[v1.Image(media_type="image/png", data=b"known")])
        assert asyncio.run(pictures.taken("c1", repeated, 60)) == (KNOWN,), "the conversation judges it"
        with pytest.raises(AnswerTimeoutError):
            asyncio.run(pictures.taken("c1", v1.SubmitToolResultRequest(images=[picture]), 0.01))
        assert asked == ["c1"]
    finally:
        pictures.close()


class Counted(Endless):
    """Looks at images one after the other, and notes whose they are."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def ingest(self, conversation_id: str, data: bytes, cancel: CancelToken, *, uploaded: bool = False) -> Image:
        self.seen.append(conversation_id)
        return KNOWN


def test_many_messages_with_many_images_delay_that_of_another_principal_by_one_image_of_them() -> None:
    images = Counted()
    pictures = ImageUploads(images)
    many = [v1.Image(media_type="image/png", data=bytes([number])) for number in range(5)]

    async def send(principal: str, count: int) -> None:
        caller.set(Caller(principal, Role.USER))
        await pictures.taken(principal, v1.SendMessageRequest(images=many[:count]), 60)

    async def together() -> None:
        crowd = [asyncio.create_task(send("crowd", 5)) for _ in range(20)]
        while len(images.seen) < 4:
            await asyncio.sleep(0)
        before = len(images.seen)
        await send("other", 1)
        assert images.seen.index("other") - before <= 2 * THREADS
        await asyncio.gather(*crowd)

    try:
        asyncio.run(together())
    finally:
        pictures.close()
    assert images.seen.count("crowd") == 100
