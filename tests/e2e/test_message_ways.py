"""The ways that docs/architecture.md draws are those that a server goes, and they grow no longer."""

import pytest

from tests.generate.message_ways import PAGE, Ways, drawn, record


@pytest.fixture(scope="module")
def ways() -> Ways:
    return record()


def test_the_page_draws_the_ways_that_a_server_goes(ways: Ways) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert drawn(page, ways) == page, "run `make message-ways`"


def test_the_ways_do_not_grow(ways: Ways) -> None:
    """Whoever makes one shorter lowers its limit."""
    assert len(ways.message.stops) <= 38
    assert ways.message.switches <= 90
    assert len(ways.cancel.stops) <= 35
    assert len(ways.exchange) <= 70
