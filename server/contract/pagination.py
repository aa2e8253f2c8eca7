"""Pages of lists, as in Google's AIP-158: opaque page tokens, and pages limited in items and in bytes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Protocol, TypeVar

import msgspec
from google.protobuf.message import Message

from server.contract import limits
from server.contract.errors import MalformedRequestError

Item = TypeVar("Item", bound=Message)
Position = TypeVar("Position", bound=msgspec.Struct)

_CHECK = 8

_BEYOND = 1 << 63
"""Revisions and other numbers of stored items are smaller than this. Only a forged page token contains larger ones."""


def size_of(wanted: int, bounds: tuple[int, int]) -> int:
    """Return the maximum number of items on a page: the requested number `wanted`, limited to the greatest allowed.

    `bounds` is (default, greatest). The default is used if `wanted` is 0.
    """
    default, greatest = bounds
    return min(wanted or default, greatest)


def token_of(position: msgspec.Struct, *listing: object) -> str:
    """Return the token of the page that begins at `position`.

    `listing` contains the values of the request, such as its filter, that must be the same when the token is used.
    """
    body = msgspec.json.encode(position)
    return base64.urlsafe_b64encode(_seal(body, listing) + body).decode()


def position_of(token: str, kind: type[Position], *listing: object) -> Position | None:
    """Return the position in a page token; None for an empty token, which means the first page.

    Raises:
        MalformedRequestError: The token was not made by `token_of` with the same `listing`.
    """
    if not token:
        return None
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii"))
        seal, body = raw[:_CHECK], raw[_CHECK:]
        if seal == _seal(body, listing):
            position = msgspec.json.decode(body, type=kind)
            if all(not isinstance(each, int) or abs(each) < _BEYOND for each in msgspec.structs.astuple(position)):
                return position
    except (ValueError, msgspec.DecodeError):
        pass
    raise MalformedRequestError(("page_token", "is invalid, or belongs to another request"))


def _seal(body: bytes, listing: tuple[object, ...]) -> bytes:
    """Return a checksum by which a page token is accepted only for the listing for which it was made.

    The checksum needs no secret, because a forged token shows nothing that the caller could not list anyway.
    """
    return hashlib.sha256(repr(listing).encode() + body).digest()[:_CHECK]


class Paged(Protocol):
    """A request for one page of a list."""

    @property
    def page_size(self) -> int:
        """The maximum number of items that the caller wants; 0 for the default."""
        ...

    @property
    def page_token(self) -> str:
        """The token of the requested page; "" for the first page."""
        ...


def fill_page(
    into: MutableSequence[Item],
    request: Paged,
    bounds: tuple[int, int],
    entries: Callable[[Position | None], Iterable[tuple[Item, Position]]],
    kind: type[Position],
    *listing: object,
) -> str:
    """Add the items of one page to `into`, and return the token of the next page; "" if this is the last page.

    `entries` yields the items that follow the end of another page, None for the beginning, each with what would be the
    end of a page after it. `listing` contains the values of the request that must be the same for all pages.

    Raises:
        MalformedRequestError: The page token was not made with the same `listing`.
    """
    last = position_of(request.page_token, kind, *listing)
    page = Page(size_of(request.page_size, bounds), limits.PAGE_BYTES)
    for item, end in entries(last):
        if not page.admit(item.ByteSize()):
            assert last is not None  # noqa: S101 -- the first item always fits
            return token_of(last, *listing)
        into.append(item)
        last = end
    return ""


class _After(msgspec.Struct):
    """The content of a page token: the page begins after the item with the key `key`."""

    key: str


def page_of(
    items: Iterable[Item], key: Callable[[Item], str], request: Paged, bounds: tuple[int, int], *listing: object
) -> tuple[list[Item], str]:
    """Return one page of items that are all in memory, and the token of the next page; "" if this is the last page.

    The items must be in the order of their keys. `listing` contains the values of the request, such as its filter, that
    must be the same for all pages.

    Raises:
        MalformedRequestError: The page token was not made with the same `listing`.
    """

    def entries(last: _After | None) -> Iterator[tuple[Item, _After]]:
        return ((item, _After(key(item))) for item in items if last is None or key(item) > last.key)

    taken: list[Item] = []
    return taken, fill_page(taken, request, bounds, entries, _After, *listing)


class Page:
    """Counts the items and bytes of a page while it is filled."""

    def __init__(self, items: int, limit_bytes: int) -> None:
        self._items = items
        self._bytes = limit_bytes
        self._empty = True

    def admit(self, size: int) -> bool:
        """Count an item of `size` bytes; return False if the item does not fit. The first item always fits."""
        if self._items <= 0 or (size > self._bytes and not self._empty):
            return False
        self._items -= 1
        self._bytes -= size
        self._empty = False
        return True
