"""Images decoded in real worker processes, kept in a store."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from actors import ports
from actors.adapters.images import sandboxed_images
from actors.adapters.images.sandboxed_images import SandboxedImages, view_name
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.store.sqlite.engine import FILE, sqlite3
from actors.core.content import Image
from actors.core.context import Mode
from actors.runtime.admission import FairSlots
from tests.support import pictures
from tests.support.commit_builder import CommitBuilder
from tests.support.patience import eventually
from tests.support.sandbox_reports import sandbox_report
from tests.support.stores import new_store

BOUND = 60.0


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ToolHostSandbox]:
    """What the machine can do. At the end nothing runs, and no private directory is left."""
    made = ToolHostSandbox(sandbox_report())
    yield made
    assert made.live == 0
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> ports.Store:
    """With two conversations."""
    made = new_store(tmp_path)
    for id_ in ("c1", "c2"):
        made.commit(CommitBuilder(id_).create())
    return made


@pytest.fixture
def images(store: ports.Store, sandbox: ToolHostSandbox) -> SandboxedImages:
    return SandboxedImages(store, sandbox, FairSlots(2).hold)


@pytest.mark.parametrize("make", [pictures.wide_png, pictures.large_jpeg, pictures.animated_gif, pictures.webp])
def test_an_image_is_kept_as_it_is_and_as_models_see_it(
    make: Callable[[], bytes], images: SandboxedImages, store: ports.Store
) -> None:
    data = make()
    image = images.ingest("c1", data, ports.CancelToken())
    original = store.attachment("c1", image.attachment)
    assert original is not None
    assert (original.data, original.media_type, original.width, original.height) == (
        data, image.media_type, image.width, image.height,
    )  # fmt: skip
    view = images.view("c1", image, ports.CancelToken())
    assert view is not None
    assert max(pictures.opened(view.data).size) == min(1_568, max(image.width, image.height))
    assert images.view_bytes("c1", image, ports.CancelToken()) == len(view.data)


@pytest.mark.parametrize(
    "make",
    [
        pictures.bomb,
        lambda: pictures.bomb(20_000),
        lambda: pictures.large_jpeg()[:1_000_000],
        lambda: b"hello",
        lambda: b"",
        lambda: pictures.png()[:40],
    ],
    ids=["bomb", "large bomb", "cut off", "text", "empty", "header"],
)
def test_what_cannot_be_used_is_refused_and_not_kept(
    make: Callable[[], bytes], images: SandboxedImages, store: ports.Store
) -> None:
    data = make()
    with pytest.raises(ports.InvalidImageError):
        images.ingest("c1", data, ports.CancelToken())
    assert store.attachment("c1", sandboxed_images.content_name(data)) is None


def test_too_many_bytes_are_refused_before_a_process_is_started(
    images: SandboxedImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxed_images, "MAX_IMAGE_BYTES", 10)
    monkeypatch.setattr(images, "_sandbox", None)
    with pytest.raises(ports.InvalidImageError, match="the limit is 10"):
        images.ingest("c1", pictures.png(), ports.CancelToken())


def test_an_image_that_is_known_is_not_looked_at_again(
    images: SandboxedImages, store: ports.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = images.ingest("c1", pictures.png(), ports.CancelToken())
    monkeypatch.setattr(images, "_sandbox", None)
    assert images.ingest("c1", pictures.png(), ports.CancelToken()) == first
    assert images.view("c1", first, ports.CancelToken()) is not None


def test_each_conversation_keeps_its_own_and_loses_it_alone(images: SandboxedImages, store: ports.Store) -> None:
    for id_ in ("c1", "c2"):
        image = images.ingest(id_, pictures.png(), ports.CancelToken())
    store.delete("c1")
    assert store.attachment("c1", image.attachment) is None
    assert images.view("c2", image, ports.CancelToken()) is not None
    with pytest.raises(ports.FencedError):
        images.ingest("c1", pictures.png(), ports.CancelToken())


def test_a_missing_view_is_derived_again_byte_for_byte(
    images: SandboxedImages, tmp_path: Path, store: ports.Store
) -> None:
    image = images.ingest("c1", pictures.large_jpeg(), ports.CancelToken())
    before = images.view("c1", image, ports.CancelToken())
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as connection:
        connection.execute("DELETE FROM attachments WHERE id = ?", (view_name(image.attachment),))
    assert images.view("c1", image, ports.CancelToken()) == before
    assert store.attachment("c1", view_name(image.attachment)) is not None


def test_nothing_is_shown_of_an_image_that_is_not_there(images: SandboxedImages) -> None:
    image = Image("sha256-none", "image/png", 1, 1)
    assert images.view("c1", image, ports.CancelToken()) is None
    assert images.view_bytes("c1", image, ports.CancelToken()) == 0


def test_decoding_has_limits(images: SandboxedImages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxed_images, "LIMITS", ports.ProcessLimits(wall_seconds=60, memory_bytes=64 << 20))
    with pytest.raises(ports.InvalidImageError):  # how decoders say that they got no memory differs
        images.ingest("c1", pictures.webp(6_000, 6_000), ports.CancelToken())
    monkeypatch.undo()
    assert images.ingest("c1", pictures.webp(6_000, 6_000), ports.CancelToken()).width == 6_000


def test_a_cancel_ends_the_process_at_once(images: SandboxedImages, sandbox: ToolHostSandbox) -> None:
    cancel, started = ports.CancelToken(), threading.Event()
    start = sandbox.start

    def begun(launch: ports.Launch, on_output: Callable[[bytes], None]) -> Any:
        # It never ends by itself: standard input is read, and then nothing happens.
        endless = ("/bin/sh", "-c", "exec sleep 1000")
        tree = start(ports.Launch(endless, "/", {"PATH": os.defpath}, launch.mode, stdin=b"x"), on_output)
        started.set()
        return tree

    raised: list[BaseException] = []

    def ingest() -> None:
        try:
            images.ingest("c1", pictures.png(), cancel)
        except ports.ImagesUnavailableError as error:
            raised.append(error)

    images._sandbox = type("Slow", (), {"start": staticmethod(begun), "report": sandbox.report})()
    thread = threading.Thread(target=ingest)
    thread.start()
    assert started.wait(BOUND)
    cancel.cancel()
    thread.join(BOUND)
    assert not thread.is_alive()
    assert [str(error) for error in raised] == [sandboxed_images.CANCELLED]
    assert sandbox.live == 0


class Broken:
    """A sandbox that starts nothing."""

    protected: tuple[str, ...] = ()
    report = ports.SandboxReport("none", 0, False)

    def mode_refusal(self, mode: Mode, directory: str) -> str:
        raise NotImplementedError

    def start(self, launch: ports.Launch, on_output: Callable[[bytes], None]) -> Any:
        raise ports.ProcessStartError("not here")


def test_an_image_is_not_to_blame_for_the_end_of_the_servers_lease(store: ports.Store) -> None:
    class Ended(Broken):
        def start(self, launch: ports.Launch, on_output: Callable[[bytes], None]) -> Any:
            return self

        def kill(self) -> None:
            """Do nothing."""

        def wait(self) -> ports.ProcessEnd:
            return ports.ProcessEnd(None, 9, b"", b"", 0, 1, (), killed=True, limit="lease")

    with pytest.raises(ports.ImagesUnavailableError):
        SandboxedImages(store, Ended(), FairSlots(2).hold).ingest("c1", pictures.png(), ports.CancelToken())


def test_a_process_that_cannot_be_started_is_said_so(store: ports.Store) -> None:
    with pytest.raises(ports.ImagesUnavailableError, match="could not be started: not here"):
        SandboxedImages(store, Broken(), FairSlots(2).hold).ingest("c1", pictures.png(), ports.CancelToken())
    assert store.attachment("c1", sandboxed_images.content_name(pictures.png())) is None


class Held(Broken):
    """Notes which images are decoded, and finishes one for each release of `go`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = threading.Semaphore(0)

    def start(self, launch: ports.Launch, on_output: Callable[[bytes], None]) -> Any:
        self.begun.append(launch.stdin.decode())
        return self

    def kill(self) -> None:
        """Do nothing."""

    def wait(self) -> ports.ProcessEnd:
        assert self.go.acquire(timeout=BOUND)
        return ports.ProcessEnd(0, None, b"error\nis none", b"", 0, 1, ())


