"""bash and its jobs in real processes, called as the tool runner calls them."""

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from actors.adapters.sandbox.host import process_walk
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.core.tool_run import KillReceipt
from actors.ports import SandboxUnavailableError, ToolOutput
from tests.support.footprint import assert_nothing_left, footprint
from tests.support.sandbox_reports import sandbox_report
from tests.support.tool_harness import BashHarness

BOUND = 30.0


class LiveHarness(BashHarness):
    """Waits for what bash and its jobs write."""

    def see(self, text: str) -> None:
        """Wait until watchers were shown this."""
        seen = ""
        while text not in seen:
            seen += self.shown.get(timeout=BOUND)

    def await_line(self, handle: str, line: str) -> None:
        """Look again until a job has written this."""
        until = time.monotonic() + BOUND
        while line not in self.call(peek=handle).text.splitlines():
            assert time.monotonic() < until


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LiveHarness]:
    sandbox = ToolHostSandbox(sandbox_report())
    harness = LiveHarness(sandbox, tmp_path.resolve())
    yield harness
    sandbox.close()
    harness.pool.shutdown()
    join_jobs()


def join_jobs() -> None:
    for thread in threading.enumerate():
        if thread.name == "bedrock-bash-job":
            thread.join(BOUND)
            assert not thread.is_alive()


def display(output: ToolOutput) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(output.display)
    return shown


def test_a_command_outlives_its_call_and_is_waited_for(harness: LiveHarness) -> None:
    os.mkfifo(harness.directory / "gate")
    output = harness.call(cmd="echo begun; read line < gate; echo $line; exit 3", wait_seconds=0)
    assert "as b-1: " in output.text
    harness.cancel.cancel()
    answer = harness.begin(wait="b-1", wait_seconds=900)
    (harness.directory / "gate").write_text("go on\n")
    assert answer.result(BOUND).text.startswith("begun\ngo on\n[")
    assert "exit code 3" in answer.result().text
    assert display(harness.call(peek="b-1"))["status"] == "tombstoned"


def test_a_call_returns_when_its_command_ends_even_if_the_pipe_is_still_open(harness: LiveHarness) -> None:
    output = harness.call(cmd="sleep 1000 & setsid sleep 1000 & echo done", wait_seconds=900)
    assert output.text.startswith("done\n[exit code 0]\n[killed 2 processes that it left running]")
    assert not any(process_walk.alive(pid) for pid in harness.reaped)


def test_cancel_ends_the_command_of_the_running_call_and_no_other(harness: LiveHarness) -> None:
    harness.call(cmd="exec sleep 1000", wait_seconds=0)
    answer = harness.begin(cmd="echo begun; setsid sleep 1000 & sleep 1000", wait_seconds=900)
    harness.see("begun\n")
    harness.cancel.cancel()
    assert "[cancelled; the command and everything it started were killed]" in answer.result(BOUND).text
    assert harness.reaped
    assert not any(process_walk.alive(pid) for pid in harness.reaped)
    assert harness.toolbox.jobs("c-1") == ("b-1",)


def test_a_job_is_asked_to_end_and_may_clean_up(harness: LiveHarness) -> None:
    waiting = "while :; do read -t 1000 < <(sleep 1000); done"
    harness.call(cmd=f"trap 'echo bye; exit 0' TERM; echo ready; {waiting}", wait_seconds=0)
    harness.await_line("b-1", "ready")
    output = harness.call(kill="b-1")
    assert "bye\n" in output.text
    assert display(output)["exit_code"] == 0


def test_a_signal_goes_to_the_whole_pipeline(harness: LiveHarness) -> None:
    harness.call(cmd="sleep 1000 | sleep 1000", wait_seconds=0)
    output = harness.call(kill="b-1")
    assert display(output)["final_cause"] == "killed"
    assert display(output)["signal"] == signal.SIGTERM


def test_what_ignores_term_is_ended_by_kill(harness: LiveHarness) -> None:
    command = "trap '' TERM; setsid sleep 1000 & echo ready; while :; do sleep 1000; done"
    harness.call(cmd=command, wait_seconds=0)
    harness.await_line("b-1", "ready")
    output = harness.call(kill="b-1", signal="KILL")
    assert "[b-1 has ended: killed, with everything it started]" in output.text
    assert harness.sandbox.live == 0


