"""Pooled threads: as many as there are jobs at a time, used again, and none that outlives its use."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING

import pytest

from actors.runtime.thread_pool import IDLE_NAME, ThreadPool
from tests.support.patience import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


class Job:
    """A job that a test holds up; it notes its thread, and how that is called meanwhile."""

    def __init__(self, pool: ThreadPool, fail: BaseException | None = None) -> None:
        self._started, self._finish = threading.Event(), threading.Event()
        self._fail = fail
        pool.run(self, "a job")
        assert self._started.wait(PATIENCE)

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.name = self.thread.name
        self._started.set()
        assert self._finish.wait(PATIENCE)
        if self._fail is not None:
            raise self._fail

    def end(self) -> None:
        """Return once its thread is idle."""
        self._finish.set()
        eventually(lambda: self.thread.name == IDLE_NAME, "its thread is idle")


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    made = ThreadPool()
    yield made
    made.close()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    return monkeypatch


def test_jobs_one_after_the_other_share_a_thread_that_has_the_name_of_each(pool: ThreadPool) -> None:
    first = Job(pool)
    first.end()
    second = Job(pool)
    second.end()
    assert second.thread is first.thread
    assert first.name == second.name == "a job"


def test_jobs_at_the_same_time_have_a_thread_each_and_the_last_used_one_is_used_next(pool: ThreadPool) -> None:
    jobs = [Job(pool) for _ in range(3)]
    assert len({job.thread for job in jobs}) == 3
    for job in jobs:
        job.end()
    again = [Job(pool) for _ in range(3)]
    assert [job.thread for job in again] == [job.thread for job in reversed(jobs)]
    for job in again:
        job.end()


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(1), KeyboardInterrupt()])
def test_a_job_that_fails_is_logged_and_its_thread_takes_the_next(
    pool: ThreadPool, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Job(pool, error)
    failing.end()
    assert [record.getMessage() for record in caplog.records] == ["a job of thread a job failed"]
    other = Job(pool)
    other.end()
    assert other.thread is failing.thread


def test_without_a_thread_the_caller_is_refused_unless_one_is_idle(
    pool: ThreadPool, no_threads: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.run(print, "never")
    no_threads.undo()
    job = Job(pool)
    job.end()
    no_threads.setattr(threading.Thread, "start", partial(pytest.fail, "an idle one is there"))
    Job(pool).end()


def test_an_idle_thread_ends_after_a_while() -> None:
    pool = ThreadPool(idle_seconds=0.0)
    job = Job(pool)
    job.end()
    job.thread.join(PATIENCE)
    assert not job.thread.is_alive()
    Job(pool).end()


def test_jobs_that_meet_threads_which_are_about_to_end_are_all_run() -> None:
    pool, done = ThreadPool(idle_seconds=0.0), threading.Semaphore(0)
    for _ in range(2_000):
        pool.run(done.release, "a job")
    for _ in range(2_000):
        assert done.acquire(timeout=PATIENCE)


def test_an_idle_thread_keeps_nothing_of_its_last_job_alive(pool: ThreadPool) -> None:
    job = Job(pool)
    thread, kept = job.thread, weakref.ref(job)
    job.end()
    del job
    gc.collect()
    assert kept() is None
    assert thread.is_alive()


def test_closing_ends_idle_threads_now_and_the_others_after_their_job(pool: ThreadPool) -> None:
    idle, busy = Job(pool), Job(pool)
    idle.end()
    pool.close()
    pool.close()
    assert not idle.thread.is_alive()
    assert busy.thread.is_alive()
    busy.end()
    busy.thread.join(PATIENCE)
    assert not busy.thread.is_alive()
