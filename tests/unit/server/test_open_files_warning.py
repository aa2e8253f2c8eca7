"""The log says when new clients are turned away, once each time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from server.app import serving

if TYPE_CHECKING:
    import pytest


def test_the_log_warns_once_each_time_that_too_many_files_are_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counts = iter([50, 100, 130, 95, 100, 89, 100])
    looks: list[int] = []

    def count() -> int:
        if (found := next(counts, None)) is None:
            raise EOFError
        looks.append(len(caplog.records))
        return found

    monkeypatch.setattr(serving, "CROWDED_SECONDS", 0)
    with caplog.at_level(logging.WARNING):
        try:
            asyncio.run(serving.warn_when_crowded(100, count))
        except EOFError:
            looks.append(len(caplog.records))
    assert looks == [0, 0, 1, 1, 1, 1, 1, 2]
    assert caplog.records[0].getMessage().startswith("100 of the ")
