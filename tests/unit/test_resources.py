"""What this process has none left of is told as that, whatever error it came as, and some is kept for cancels."""

import errno
import os
import resource
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.adapters.store.sqlite.engine import open_writer
from actors.common.machine import exhausted_resource, max_open_files, open_files, out_of_file_descriptors
from actors.core.errors import ErrorKind
from actors.ports import CancelToken, StoreUnavailableError
from actors.runtime import admission
from actors.runtime.admission import Admission, FileRoom
from server.contract.errors import status_of
from server.operating_system import raise_open_files
from tests.support.model_requests import Sink, failure, model, request


@contextmanager
def no_files() -> Generator[int]:
    """No file can be opened by this process; gives the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield lowest
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def wrapped(cause: BaseException) -> BaseException:
    """An error that another one led to."""
    try:
        try:
            raise cause
        except BaseException as inner:
            raise ValueError("something else") from inner
    except ValueError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "this server has reached its limit of "),
        (OSError(errno.ENFILE, "Too many open files in system"), "this machine has reached its limit on open files"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "this server is out of memory"),
        (MemoryError(), "this server is out of memory"),
        (RuntimeError("can't start new thread"), "this server cannot start any more threads"),
    ],
)
def test_what_is_lacking_is_found_at_the_bottom_of_an_error_and_is_no_fault(error: BaseException, text: str) -> None:
    for told in (error, wrapped(error)):
        assert exhausted_resource(told).startswith(text)
        status = status_of(told)
        assert status.code == 8  # RESOURCE_EXHAUSTED
        assert status.message.startswith(text)
        assert status.message.endswith("try again later")
    stored = StoreUnavailableError("cannot be read")
    stored.__cause__ = error
    assert status_of(stored).code == 8


def test_other_errors_are_about_something_else() -> None:
    for error in (RuntimeError("other"), OSError(errno.ENOENT, "none"), ValueError(), None):
        assert exhausted_resource(error) == ""
    assert status_of(RuntimeError("other")).code == 13  # INTERNAL


def test_python_says_that_no_thread_can_be_started_as_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    threading.stack_size(1 << 46)  # more than any machine has
    try:
        with pytest.raises(RuntimeError) as raised:
            threading.Thread(target=lambda: None).start()
    finally:
        threading.stack_size(0)
    assert exhausted_resource(raised.value)


def test_files_are_counted_and_their_end_is_seen() -> None:
    assert 0 < open_files() < max_open_files()
    assert not out_of_file_descriptors()
    with no_files() as limit:
        assert out_of_file_descriptors()
        assert open_files() >= limit == max_open_files()


def test_files_are_listed_only_where_the_kernel_does_not_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []

    def listdir(folder: str) -> list[str]:
        listed.append(folder)
        return ["0", "1", "2"]

    monkeypatch.setattr(os, "listdir", listdir)
    before = open_files()
    if listed:
        pytest.skip("this kernel does not count open files")
    with open(os.devnull, "rb"):
        assert open_files() == before + 1
    assert listed == []
    monkeypatch.setattr("actors.common.machine._COUNTED", "/nowhere")
    assert (open_files(), listed) == (3, ["/proc/self/fd"])


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "https://127.0.0.1:1"])
def test_a_request_without_a_file_descriptor_is_our_own_failure_and_may_be_tried_again(url: str) -> None:
    asked = model("anthropic", url)
    with no_files() as limit:
        failed = failure(asked).failure
    assert failed.kind is ErrorKind.RESOURCE_EXHAUSTED
    assert failed.retryable
    assert failed.message == (
        f"This server has reached its limit of {limit:,} open files (ulimit -n). Send a message later to try again."
    )


def test_neither_is_it_the_fault_of_a_keys_command() -> None:
    asked = model("anthropic", "http://127.0.0.1:1", api_key_command=("true",))
    with no_files():
        assert failure(asked).failure.kind is ErrorKind.RESOURCE_EXHAUSTED


def test_memory_that_runs_out_is_not_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    asked = model("anthropic", "http://127.0.0.1:1")
    monkeypatch.setattr("actors.adapters.llm.transport.http.Transport.post", exhausted)
    with pytest.raises(Exception, match="This server is out of memory") as raised:
        asked.respond(request(), Sink(), CancelToken())
    assert raised.value.failure.kind is ErrorKind.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]


def test_a_read_of_the_store_without_a_file_descriptor_says_so(tmp_path: Path) -> None:
    from actors.adapters.store.sqlite.engine import OpenFiles, Readers

    path = tmp_path / "bedrock.db"
    open_writer(path).close()
    readers = Readers(path, OpenFiles(path))
    with no_files(), pytest.raises(StoreUnavailableError) as raised, readers.lend():
        pass
    assert exhausted_resource(raised.value).startswith("this server has reached its limit of ")
    with readers.lend() as session:
        assert session.run("select 1").fetchone() == (1,)
    readers.close()


# --- what is kept for cancels -----------------------------------------------------------------------------------------


def test_the_last_file_descriptors_are_not_given_to_anything_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "COUNT_SECONDS", 3600.0)
    room = FileRoom(limit=lambda: 256, count=lambda: 200)
    assert room.reserved == 32
    assert [room.reserve(10) for _ in range(4)] == [True, True, False, False]
    monkeypatch.setattr(admission, "COUNT_SECONDS", 0.0)
    assert room.reserve(10), "they were counted again"


def test_a_refused_request_names_the_limit_and_takes_no_place() -> None:
    count = [0]
    gate = Admission(2, FileRoom(limit=lambda: 256, count=lambda: count[0]))
    assert gate.acquire() == ""
    assert gate.acquire() == ""
    assert gate.acquire() == "this server has reached its limit of 2 model requests in flight"
    gate.release()
    count[0] = 240
    full = Admission(2, FileRoom(limit=lambda: 256, count=lambda: count[0]))
    for _ in range(3):
        assert full.acquire() == (
            "this server has too few file descriptors left for another model request (ulimit -n is 256, of which "
            "32 are reserved for cancels and running work)"
        )
    count[0] = 0


def test_the_limit_is_raised_to_what_the_machine_allows_and_never_lowered() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_open_files()
        assert max_open_files() == min(hard if hard != resource.RLIM_INFINITY else 65_536, 65_536)
        raised = max_open_files()
        raise_open_files()
        assert max_open_files() == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
