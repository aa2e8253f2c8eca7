"""Reads and what waits for them: threads, wake-ups, deadlines, downloads."""

import asyncio
import itertools
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from bedrock import v1

from actors.core.content import Image
from actors.core.errors import QuotaExceededError, Reason, Rejected
from actors.ports import Attachment, CancelToken, Commit, ImagesUnavailableError, ImageView, Store
from server.auth.authentication import caller
from server.auth.principals import Caller, Role
from server.contract import limits
from server.contract.errors import AnswerTimeoutError, ConversationNotFoundError, SlowReaderError
from server.queries.audit import AttachmentDownloads
from server.queries.read_pool import ReadPool
from server.services.conversations import THREADS, ImageUploads
from server.streams import base
from tests.support.commit_builder import record_of
from tests.support.stores import new_store

# Reads of the store: principals take turns at the threads, and what nobody waits for any more takes none.


PATIENCE = 60.0


@pytest.fixture
def pool() -> Iterator[ReadPool]:
    made = ReadPool(1)
    yield made
    made.close()


class Reads:
    """Reads of several principals, the first of which holds the only thread until `open`."""

    def __init__(self, pool: ReadPool) -> None:
        self._pool = pool
        self._gate, self._held = threading.Event(), threading.Event()
        self.order: list[str] = []

    def _read(self, name: str) -> str:
        self._held.set()
        assert self._gate.wait(PATIENCE)
        self.order.append(name)
        return name

    def begin(self, name: str, *, long: bool = False) -> asyncio.Task[str]:
        async def read() -> str:
            caller.set(Caller(name[0], Role.USER))
            return await (self._pool.long if long else self._pool)(self._read, name)

        return asyncio.get_running_loop().create_task(read())

    async def held(self) -> None:
        assert await asyncio.to_thread(self._held.wait, PATIENCE)

    def open(self) -> None:
        self._gate.set()


async def test_a_principal_with_many_reads_delays_another_by_one(pool: ReadPool) -> None:
    reads = Reads(pool)
    tasks = [reads.begin(f"a{number}") for number in range(100)]
    await reads.held()
    tasks += [reads.begin("b0"), reads.begin("b1")]
    await asyncio.sleep(0)
    reads.open()
    assert await asyncio.gather(*tasks) == [*(f"a{number}" for number in range(100)), "b0", "b1"]
    order = reads.order
    assert order[:5] == ["a0", "a1", "b0", "a2", "b1"]


async def test_a_read_that_is_given_up_takes_no_turn(pool: ReadPool) -> None:
    reads = Reads(pool)
    running, waiting, last = (reads.begin(name) for name in ("a0", "a1", "b0"))
    await reads.held()
    for task in (running, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    reads.open()
    await asyncio.wait_for(last, PATIENCE)
    assert reads.order == ["a0", "b0"]


async def test_a_read_that_fails_gives_its_thread_back(pool: ReadPool) -> None:
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(pool(divmod, 1, 0), PATIENCE)


async def test_reads_of_one_principal_that_take_long_leave_a_thread_to_others() -> None:
    pool = ReadPool(4)
    reads, other = Reads(pool), Reads(pool)
    other.open()
    try:
        tasks = [reads.begin(f"a{number}") for number in range(100)]
        await reads.held()
        assert await asyncio.wait_for(other.begin("b0"), PATIENCE) == "b0"
        reads.open()
        await asyncio.gather(*tasks)
    finally:
        reads.open()
        await asyncio.to_thread(pool.close)


async def test_long_reads_of_however_many_principals_leave_threads_to_what_is_quick() -> None:
    pool = ReadPool(4)
    reads, quick = Reads(pool), Reads(pool)
    quick.open()
    try:
        tasks = [reads.begin(f"{name}{number}", long=True) for number in range(5) for name in "abcdef"]
        given_up = reads.begin("g0", long=True)
        await reads.held()
        given_up.cancel()
        for name in ("a9", "z0"):
            assert await asyncio.wait_for(quick.begin(name), PATIENCE) == name
        reads.open()
        await asyncio.gather(*tasks)
        last = [quick.begin(f"h{number}", long=True) for number in range(5)]
        await asyncio.wait_for(asyncio.gather(*last), PATIENCE)  # no slot was lost
    finally:
        reads.open()
        await asyncio.to_thread(pool.close)


# Many wake-ups from many threads cross to the loop, few at a time, and none is lost.


WATCHERS = 100
PUBLISHERS = 4
ROUNDS = 500


async def test_all_that_wait_cross_together_and_a_request_waits_behind_a_few_of_them_only() -> None:
    loop = asyncio.get_running_loop()
    wakeups, crossings = base.Wakeups(loop), 0
    original = loop.call_soon_threadsafe

    def count(*arguments: object) -> object:
        nonlocal crossings
        crossings += 1
        return original(*arguments)  # type: ignore[arg-type]

    loop.call_soon_threadsafe = count  # type: ignore[method-assign, assignment]
    woken: list[int] = []
    for number in range(WATCHERS):
        wakeups.wake(lambda number=number: woken.append(number))  # type: ignore[misc]
    seen = [0]
    while len(woken) < WATCHERS:
        await asyncio.sleep(0)
        seen.append(len(woken))
    assert woken == list(range(WATCHERS))
    assert crossings == 1
    assert max(later - earlier for earlier, later in itertools.pairwise(seen)) <= base.AT_ONCE


async def test_no_wake_up_of_any_thread_is_lost() -> None:
    wakeups, woken, done = base.Wakeups(asyncio.get_running_loop()), Counter[int](), asyncio.Event()

    def arrived(number: int) -> None:
        woken[number] += 1
        if woken.total() == PUBLISHERS * ROUNDS:
            done.set()

    def publish(number: int) -> None:
        for _ in range(ROUNDS):
            wakeups.wake(lambda: arrived(number))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(PUBLISHERS)]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(20):
        await done.wait()
    for thread in threads:
        thread.join()
    assert woken == dict.fromkeys(range(PUBLISHERS), ROUNDS)


