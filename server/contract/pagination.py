"""Pages: opaque tokens, and sizes bounded in items and in bytes (AIP-158)."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from google.protobuf.message import Message

from server.contract.errors import MalformedRequestError
from server.contract.limits import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Item = TypeVar("Item", bound=Message)
Position = TypeVar("Position", bound=msgspec.Struct)

_CHECK = 8

_BEYOND = 1 << 63
"""Numbers above the store's maximum, which only a forged token contains."""


def size_of(wanted: int, bounds: tuple[int, int]) -> int:
    """Return the maximum number of items of a page: the requested one within `bounds`, (default, maximum)."""
    default, greatest = bounds
    return min(wanted or default, greatest)


def token_of(position: msgspec.Struct, *listing: object) -> str:
    """Return a token for the page that begins at `position` of this listing."""
    body = msgspec.json.encode(position)
    return base64.urlsafe_b64encode(_seal(body, listing) + body).decode()


def position_of(token: str, kind: type[Position], *listing: object) -> Position | None:
    """Return the position in a page token; None for an empty token.

    Raises:
        MalformedRequestError: The token was not made for this listing.
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
    raise MalformedRequestError(("page_token", "is not one that this server made for the same request"))


def _seal(body: bytes, listing: tuple[object, ...]) -> bytes:
    """Return a checksum that binds a page token to its listing.

    It needs no secret: a forged token shows nothing that the caller could not list anyway.
    """
    return hashlib.sha256(repr(listing).encode() + body).digest()[:_CHECK]


class Paged(Protocol):
    """A request for a page."""

    @property
    def page_size(self) -> int:
        """The maximum number of items; the default if zero."""
        ...

    @property
    def page_token(self) -> str:
        """Where the page begins; empty for the first one."""
        ...


class _After(msgspec.Struct):
    """Page token: continue after the item with this key."""

    key: str


def page_of(
    items: Iterable[Item], key: Callable[[Item], str], request: Paged, bounds: tuple[int, int], *listing: object
) -> tuple[list[Item], str]:
    """Return a page of items that are in memory, in the order of their keys, and the token of the next page.

    Raises:
        MalformedRequestError: The page token was not made for this listing.
    """
    after = position_of(request.page_token, _After, *listing)
    page, taken = Page(size_of(request.page_size, bounds), PAGE_BYTES), list[Item]()
    for item in items:
        if after is not None and key(item) <= after.key:
            continue
        if not page.take(item.ByteSize()):
            return taken, token_of(_After(key(taken[-1])), *listing)
        taken.append(item)
    return taken, ""


class Page:
    """Counts the items and bytes of a page."""

    def __init__(self, items: int, limit_bytes: int) -> None:
        self._items = items
        self._bytes = limit_bytes
        self._empty = True

    def take(self, size: int) -> bool:
        """Count an item of `size` bytes; return False if it does not fit. The first item always fits."""
        if self._items <= 0 or (size > self._bytes and not self._empty):
            return False
        self._items -= 1
        self._bytes -= size
        self._empty = False
        return True