def test_a_flood_is_bounded_and_the_last_lines_are_right(harness: LiveHarness) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    harness.show = lambda text: None
    assert display(harness.call(cmd="seq 1 4000000", wait_seconds=0))["status"] == "still_running"
    output = harness.call(wait="b-1", wait_seconds=900)
    assert output.text.endswith("3999999\n4000000\n[exit code 0]")
    assert harness.call(peek="b-1", lines=1).text.startswith("4000000\n[b-1 has ended")
    window = display(harness.call(peek="b-1", since=0))["window"]
    assert (window["start_offset"], window["end_offset"]) == (3_998_000, 4_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10, "KiB"


def test_eight_quick_commands_at_the_same_time(harness: LiveHarness) -> None:
    answers = [harness.begin(cmd=f"echo {number}") for number in range(8)]
    assert [answer.result(BOUND).text for answer in answers] == [f"{number}\n[exit code 0]" for number in range(8)]


def test_binary_output_is_shown_as_text(harness: LiveHarness) -> None:
    output = harness.call(cmd="head -c 1000 /dev/urandom; printf '\\0'")
    assert "[exit code 0]" in output.text
    assert "\0" in output.text


def test_ending_the_jobs_leaves_no_process_and_gives_receipts(harness: LiveHarness) -> None:
    for _ in range(3):
        harness.call(cmd="setsid sleep 1000 & nohup sleep 1000 > /dev/null & echo $$; wait", wait_seconds=0)
    receipts: SimpleQueue[KillReceipt] = SimpleQueue()
    assert harness.toolbox.end_jobs("c-1", receipts.put) == ("b-1", "b-2", "b-3")
    for _ in range(3):
        receipt = receipts.get(timeout=BOUND)
        assert not receipt.leaked
        assert not any(process_walk.alive(pid) for pid in receipt.pids)
    assert harness.sandbox.live == 0


def test_nothing_is_left_of_a_forgotten_conversation(harness: LiveHarness) -> None:
    harness.call(cmd="true")
    join_jobs()
    before = footprint()
    for _ in range(8):
        harness.call(cmd="sleep 1000", wait_seconds=0)
    harness.toolbox.forget("c-1")
    join_jobs()
    assert harness.toolbox.jobs("c-1") == ()
    assert harness.sandbox.live == 0
    assert_nothing_left(before)


def test_the_jobs_end_with_the_sandbox(harness: LiveHarness) -> None:
    harness.call(cmd="sleep 1000", wait_seconds=0)
    answer = harness.begin(wait="b-1", wait_seconds=900)
    harness.sandbox.close()
    assert "killed, with everything it started" in answer.result(BOUND).text
    join_jobs()


def test_a_job_stays_as_restricted_as_it_was_started(harness: LiveHarness) -> None:
    """On a machine that cannot restrict, it is not started."""
    harness.mode = Mode.RESTRICTED
    command = "echo $HOME; touch $HOME/kept && echo written; exec < gate; touch changed || echo refused"
    os.mkfifo(harness.directory / "gate")
    if not harness.sandbox.report.restriction_available:
        with pytest.raises(SandboxUnavailableError):
            harness.call(cmd=command, wait_seconds=0)
        assert harness.toolbox.jobs("c-1") == ()
        return
    harness.call(cmd=command, wait_seconds=0)
    harness.mode = Mode.UNRESTRICTED
    answer = harness.begin(wait="b-1", wait_seconds=900)
    (harness.directory / "gate").write_text("")
    home, written, *rest = answer.result(BOUND).text.splitlines()
    assert written == "written"
    assert "refused" in rest
    assert not (harness.directory / "changed").exists()
    assert not (Path(home) / "kept").exists()


def test_a_syntax_error_is_reported_by_bash_itself(harness: LiveHarness) -> None:
    output = harness.call(cmd="if true")
    assert "syntax error" in output.text
    assert not output.is_error
