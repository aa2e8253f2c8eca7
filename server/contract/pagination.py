"""Pages of lists, as in Google's AIP-158: opaque page tokens, and pages limited in items and in bytes."""

from __future__ import annotations

import base64
import hashlib
import threading
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

# Held while msgspec decodes a position: it inspects a type on first use, and two threads that do so at the same time
# would crash the process.
_EXAMINING = threading.Lock()


def size_of(wanted: int, bounds: tuple[int, int]) -> int:
    """The number of items on a page: `wanted` (0: the default), up to the maximum. `bounds` is (default, maximum)."""
    default, greatest = bounds
    return min(wanted or default, greatest)


def token_of(position: msgspec.Struct, *listing: object) -> str:
    """The token of the page at `position`. `listing`, such as the filter, must be the same when the token is used."""
    body = msgspec.json.encode(position)
    return base64.urlsafe_b64encode(_seal(body, listing) + body).decode()


def position_of(token: str, kind: type[Position], *listing: object) -> Position | None:
    """The position in a token; None for "". Raises MalformedRequestError if `listing` differs."""
    if not token:
        return None
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii"))
        seal, body = raw[:_CHECK], raw[_CHECK:]
        if seal == _seal(body, listing):
            with _EXAMINING:
                position = msgspec.json.decode(body, type=kind)
            if all(not isinstance(each, int) or abs(each) < _BEYOND for each in msgspec.structs.astuple(position)):
                return position
    except (ValueError, msgspec.DecodeError):
        pass
    raise MalformedRequestError(("page_token", "is invalid or belongs to another request"))


def _seal(body: bytes, listing: tuple[object, ...]) -> bytes:
    """A checksum that binds a token to its listing.

    Not a secret: a forged token reveals only what can be listed anyway.
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
    """Add a page's items to `into`, and return the next page's token; "" if there is no next page.

    `entries` yields the items after a position (None: all items), each with its position. `listing` must be the same
    for all pages; otherwise MalformedRequestError is raised.
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
    key: str


def page_of(
    items: Iterable[Item], key: Callable[[Item], str], request: Paged, bounds: tuple[int, int], *listing: object
) -> tuple[list[Item], str]:
    """A page of items in memory, in the order of their keys, and the next page's token; "" if there is no next page.

    `listing` must be the same for all pages; otherwise MalformedRequestError is raised.
    """

    def entries(last: _After | None) -> Iterator[tuple[Item, _After]]:
        return ((item, _After(key(item))) for item in items if last is None or key(item) > last.key)

    taken: list[Item] = []
    return taken, fill_page(taken, request, bounds, entries, _After, *listing)


class Page:
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
