"""Streams of responses from the server: iterators that can be closed at any time.

Closing a stream ends the call immediately, and so does leaving the ``with`` block around it::

    with conversation.events() as events:
        for event in events:
            ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Generic, Self, TypeVar

__all__ = ["AsyncStream", "Stream"]

T = TypeVar("T")
U = TypeVar("U")


class Closing(ABC):
    """A base class of context managers that call `close` at the end of the ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources of this object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosing(ABC):
    """A base class of context managers that call `close` at the end of the ``async with`` block."""

    @abstractmethod
    async def close(self) -> None:
        """Release the resources of this object."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Stream(Closing, Generic[T]):
    """An iterator over the responses of a streaming call.

    As a context manager, it ends the call at the end of the block.
    """

    def __init__(self, items: Generator[T]) -> None:
        self._items = items
        self._first: list[T] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return self._first.pop() if self._first else next(self._items)

    def open(self) -> Self:
        """Wait for the first item, so that errors of the call are raised now. The item is not lost."""
        if not self._first:
            self._first.extend(islice(self._items, 1))
        return self

    def map(self, convert: Callable[[T], U]) -> Stream[U]:
        """A stream of the converted items. Use the returned stream instead of this one from now on.

        Closing the returned stream closes this stream, too.
        """

        def converted() -> Generator[U]:
            with self:
                for item in self:
                    yield convert(item)

        return Stream(converted())

    def close(self) -> None:
        """Stop reading and end the call. A run that the stream reports on continues on the server."""
        self._first.clear()
        self._items.close()


class AsyncStream(AsyncClosing, Generic[T]):
    """An asynchronous iterator over the responses of a streaming call.

    As a context manager, it ends the call at the end of the ``async with`` block.
    """

    def __init__(self, items: AsyncGenerator[T]) -> None:
        self._items = items
        self._first: list[T] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return self._first.pop() if self._first else await anext(self._items)

    async def open(self) -> Self:
        """Wait for the first item, so that errors of the call are raised now. The item is not lost."""
        if not self._first:
            with suppress(StopAsyncIteration):
                self._first.append(await anext(self._items))
        return self

    def map(self, convert: Callable[[T], U]) -> AsyncStream[U]:
        """A stream of the converted items. Use the returned stream instead of this one from now on.

        Closing the returned stream closes this stream, too.
        """

        async def converted() -> AsyncGenerator[U]:
            async with self:
                async for item in self:
                    yield convert(item)

        return AsyncStream(converted())

    async def close(self) -> None:
        """Stop reading and end the call. A run that the stream reports on continues on the server."""
        self._first.clear()
        await self._items.aclose()

    aclose = close
    """Close the stream: `close` under the name that `contextlib.aclosing` expects."""
