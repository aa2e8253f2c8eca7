"""Which signals stop a server, and when one is a reason to hurry."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from server.app.serving import _on_signals

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def hang_up() -> Iterator[None]:
    """Put the handler of SIGHUP back at the end."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


async def after(*numbers: int) -> tuple[bool, bool]:
    """Whether these signals stop the server, and whether they end its drain."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    _on_signals(stop, hurry)
    loop = asyncio.get_running_loop()
    try:
        for number in numbers:
            signal.raise_signal(number)
            for _ in range(5):  # rounds of the loop: it reads of the signal, and then calls the handler
                await asyncio.sleep(0)
        return stop.is_set(), hurry.is_set()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((signal.SIGTERM,), (True, False)),
        ((signal.SIGHUP,), (True, False)),
        ((signal.SIGTERM, signal.SIGTERM), (True, True)),
        ((signal.SIGHUP, signal.SIGINT), (True, True)),
        ((signal.SIGHUP, signal.SIGHUP), (True, False)),  # a terminal that closes may say it more than once
    ],
)
@pytest.mark.usefixtures("hang_up")
def test_the_first_signal_stops_and_the_second_ends_the_drain(
    numbers: tuple[int, ...], told: tuple[bool, bool]
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert asyncio.run(after(*numbers)) == told


@pytest.mark.usefixtures("hang_up")
def test_under_nohup_a_terminal_that_closes_stops_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert asyncio.run(after(signal.SIGHUP)) == (False, False)
