"""Refused calls on their way into the audit trail: together, counted, and cut off in a flood."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors.ports import DatabaseAwayError, StoreUnavailableError
from actors.ports.records import AuditEntry, AuditFilter, CommandOrigin
from server.auth import authorization
from server.auth.authorization import Refusals
from tests.support.stores import StoreProxy

if TYPE_CHECKING:
    from collections.abc import Sequence

ANN = CommandOrigin("ann", "reader", "t1", "unix:", "SendMessage", "first")
NOBODY = CommandOrigin("", peer="ipv4:192.0.2.1", method="SendMessage")


class Store(StoreProxy):
    """Counts the writes, and refuses as many as the test wants."""

    def __init__(self, failing: int = 0, error: type[StoreUnavailableError] = StoreUnavailableError) -> None:
        super().__init__()
        self.error = error
        self.writes = 0
        self.failing = failing

    def put_audit(self, entries: Sequence[AuditEntry]) -> None:
        self.writes += 1
        if self.writes <= self.failing:
            raise self.error("full")
        self.inner.put_audit(entries)


def noting_in(store: Store) -> Refusals:
    async def put(entries: Sequence[AuditEntry]) -> None:
        store.put_audit(entries)

    return Refusals(put, lambda: 5)


def kept(store: Store) -> list[tuple[str, str, str, int]]:
    found = store.audit(AuditFilter(), limit=9_999)
    return [(entry.origin.principal, entry.origin.method, entry.reason, entry.count) for entry in found]


def test_repetitions_are_counted_and_the_first_is_kept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "FLUSH_SECONDS", 0)
    store = Store()

    async def refuse() -> None:
        noting = noting_in(store)
        noting.note(ANN, "c1", "PERMISSION_DENIED")
        noting.note(NOBODY, "", "UNAUTHENTICATED")
        while store.writes == 0:
            await asyncio.sleep(0)
        assert kept(store) == [
            ("ann", "SendMessage", "PERMISSION_DENIED", 1), ("", "SendMessage", "UNAUTHENTICATED", 1),
        ]  # fmt: skip
        for _ in range(3):
            noting.note(
                CommandOrigin(*["ann", "reader", "t1", "unix:", "SendMessage", "later"]), "c1", "PERMISSION_DENIED"
            )
        await noting.close()
        noting.note(ANN, "c1", "ARCHIVED")

    asyncio.run(refuse())
    assert kept(store)[2:] == [("ann", "SendMessage", "PERMISSION_DENIED", 3)]
    assert [entry.origin.request_id for entry in store.audit(AuditFilter(), limit=9)] == ["first", "", ""]


def test_a_flood_fills_no_disk_and_pushes_nobody_out() -> None:
    store = Store()

    async def refuse() -> None:
        noting = noting_in(store)
        for number in range(10_000):
            noting.note(CommandOrigin("", peer=f"ipv4:{number}", method="SetMode"), "", "UNAUTHENTICATED")
        noting.note(ANN, "c1", "PERMISSION_DENIED")
        await noting.close()

    asyncio.run(refuse())
    found = kept(store)
    assert len(found) == authorization.MOST_OF_ONE + 2
    assert ("ann", "SendMessage", "PERMISSION_DENIED", 1) in found
    assert ("", "", "", 10_000 - authorization.MOST_OF_ONE) in found
    assert store.writes == 1


@pytest.mark.parametrize(("error", "lines"), [(StoreUnavailableError, 2), (DatabaseAwayError, 0)])
def test_a_window_ends_and_what_the_store_could_not_take_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[StoreUnavailableError], lines: int
) -> None:
    """It is in the log, unless the store itself logs the outage."""
    for name in ("FLUSH_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(authorization, name, 0)
    monkeypatch.setattr(authorization, "WINDOW_SECONDS", 0.01)
    store = Store(failing=2, error=error)

    async def refuse() -> None:
        noting = noting_in(store)
        for _ in range(3):
            noting.note(ANN, "c1", "PERMISSION_DENIED")
        while len(kept(store)) < 2:
            await asyncio.sleep(0.001)
        await noting.close()

    asyncio.run(refuse())
    assert [count for *_, count in kept(store)] == [1, 2]
    assert len(caplog.records) == lines
