"""Page tokens are opaque, belong to one listing, and pages are bounded in items and in bytes."""

from __future__ import annotations

import base64

import msgspec
import pytest

from server.contract.errors import MalformedRequestError
from server.contract.pagination import Page, position_of, size_of, token_of


class Place(msgspec.Struct):
    sequence: int


def test_a_token_gives_its_position_back() -> None:
    assert position_of(token_of(Place(7), "list", "a"), Place, "list", "a") == Place(7)


def test_no_token_is_no_position() -> None:
    assert position_of("", Place, "list") is None


@pytest.mark.parametrize(
    "token",
    [
        token_of(Place(7), "list", "other"),
        token_of(Place(7), "list", "a")[:-4],
        "ä",
        "?",
        "AAAA",
        base64.urlsafe_b64encode(b"x" * 40).decode(),
    ],
)
def test_another_token_is_refused_by_its_field(token: str) -> None:
    with pytest.raises(MalformedRequestError) as refusal:
        position_of(token, Place, "list", "a")
    assert refusal.value.violations[0][0] == "page_token"


@pytest.mark.parametrize(("wanted", "size"), [(0, 20), (1, 1), (100, 100), (2_000_000_000, 100)])
def test_sizes_have_a_default_and_a_maximum(wanted: int, size: int) -> None:
    assert size_of(wanted, (20, 100)) == size


def test_a_page_is_full_when_the_next_item_does_not_fit() -> None:
    page = Page(10, 100)
    assert [page.take(60), page.take(41), page.take(40), page.take(1)] == [True, False, True, False]


def test_a_page_takes_its_first_item_whatever_its_size() -> None:
    page = Page(2, 100)
    assert [page.take(500), page.take(1)] == [True, False]


def test_a_page_holds_no_more_items_than_asked_for() -> None:
    page = Page(2, 100)
    assert [page.take(1), page.take(1), page.take(1)] == [True, True, False]
