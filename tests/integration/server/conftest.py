"""Servers for the tests of this folder."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.server.house import House, Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def open_house(loop: Loop) -> Iterator[Callable[..., House]]:
    """Starts servers; every one is stopped at the end."""
    with ExitStack() as opened:

        def start(**settings: Any) -> House:
            house = House(loop, **settings)
            opened.callback(house.close)
            return house

        yield start


@pytest.fixture
def house(open_house: Callable[..., House]) -> House:
    return open_house()
