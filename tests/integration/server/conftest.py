"""Servers for the tests of this folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.server.grpc_harness import GrpcHarness, Loop


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def open_harness(loop: Loop) -> Iterator[Callable[..., GrpcHarness]]:
    """Starts servers; every one is stopped at the end."""
    with ExitStack() as opened:

        def start(**settings: Any) -> GrpcHarness:
            harness = GrpcHarness(loop, **settings)
            opened.callback(harness.close)
            return harness

        yield start


@pytest.fixture
def harness(open_harness: Callable[..., GrpcHarness]) -> GrpcHarness:
    return open_harness()
