"""kill -9 of the server while its tools run: no process of them is left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.killing import kill_servers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.one_server("it starts its own servers")

TIMES = int(os.environ.get("BEDROCK_KILLS", "8"))
"""Servers killed."""

BOUND_MS = float(os.environ.get("BEDROCK_KILL_MS", "inf"))
"""What the death of the tools may take. No limit by default: a busy machine takes its time."""


@pytest.mark.timeout(120 + 5 * TIMES)  # most of it is the start of each server, which takes long on a busy machine
def test_a_killed_server_leaves_no_process_behind(tmp_path: Path) -> None:
    killed = list(kill_servers(tmp_path, TIMES))
    assert len(killed) == TIMES
    assert not [one for one in killed if one.orphans]
    assert not [one for one in killed if one.milliseconds > BOUND_MS]