class Sneaky(deque[Any]):
    """Somebody queues an entry in the very moment in which the queue was found empty."""

    moment: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        found = len(self) > 0
        if not found and self.moment is not None:
            moment, self.moment = self.moment, None
            moment()
        return found


async def test_a_wake_up_in_the_moment_in_which_the_queue_is_found_empty_is_not_lost() -> None:
    wakeups, woken = base.Wakeups(asyncio.get_running_loop()), asyncio.Event()
    queue = Sneaky()
    queue.moment = lambda: wakeups.wake(woken.set)
    wakeups._waiting = queue
    wakeups.wake(lambda: None)
    async with asyncio.timeout(10):
        await woken.wait()


class Loop:
    """A loop whose time stands still."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[float] = []

    def time(self) -> float:
        return 1_000.0

    def call_soon(self, callback: Callable[..., None], *arguments: object) -> None:
        self.soon.append(partial(callback, *arguments))

    call_soon_threadsafe = call_soon

    def run(self) -> None:
        while self.soon:
            self.soon.pop()()

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        self.later.append(when)


@pytest.mark.parametrize(
    ("each", "longest_seconds"),
    [(base.EVENTS_PAUSE_SECONDS, base.LONGEST_SECONDS), (base.TEXT_PAUSE_SECONDS, base.TEXT_LONGEST_SECONDS)],
    ids=["events", "text"],
)
@pytest.mark.parametrize(("watchers", "paused"), [(1, False), (40, True), (5_000, True)])
def test_after_many_watchers_more_gathers_for_a_while(
    watchers: int, paused: bool, each: float, longest_seconds: float
) -> None:
    loop = Loop()
    wakeups = base.Wakeups(loop, each, longest_seconds)  # type: ignore[arg-type]
    woken: list[int] = []
    for number in range(watchers):
        wakeups.wake(lambda number=number: woken.append(number))  # type: ignore[misc]
    loop.run()
    assert len(woken) == watchers
    wakeups.wake(lambda: woken.append(-1))
    loop.run()
    assert loop.later == ([1_000.0 + min(watchers * each, longest_seconds)] if paused else [])
    assert (woken[-1] == -1) is not paused


def test_live_text_goes_to_a_single_watcher_at_once_and_never_waits_longer_than_50_ms() -> None:
    assert base.TEXT_PAUSE_SECONDS < base.SHORTEST_SECONDS
    assert base.TEXT_LONGEST_SECONDS == 0.05


def test_a_flow_that_never_rests_is_paused_too() -> None:
    """Whoever is woken is there again at once, since something is always new."""
    loop = Loop()
    wakeups = base.Wakeups(loop)  # type: ignore[arg-type]
    woken = Counter[int]()

    def watcher(number: int) -> None:
        woken[number] += 1
        assert woken[number] < 10, "the crossing has no end"
        wakeups.wake(lambda: watcher(number))

    for number in range(WATCHERS):
        wakeups.wake(lambda number=number: watcher(number))  # type: ignore[misc]
    loop.run()
    assert woken == dict.fromkeys(range(WATCHERS), 1)
    assert loop.later == [1_000.0 + WATCHERS * base.EVENTS_PAUSE_SECONDS]


def test_waking_after_the_loop_has_closed_does_no_harm() -> None:
    loop = asyncio.new_event_loop()
    wakeups = base.Wakeups(loop)
    loop.close()
    wakeups.wake(lambda: None)


# Stopping takes no longer than it may, whatever hangs.


ROOT = Path(__file__).parents[3]

HANGS = """
import sys, threading
from server import json_logs as logs
from server.app.serving import Deadline
logs.set_up("error")
with Deadline() as deadline:
    deadline.set(0.05)
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (HANGS, 1, "shutdown took longer"),
        (HANGS.replace("0.05", "600").replace("threading.Event().wait()", "pass"), 0, ""),
    ],
    ids=["hangs", "in time"],
)
def test_a_process_is_ended_if_it_hangs_while_stopping_and_else_left_alone(program: str, code: int, said: str) -> None:
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients'}"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, bool(done.stderr)) == (code, bool(said))
    assert said in done.stderr


# Images on their way out and in: a reader or a sender who is too slow ends, and leaves nothing behind.


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
            asyncio.run(pictures.upload("c1", request, 0.01))
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
            asyncio.run(pictures.upload("c1", request, 60))
        assert (asked, images.stopped.is_set()) == ([("local", 1)], False)
        repeated = v1.SendMessageRequest(images=[v1.Image(media_type="image/png", data=b"known")])
        assert asyncio.run(pictures.upload("c1", repeated, 60)) == (KNOWN,), "it needs no more room"
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
            asyncio.run(pictures.upload("c1", v1.SendMessageRequest(images=[picture]), 60))
        assert (asked, images.stopped.is_set()) == (["c1"], False)
        repeated = v1.SendMessageRequest(images=[v1.Image(media_type="image/png", data=b"known")])
        assert asyncio.run(pictures.upload("c1", repeated, 60)) == (KNOWN,), "the conversation judges it"
        with pytest.raises(AnswerTimeoutError):
            asyncio.run(pictures.upload("c1", v1.SubmitToolResultRequest(images=[picture]), 0.01))
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
        await pictures.upload(principal, v1.SendMessageRequest(images=many[:count]), 60)

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
