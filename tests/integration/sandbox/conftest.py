"""A sandbox of each kind, and the certainty that no test leaves a process behind."""

import os
import signal
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest

from actors.adapters.sandbox import process_tree
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.ports import SandboxReport
from tests.support import processes
from tests.support.sandbox_reports import sandbox_report
from tests.support.trees import BOUND


@pytest.fixture(scope="session")
def report() -> SandboxReport:
    """What this machine can do for programs that nothing restricts."""
    return sandbox_report("none")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes its time; what counts here is that everything dies, not how soon."""
    monkeypatch.setattr(process_tree, "REPORT_SECONDS", BOUND)


@pytest.fixture(params=["namespace", "walk"])
def sandbox(request: pytest.FixtureRequest, report: SandboxReport) -> Iterator[ToolHostSandbox]:
    """A sandbox with PID namespaces (where the machine has them), and one without."""
    sandbox = ToolHostSandbox(report, pid_namespace=request.param == "namespace")
    yield sandbox
    sandbox.close()


@pytest.fixture
def mark() -> Iterator[str]:
    """Marks a tree; whatever still carries it after the test is killed."""
    mark = uuid.uuid4().hex
    yield mark
    for pid in processes.running(mark):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
