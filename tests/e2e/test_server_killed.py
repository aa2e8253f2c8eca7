"""kill -9 of the server while its tools run: no process of them is left."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.bench.killed_servers import Family, kill_servers

pytestmark = pytest.mark.one_server("it starts its own servers")

TIMES = int(os.environ.get("BEDROCK_KILLS", "4"))
"""Servers killed."""

BOUND_MS = float(os.environ.get("BEDROCK_KILL_MS", "inf"))
"""What the death of the tools may take. No limit by default: a busy machine takes its time."""


def test_a_killed_server_leaves_no_process_behind(tmp_path: Path) -> None:
    killed = list(kill_servers(tmp_path, TIMES))
    assert len(killed) == TIMES
    assert not [one for one in killed if one.orphans]
    assert not [one for one in killed if one.milliseconds > BOUND_MS]


def test_the_time_ends_with_the_last_process_and_not_with_those_before_it() -> None:
    marker = f"family-{uuid.uuid4().hex}"
    program = ["sh", "-c", "echo; read go; setsid sleep 1000 >&2 & echo $!", marker]
    with (
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        ThreadPoolExecutor(1) as pool,
    ):
        assert process.stdout
        process.stdout.readline()  # a program that is just being loaded does not show its marker yet
        family = Family(marker)
        told = pool.submit(family.ended)
        output, _ = process.communicate(b"go\n")
        killed = time.perf_counter()
        os.kill(int(output), signal.SIGKILL)
        ended = told.result()
    family.close()
    if ended == math.inf:
        pytest.skip("no control group can be made here")
    assert ended >= killed