def test_the_images_of_a_principal_delay_those_of_another_by_one_turn() -> None:
    """Nor do the images that its tools read delay those that it uploads more than that."""
    store, slots, held = new_store(), FairSlots(2), Held()
    store.commit(CommitBuilder("c1", principal="crowd").create(), CommitBuilder("c2", principal="other").create())
    images = SandboxedImages(store, held, slots.hold)

    def ingest(conversation_id: str, data: bytes, uploaded: bool) -> None:
        with pytest.raises(ports.InvalidImageError):
            images.ingest(conversation_id, data, ports.CancelToken(), uploaded=uploaded)

    threads: list[threading.Thread] = []

    def begin(conversation_id: str, data: bytes, uploaded: bool = False) -> None:
        threads.append(threading.Thread(target=ingest, args=(conversation_id, data, uploaded)))
        threads[-1].start()
        eventually(lambda: len(held.begun) + slots.waiting == len(threads), "it waits")

    def end_one(then_begun: int) -> None:
        held.go.release()
        eventually(lambda: len(held.begun) == then_begun, "the next one has its turn")

    for number in range(20):
        begin("c1", f"crowd {number}".encode())
    begin("c2", b"other")
    begin("c1", b"uploaded", uploaded=True)
    assert len(held.begun) == 2
    for ended in range(1, len(threads) + 1):
        end_one(then_begun=min(ended + 2, len(threads)))
    for thread in threads:
        thread.join(BOUND)
    assert {"other", "uploaded"} <= set(held.begun[:6])
    assert slots.used("") == 0


def test_the_worker_is_as_restricted_as_the_machine_allows(images: SandboxedImages) -> None:
    report = images._sandbox.report
    mode = images._launch(b"").mode.value
    assert mode == ("restricted" if report.restriction_available else "unrestricted")
