"""The standard tools in real processes, called as the tool runner calls them."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.adapters.sandbox.host import process_walk
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import SandboxUnavailableError, ToolOutput
from tests.support.sandbox_reports import sandbox_report
from tests.support.tool_harness import ToolHarness

BOUND = 20.0


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ToolHarness]:
    sandbox = ToolHostSandbox(sandbox_report("none"))
    yield ToolHarness(sandbox, tmp_path.resolve())
    sandbox.close()


def test_bash_runs_in_the_directory_and_cd_does_not_persist(harness: ToolHarness) -> None:
    assert harness.use("bash", cmd="pwd; cd /; pwd").text == f"{harness.directory}\n/\n[exit code 0]"
    assert harness.use("bash", command="pwd").text == f"{harness.directory}\n[exit code 0]"


def test_bash_sees_no_secret_of_the_server(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hush-hush")
    output = harness.use("bash", cmd="env; cat /proc/self/environ | tr '\\0' '\\n'; cat /proc/$PPID/environ")
    assert "hush-hush" not in output.text
    assert "TERM=dumb" in output.text


def test_bash_shows_output_while_it_runs_and_cancel_ends_it(harness: ToolHarness) -> None:
    outputs: list[ToolOutput] = []
    command = "echo begun; setsid sleep 1000 & sleep 1000"
    running = threading.Thread(target=lambda: outputs.append(harness.use("bash", cmd=command)))
    running.start()
    assert harness.shown.get(timeout=BOUND) == "begun\n"
    harness.cancel.cancel()
    running.join(BOUND)
    assert harness.shown.empty()
    assert outputs[0].is_error
    assert "cancelled" in outputs[0].text
    assert harness.reaped
    assert not any(process_walk.alive(pid) for pid in harness.reaped)


def test_a_cancel_that_comes_before_the_start_ends_it_too(harness: ToolHarness) -> None:
    harness.cancel.cancel()
    assert harness.use("bash", cmd="sleep 1000").is_error


def test_bash_cuts_long_output_in_the_middle(harness: ToolHarness) -> None:
    text = harness.use("bash", cmd="seq 1 100000").text
    assert text.startswith("1\n2\n")
    assert text.endswith("99999\n100000\n[exit code 0]")
    assert "bytes cut here]" in text
    assert len(text) < 129 * 1024


def test_a_vanished_working_directory_is_an_error_for_every_tool_that_needs_it(harness: ToolHarness) -> None:
    harness.directory.rmdir()
    for name, arguments in (("bash", {"cmd": "true"}), ("read_file", {"path": "x"})):
        output = harness.use(name, **arguments)
        assert output.is_error
        assert "no longer exists" in output.text
    assert not harness.use("think", thoughts="hm").is_error


def test_a_restricted_call_is_not_run_unrestricted(harness: ToolHarness) -> None:
    harness.mode = Mode.RESTRICTED
    (harness.directory / "file").write_text("x\n")
    with pytest.raises(SandboxUnavailableError):
        harness.use("bash", cmd="touch ran")
    with pytest.raises(SandboxUnavailableError):
        harness.use("read_file", path="file")
    assert [path.name for path in harness.directory.iterdir()] == ["file"]


def test_read_file_reads_relative_and_absolute_paths(harness: ToolHarness) -> None:
    file = harness.directory / "-ä file"
    file.write_text("eins\nzwei\ndrei\n")
    expected = "     2\tzwei\n[1 more lines not shown (total: 3 lines)]\n"
    for path in (file.name, str(file)):
        assert harness.use("read_file", path=path, offset=2, limit=1).text == expected


def test_read_file_refuses_what_would_never_end(harness: ToolHarness) -> None:
    os.mkfifo(harness.directory / "fifo")
    for path in ("fifo", "/dev/zero", "/dev/stdin", ".", "missing"):
        output = harness.use("read_file", path=path)
        assert output.is_error
        assert output.text.startswith("Cannot ")
