"""The cancellation token: who waits for it, and what runs when it is cancelled."""

from __future__ import annotations

import threading

import pytest

from actors.ports import CancelToken
from tests.support.patience import PATIENCE


def test_a_cancel_wakes_every_thread_that_waits() -> None:
    token, ended = CancelToken(), []
    threads = [threading.Thread(target=lambda: ended.append(token.wait(10 * PATIENCE))) for _ in range(3)]
    for thread in threads:
        thread.start()
    token.cancel()
    token.cancel()
    for thread in threads:
        thread.join(PATIENCE)
    assert ended == [True] * 3


@pytest.mark.parametrize("seconds", [0.001, 0.0, -1.0])
def test_a_wait_ends_after_its_time_and_leaves_nothing_to_wake(seconds: float) -> None:
    token = CancelToken()
    assert not token.wait(seconds)
    assert not token.wait(seconds)
    token.cancel()
    assert token.wait(10 * PATIENCE)


def test_a_callback_runs_once_or_not_at_all_if_it_was_forgotten() -> None:
    token, ran = CancelToken(), []
    first, second, late = (lambda: ran.append(1)), (lambda: ran.append(2)), (lambda: ran.append(3))
    token.on_cancel(first)
    token.on_cancel(second)
    assert token.forget(first)
    assert not token.forget(first)
    token.cancel()
    token.cancel()
    token.on_cancel(late)
    assert ran == [2, 3]
    assert not token.forget(second)
