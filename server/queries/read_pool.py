"""Runs blocking reads of the store on a small pool of threads, and finds the caller's conversations by their names.

Principals take turns: a principal with a thousand waiting reads delays another principal by one read per thread, and
cannot occupy all threads. Reads that may take minutes, such as the verification of a long log, occupy at most half of
the threads, so that short reads need not wait for them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from actors.ports import ConversationReader, ConversationRecord
from actors.runtime.admission import FairSlots
from actors.runtime.services import has_form_of_id
from server.auth.authentication import caller, subject
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8
# The share of the threads (one in RESERVED_SHARE) that stays free for other principals when one principal has many
# reads.
RESERVED_SHARE = 4
# The share of the threads (one in LONG_SHARE) that may run long reads. The same share of these threads may run long
# reads of one principal.
LONG_SHARE = 2


class ReadPool:
    """Runs blocking reads on threads. Call it on the event loop; close it once, after the server has stopped."""

    def __init__(self, threads: int = THREADS, *, name: str = "bedrock-read") -> None:
        most_of_one = threads - threads // RESERVED_SHARE
        self._slots = FairSlots(threads, lambda _principal: most_of_one)
        long = max(threads // LONG_SHARE, 1)
        most_long = max(long // LONG_SHARE, 1)
        self._long = FairSlots(long, lambda _principal: most_long)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._start_all(threads)

    def _start_all(self, threads: int) -> None:
        """Start every thread now, because the system may refuse later. Raises RuntimeError."""
        together = threading.Barrier(threads + 1)
        try:
            for _ in range(threads):
                self._pool.submit(together.wait)
            together.wait()
        except BaseException:
            together.abort()
            raise

    async def __call__(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `read` on a thread of the pool, and return its result without blocking the event loop."""
        return await self._run(lambda: read(*args, **kwargs), self._slots)

    async def long(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a read that may take minutes, and return its result. Such reads get only a part of the threads."""
        return await self._run(lambda: read(*args, **kwargs), self._long, self._slots)

    async def _run(self, read: Callable[[], T], *kinds: FairSlots) -> T:
        who = caller.get(None)
        principal = who.principal if who is not None else ""
        taken = list[FairSlots]()

        def give_back(_running: object = None) -> None:
            for slots in taken:
                slots.release(principal)

        try:
            for slots in kinds:
                await _acquire_slot(slots, principal)
                taken.append(slots)
            running = asyncio.get_running_loop().run_in_executor(self._pool, read)
        except BaseException:
            give_back()
            raise
        running.add_done_callback(give_back)
        try:
            return await asyncio.shield(running)  # if the caller is cancelled, the read continues, and keeps its slots
        except asyncio.CancelledError:
            running.add_done_callback(_ignore)
            raise

    def close(self) -> None:
        """Wait for the running reads, and end the threads. Reads that have not begun are cancelled."""
        self._pool.shutdown(cancel_futures=True)


async def _acquire_slot(slots: FairSlots, principal: str) -> None:
    turn = asyncio.get_running_loop().create_future()
    place = slots.acquire(principal, lambda: _grant(turn))
    if turn.done():
        return
    try:
        await turn
    except asyncio.CancelledError:
        if not slots.withdraw(place) and not turn.cancelled():
            slots.release(principal)
        raise


def _grant(turn: asyncio.Future[None]) -> bool:
    if turn.cancelled():
        return False
    turn.set_result(None)
    return True


def _ignore(running: asyncio.Future[T]) -> None:
    if not running.cancelled():
        running.exception()


# How many conversations' principals are cached. With a cached principal, a command needs no read of the store.
OWNERS = 10_000


class NameResolver:
    """Finds conversations by their resource names, with a cache of ids and principals. Use only on the event loop."""

    def __init__(self, store: ConversationReader, reads: ReadPool) -> None:
        self._store = store
        self._reads = reads
        self._owners: dict[str, str] = {}

    async def record(self, name: str) -> ConversationRecord:
        """The caller's conversation. Raises ConversationNotFoundError, also for another principal's."""
        record = await self._reads(self._find, names.parse_conversation(name) or "", caller.get().principal)
        if record is None or record.principal != caller.get().principal:
            raise ConversationNotFoundError(name)
        self._remember(record)
        subject.set(record.id)
        return record

    async def identify(self, name: str) -> str:
        """The id of a conversation of the caller. If a cached conversation was deleted, its actor notices that.

        Raises ConversationNotFoundError.
        """
        key = names.parse_conversation(name) or ""
        if self._owners.get(key) == caller.get().principal:
            subject.set(key)
            return key
        return (await self.record(name)).id

    async def locate(self, name: str) -> str:
        """The id of a conversation of the caller, even if its record is damaged. Raises ConversationNotFoundError."""
        conversation_id = await self._reads(self._locate, names.parse_conversation(name) or "", caller.get().principal)
        if conversation_id is None:
            raise ConversationNotFoundError(name)
        return conversation_id

    def _locate(self, key: str, principal: str) -> str | None:
        """The id of a conversation of `principal`; None if there is none. `key` is the id or a slug. Blocks."""
        slug = "" if has_form_of_id(key) else key
        for conversation_id in (key, self._store.find_slug(principal, slug) if slug else None):
            if conversation_id and self._store.owner(conversation_id) == principal:
                return conversation_id
        return None

    def _find(self, key: str, principal: str) -> ConversationRecord | None:
        """The record with the id `key` or, among those of `principal`, with the slug `key`. Blocks.

        A record found by id may be another principal's. No slug has the form of an id.
        """
        found = self._store.load(key)
        if found is not None or has_form_of_id(key):
            return found
        conversation_id = self._store.find_slug(principal, key)
        return None if conversation_id is None else self._store.load(conversation_id)

    def _remember(self, record: ConversationRecord) -> None:
        """Cache the id and the principal, which never change; a full cache drops its oldest entry."""
        self._owners[record.id] = record.principal
        if len(self._owners) > OWNERS:
            del self._owners[next(iter(self._owners))]
