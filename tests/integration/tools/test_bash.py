"""bash and its jobs in real processes, called as the tool runner calls them."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from actors.adapters.sandbox import toolhost
from actors.adapters.sandbox.probe import probe
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import CancelToken, SandboxUnavailableError, ToolOutput
from tests.integration.tools.desk import Desk

if TYPE_CHECKING:
    from actors.core.tool_run import KillReceipt

BOUND = 30.0


@dataclass
class BashDesk(Desk):
    """Calls bash, each time with a token of its own."""

    shown: SimpleQueue[str] = field(default_factory=SimpleQueue)
    show: Callable[[str], None] | None = None
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(12))

    def call(self, **arguments: Any) -> ToolOutput:
        return self.use("bash", self.show or self.shown.put, **arguments)

    def begin(self, **arguments: Any) -> Future[ToolOutput]:
        """The same on a thread of its own."""
        self.cancel = CancelToken()
        return self.pool.submit(self.call, **arguments)

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
def desk(tmp_path: Path) -> Iterator[BashDesk]:
    sandbox = ToolHostSandbox(probe())
    desk = BashDesk(sandbox, tmp_path.resolve())
    yield desk
    sandbox.close()
    desk.pool.shutdown()
    join_jobs()


def join_jobs() -> None:
    for thread in threading.enumerate():
        if thread.name == "bedrock-bash-job":
            thread.join(BOUND)
            assert not thread.is_alive()


def display(output: ToolOutput) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(output.display)
    return shown


def test_a_command_outlives_its_call_and_is_waited_for(desk: BashDesk) -> None:
    os.mkfifo(desk.directory / "gate")
    output = desk.call(cmd="echo begun; read line < gate; echo $line; exit 3", wait_seconds=0)
    assert "as b-1: " in output.text
    desk.cancel.cancel()
    answer = desk.begin(wait="b-1", wait_seconds=900)
    (desk.directory / "gate").write_text("go on\n")
    assert answer.result(BOUND).text.startswith("begun\ngo on\n[")
    assert "exit code 3" in answer.result().text
    assert display(desk.call(peek="b-1"))["status"] == "tombstoned"


def test_a_call_returns_when_its_command_ends_whoever_holds_the_pipe(desk: BashDesk) -> None:
    output = desk.call(cmd="sleep 1000 & setsid sleep 1000 & echo done", wait_seconds=900)
    assert output.text.startswith("done\n[exit code 0]\n[2 processes it left running: killed]")
    assert not any(toolhost.alive(pid) for pid in desk.reaped)


def test_cancel_ends_the_command_of_the_call_under_way_and_no_other(desk: BashDesk) -> None:
    desk.call(cmd="exec sleep 1000", wait_seconds=0)
    answer = desk.begin(cmd="echo begun; setsid sleep 1000 & sleep 1000", wait_seconds=900)
    desk.see("begun\n")
    desk.cancel.cancel()
    assert "[cancelled; the command and all it started were killed]" in answer.result(BOUND).text
    assert desk.reaped
    assert not any(toolhost.alive(pid) for pid in desk.reaped)
    assert desk.toolbox.jobs("c-1") == ("b-1",)


def test_a_job_is_asked_to_end_and_may_clean_up(desk: BashDesk) -> None:
    waiting = "while :; do read -t 1000 < <(sleep 1000); done"
    desk.call(cmd=f"trap 'echo bye; exit 0' TERM; echo ready; {waiting}", wait_seconds=0)
    desk.await_line("b-1", "ready")
    output = desk.call(kill="b-1")
    assert "bye\n" in output.text
    assert display(output)["exit_code"] == 0


def test_a_signal_goes_to_the_whole_pipeline(desk: BashDesk) -> None:
    desk.call(cmd="sleep 1000 | sleep 1000", wait_seconds=0)
    output = desk.call(kill="b-1")
    assert display(output)["final_cause"] == "killed"
    assert display(output)["signal"] == signal.SIGTERM


def test_what_ignores_term_is_ended_by_kill(desk: BashDesk) -> None:
    command = "trap '' TERM; setsid sleep 1000 & echo ready; while :; do sleep 1000; done"
    desk.call(cmd=command, wait_seconds=0)
    desk.await_line("b-1", "ready")
    output = desk.call(kill="b-1", signal="KILL")
    assert "[b-1 has ended: killed, with all it started]" in output.text
    assert desk.sandbox.live == 0


def test_a_flood_is_bounded_and_the_last_lines_are_right(desk: BashDesk) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    desk.show = lambda text: None
    assert display(desk.call(cmd="seq 1 20000000", wait_seconds=0))["status"] == "still_running"
    output = desk.call(wait="b-1", wait_seconds=900)
    assert output.text.endswith("19999999\n20000000\n[exit code 0]")
    assert desk.call(peek="b-1", lines=1).text.startswith("20000000\n[b-1 has ended")
    window = display(desk.call(peek="b-1", since=0))["window"]
    assert (window["start_offset"], window["end_offset"]) == (19_998_000, 20_000_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"


def test_eight_quick_commands_at_the_same_time(desk: BashDesk) -> None:
    answers = [desk.begin(cmd=f"echo {number}") for number in range(8)]
    assert [answer.result(BOUND).text for answer in answers] == [f"{number}\n[exit code 0]" for number in range(8)]


def test_binary_output_is_shown_as_text(desk: BashDesk) -> None:
    output = desk.call(cmd="head -c 1000 /dev/urandom; printf '\\0'")
    assert "[exit code 0]" in output.text
    assert "\0" in output.text


def test_ending_the_jobs_leaves_no_process_and_gives_receipts(desk: BashDesk) -> None:
    for _ in range(3):
        desk.call(cmd="setsid sleep 1000 & nohup sleep 1000 > /dev/null & echo $$; wait", wait_seconds=0)
    receipts: SimpleQueue[KillReceipt] = SimpleQueue()
    assert desk.toolbox.end_jobs("c-1", receipts.put) == 3
    for _ in range(3):
        receipt = receipts.get(timeout=BOUND)
        assert not receipt.leaked
        assert not any(toolhost.alive(pid) for pid in receipt.pids)
    assert desk.sandbox.live == 0


def test_nothing_is_left_of_a_forgotten_conversation(desk: BashDesk) -> None:
    before, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    desk.call(cmd="true")
    for _ in range(8):
        desk.call(cmd="sleep 1000", wait_seconds=0)
    desk.toolbox.forget("c-1")
    join_jobs()
    assert desk.toolbox.jobs("c-1") == ()
    assert desk.sandbox.live == 0
    assert threading.active_count() == before
    assert len(os.listdir("/proc/self/fd")) == files


def test_the_jobs_end_with_the_sandbox(desk: BashDesk) -> None:
    desk.call(cmd="sleep 1000", wait_seconds=0)
    answer = desk.begin(wait="b-1", wait_seconds=900)
    desk.sandbox.close()
    assert "killed, with all it started" in answer.result(BOUND).text
    join_jobs()


def test_a_job_stays_as_restricted_as_it_was_started(desk: BashDesk) -> None:
    """On a machine that cannot restrict, it is not started."""
    desk.mode = Mode.RESTRICTED
    command = "echo $HOME; touch $HOME/kept && echo written; exec < gate; touch changed || echo refused"
    os.mkfifo(desk.directory / "gate")
    if not desk.sandbox.report.restriction_available:
        with pytest.raises(SandboxUnavailableError):
            desk.call(cmd=command, wait_seconds=0)
        assert desk.toolbox.jobs("c-1") == ()
        return
    desk.call(cmd=command, wait_seconds=0)
    desk.mode = Mode.UNRESTRICTED
    answer = desk.begin(wait="b-1", wait_seconds=900)
    (desk.directory / "gate").write_text("")
    home, written, *rest = answer.result(BOUND).text.splitlines()
    assert written == "written"
    assert "refused" in rest
    assert not (desk.directory / "changed").exists()
    assert not (Path(home) / "kept").exists()


def test_a_syntax_error_is_told_by_bash_itself(desk: BashDesk) -> None:
    output = desk.call(cmd="if true")
    assert "syntax error" in output.text
    assert not output.is_error
