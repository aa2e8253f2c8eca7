"""Trees that try to get away, many of each kind, however they are held: none of their processes survives."""

import os

import pytest

from actors.ports import SandboxReport, SandboxUnavailableError
from tests.support.trees import WAYS, kill_trees, sandbox_of

TIMES = int(os.environ.get("BEDROCK_TREES", "50"))
"""Trees in all."""


@pytest.mark.parametrize("services", [False, True], ids=["calls", "services"])
@pytest.mark.parametrize("way", WAYS)
def test_no_tree_has_survivors(report: SandboxReport, way: str, services: bool) -> None:
    try:
        sandbox = sandbox_of(way, report)
    except SandboxUnavailableError as why:
        pytest.skip(f"this machine cannot keep tier {way}: {why}")
    try:
        killed = kill_trees(sandbox, way, max(1, TIMES // len(WAYS) // 2), services=services)
        bad = [one for one in killed if one.survivors or one.leaked]
    finally:
        sandbox.close()
    assert not bad
