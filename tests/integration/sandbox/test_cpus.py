"""A server that runs on some CPUs: its tools have all that it was started with."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.ports import SandboxReport
from server.app.wiring import wire
from server.operating_system import running_on
from server.settings.config import load
from server.settings.setting_values import ConfigError
from tests.support.sandbox_reports import sandbox_report
from tests.support.trees import launch

ALL = frozenset(os.sched_getaffinity(0))
ONE = frozenset({min(ALL)})

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="this machine gives the tests one CPU")


@pytest.fixture(scope="module")
def report() -> SandboxReport:
    return sandbox_report()


@pytest.fixture
def pinned(report: SandboxReport) -> Iterator[ToolHostSandbox]:
    with running_on(ONE) as cpus:
        sandbox = ToolHostSandbox(report, cpus=cpus)
        yield sandbox
        sandbox.close()


def cpus_of_a_tool(sandbox: ToolHostSandbox) -> int:
    said: list[bytes] = []
    sandbox.start(launch("nproc"), said.append).wait()
    return int(b"".join(said))


def test_a_forked_tool_has_all_cpus(pinned: ToolHostSandbox) -> None:
    assert os.sched_getaffinity(0) == ONE
    assert [cpus_of_a_tool(pinned) for _ in range(3)] == [len(ALL)] * 3


def test_a_tool_that_is_started_directly_has_all_cpus(pinned: ToolHostSandbox) -> None:
    pinned._fork_server.stop_forking()
    assert cpus_of_a_tool(pinned) == len(ALL)


def test_without_the_setting_nothing_is_changed(report: SandboxReport) -> None:
    with running_on(None) as cpus:
        sandbox = ToolHostSandbox(report, cpus=cpus)
        assert cpus is None
        assert os.sched_getaffinity(0) == ALL
        assert cpus_of_a_tool(sandbox) == len(ALL)
        sandbox.close()


def test_the_cpus_are_those_that_there_are_of_the_configured_ones(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path / "data"), "cpus": f"{min(ALL)},8191"}
    with wire(load(settings, {"HOME": str(tmp_path)})):
        assert os.sched_getaffinity(0) == ONE
    assert os.sched_getaffinity(0) == ALL


def test_cpus_that_the_process_may_not_use_are_refused(tmp_path: Path) -> None:
    config = load({"data_dir": str(tmp_path / "data"), "cpus": "8191"}, {"HOME": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"^--cpus: not available: this process may use only CPUs \d"), wire(config):
        pass
