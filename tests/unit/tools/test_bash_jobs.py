"""bash: commands that outlive their call, with processes that end when the test says so."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from actors import ports
from actors.adapters.tools.bash import job
from actors.adapters.tools.bash import tool as bash
from actors.core.states import BackgroundJob, JobStatus
from actors.core.tool_run import KillReceipt
from tests.support.tool_harness import BashHarness

BOUND = 30.0
EXITED = ports.ProcessEnd(0, None, b"all\n", b"", 0, 12, ())
KILLED = ports.ProcessEnd(None, 9, b"all\n", b"", 0, 12, (41, 42), killed=True)


class HeldProcess:
    """Runs until the test ends it, or somebody kills it."""

    def __init__(self, launch: ports.Launch, write: Callable[[bytes], None]) -> None:
        self.launch = launch
        self.write = write
        self.dies = True
        self.signals: SimpleQueue[int] = SimpleQueue()
        self.kills = 0
        self._end: Future[ports.ProcessEnd] = Future()

    def end(self, **changes: Any) -> None:
        self._end.set_result(msgspec.structs.replace(EXITED, **changes))

    def be_lost(self) -> None:
        self._end.set_exception(OSError("lost"))

    def kill(self) -> None:
        self.kills += 1
        if self.dies and not self._end.done():
            self._end.set_result(KILLED)

    def signal(self, number: int) -> None:
        self.signals.put(number)

    def wait(self) -> ports.ProcessEnd:
        return self._end.result(BOUND)


@dataclass
class HoldingSandbox:
    """ports.Sandbox"""

    protected: tuple[str, ...] = ()
    report: ports.SandboxReport = field(default_factory=lambda: ports.SandboxReport("none", 0, False))
    processes: SimpleQueue[HeldProcess] = field(default_factory=SimpleQueue)
    starting: Callable[[HeldProcess], None] = lambda process: None

    def start(self, launch: ports.Launch, on_output: Callable[[bytes], None]) -> HeldProcess:
        process = HeldProcess(launch, on_output)
        self.starting(process)
        self.processes.put(process)
        return process


@dataclass
class TickingClock:
    """Half a second passes at every look."""

    seconds: float = 0.0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        self.seconds += 0.5
        return self.seconds


@dataclass
class JobHarness(BashHarness):
    """Bash whose programs the test ends."""

    clock: TickingClock = field(default_factory=TickingClock)

    def job(self, command: str = "serve") -> HeldProcess:
        """A command that was let go."""
        assert display(self.call(cmd=command, wait_seconds=0))["status"] == "still_running"
        return self.process()

    def watched(self, process: HeldProcess) -> None:
        """Returns once a wait for this process is under way: it shows what the process writes."""
        while self.shown.empty():
            process.write(b"x")

    def process(self) -> HeldProcess:
        process: HeldProcess = self.sandbox.processes.get(timeout=BOUND)
        return process


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[JobHarness]:
    harness = JobHarness(HoldingSandbox(), tmp_path)
    yield harness
    harness.pool.shutdown(wait=False)


def display(output: ports.ToolOutput) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(output.display)
    return shown


def job_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "bedrock-bash-job"]


def everything_ends() -> None:
    for thread in job_threads():
        thread.join(BOUND)
    assert not job_threads()


# --- a command that outlives its call ---------------------------------------------------------------------------------


def test_a_command_goes_on_when_its_wait_is_over(harness: JobHarness) -> None:
    harness.sandbox.starting = lambda process: process.write(b"ready\npart")
    output = harness.call(cmd="serve", wait_seconds=0)
    assert not output.is_error
    assert output.text.startswith("ready\npart\n[still running after a wait of ")
    assert "as b-1: " in output.text
    assert "lines 0 to 0; line 1 is incomplete; to continue, peek with since=1" in output.text
    told = display(output)
    assert (told["status"], told["handle"], told["command"]) == ("still_running", "b-1", "serve")
    assert told["window"] == {"start_offset": 0, "end_offset": 1, "truncated_before": False}
    assert harness.toolbox.jobs("c-1") == ("b-1",)
    process = harness.process()
    harness.cancel.cancel()
    assert process.kills == 0, "it was let go"
    process.end()
    everything_ends()
    assert harness.toolbox.jobs("c-1") == ()


def test_a_wait_sees_the_end_with_all_output(harness: JobHarness) -> None:
    process = harness.job()
    answer = harness.begin(wait="b-1", wait_seconds=900)
    harness.watched(process)
    process.write(b"\nn\xc3")
    process.write(b"\xa4\n")
    process.end(head=b"all\n", exit_code=3)
    output = answer.result(BOUND)
    assert (output.text, output.is_error) == ("all\n[exit code 3]", False)
    assert display(output)["status"] == "exited"
    again = harness.call(wait="b-1")
    assert again.text.endswith("\nnä\n[b-1 has ended: exit code 3]\n[lines 0 to 1; to continue, peek with since=2]")
    told = display(again)
    assert (told["status"], told["final_cause"], told["exit_code"]) == ("tombstoned", "exited", 3)


def test_a_cancelled_wait_only_stops_waiting(harness: JobHarness) -> None:
    process = harness.job()
    answer = harness.begin(wait="b-1", wait_seconds=900)
    harness.watched(process)
    harness.cancel.cancel()
    output = answer.result(BOUND)
    assert output.is_error
    assert output.text == "[cancelled; b-1 continues]"
    assert process.kills == 0
    assert harness.toolbox.jobs("c-1") == ("b-1",)
    process.end()


def test_a_cancel_while_the_job_is_detached_kills_it(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is pulled after the wait was over and before the process is let go."""

    def track(process: ports.RunningProcess) -> Callable[[], bool]:
        let_go = JobHarness.track(harness, process)

        def after_the_cancel() -> bool:
            harness.cancel.cancel()
            return let_go()

        return after_the_cancel

    monkeypatch.setattr(harness, "track", track)
    output = harness.call(cmd="sleep 1000", wait_seconds=0)
    assert display(output)["status"] == "cancelled"
    assert harness.process().kills == 1
    assert harness.toolbox.jobs("c-1") == ()


def test_a_cancel_followed_by_ending_the_jobs_misses_none(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is let go just before the cancel is one that `end_jobs` finds."""
    receipts: list[KillReceipt] = []

    def track(process: ports.RunningProcess) -> Callable[[], bool]:
        let_go = JobHarness.track(harness, process)

        def before_the_cancel() -> bool:
            went = let_go()
            harness.cancel.cancel()
            harness.toolbox.end_jobs("c-1", receipts.append)
            return went

        return before_the_cancel

    monkeypatch.setattr(harness, "track", track)
    harness.call(cmd="sleep 1000", wait_seconds=0)
    everything_ends()
    assert harness.process().kills == 1
    assert len(receipts) == 1


# --- output -----------------------------------------------------------------------------------------------------------


def test_watchers_see_a_command_while_its_call_runs_and_never_after_it(harness: JobHarness) -> None:
    harness.sandbox.starting = lambda process: process.write("é".encode()[:1])
    process = harness.job()
    assert harness.shown.empty()
    process.write("é\n".encode()[1:])
    answer = harness.begin(wait="b-1")
    harness.watched(process)
    assert set(harness.shown.get(timeout=BOUND)) == {"x"}
    process.end()
    answer.result(BOUND)


def test_a_watcher_that_fails_costs_the_job_nothing(harness: JobHarness) -> None:
    def fail(text: str) -> None:
        raise OSError

    harness.sandbox.starting = lambda process: process.write(b"one\n")
    harness.show = fail
    process = harness.job()
    process.write(b"two\n")
    process.end()
    everything_ends()
    assert "one\ntwo\n" in harness.call(peek="b-1").text


def test_a_peek_shows_a_window(harness: JobHarness) -> None:
    process = harness.job()
    assert "[no output yet; " in harness.call(peek="b-1").text
    process.write("".join(f"{number}\n" for number in range(300)).encode())
    output = harness.call(peek="b-1")
    assert output.text.startswith("100\n101\n")
    assert display(output)["status"] == "running"
    assert display(output)["window"] == {"start_offset": 100, "end_offset": 300, "truncated_before": False}
    assert harness.call(peek="b-1", lines=2).text.startswith("298\n299\n[b-1 has been running for ")
    assert harness.call(peek="b-1", since=299).text.startswith("299\n[")
    assert "[no new output; to continue, peek with since=300]" in harness.call(peek="b-1", since=300).text
    process.end()


def test_a_job_s_output_is_shown_as_a_terminal_leaves_it(harness: JobHarness) -> None:
    process = harness.job()
    for piece in (b"build\r\n", b"a: 1%\nb: 1%\n", b"\x1b[2", b"A\x1b[2Ka: 2%\r\n\x1b[3", b"2mb: \xc3", b"\xa9\x1b[K"):
        process.write(piece)
    output = harness.call(peek="b-1")
    assert output.text.startswith("build\na: 2%\nb: \u00e9\n[b-1 has been running for ")
    assert display(output)["window"] == {"start_offset": 0, "end_offset": 3, "truncated_before": False}
    process.write(b"\x1b[1A\ra: 9%\n\n")
    assert harness.call(peek="b-1", since=1).text.startswith("a: 9%\nb: \u00e9\n[")
    process.end()
    everything_ends()
    assert harness.call(peek="b-1", since=1).text.startswith("a: 9%\nb: \u00e9\n[")


def test_what_replaces_more_lines_than_it_has_is_new_output(harness: JobHarness) -> None:
    process = harness.job()
    process.write(b"begin\n" + b"working\n" * 9)
    assert "[lines 0 to 9; to continue, peek with since=10]" in harness.call(peek="b-1", since=0).text
    process.write(b"\x1b[9A\x1b[Jdone\n")
    assert harness.call(peek="b-1", since=10).text.startswith("begin\ndone\n[")
    process.end()


def test_states_of_a_progress_bar_leave_no_gap_in_long_output(harness: JobHarness) -> None:
    process = harness.job()
    frames = b"".join(b"\r%d%% of the work" % percent for percent in range(100)) * 100
    for step in range(3):
        process.write(b"%s\rstep %d\x1b[K\n" % (frames, step))
    answer = harness.begin(wait="b-1", wait_seconds=900)
    harness.watched(process)
    process.end(head=frames[: 64 << 10], tail=frames[-64 << 10 :], cut_bytes=len(frames))
    text = answer.result(BOUND).text
    assert text.startswith("step 0\nstep 1\nstep 2\nx")
    assert text.endswith("x\n[exit code 0]")
    assert display(answer.result(BOUND))["cut_bytes"] == 0


def test_a_flood_is_bounded_in_memory_and_answer(harness: JobHarness) -> None:
    process = harness.job()
    for _ in range(80):
        process.write(b"\n" * (64 << 10))
    output = harness.call(peek="b-1", since=0)
    assert len(output.text) < 129 << 10
    assert "earlier lines were discarded; there is more: peek with since=" in output.text
    window = display(output)["window"]
    assert window["truncated_before"]
    assert (80 << 16) - window["start_offset"] == 4 << 20
    process.end()
    everything_ends()
    window = display(harness.call(peek="b-1", since=0))["window"]
    assert window["end_offset"] - window["start_offset"] == 2000


# --- kill -------------------------------------------------------------------------------------------------------------


def test_a_kill_sends_one_signal_and_waits_for_the_end(harness: JobHarness) -> None:
    process = harness.job()
    answer = harness.begin(kill="b-1")
    assert process.signals.get(timeout=BOUND) == 15
    process.end(exit_code=None, signal=15)
    output = answer.result(BOUND)
    assert not output.is_error
    assert output.text.startswith("[b-1 has ended: killed by signal 15 (SIGTERM)]")
    told = display(output)
    assert (told["status"], told["final_cause"], told["signal"]) == ("tombstoned", "killed", 15)
    again = harness.call(kill="b-1", signal="KILL")
    assert "; no signal was sent]" in again.text
    assert process.signals.empty()
    assert process.kills == 0


def test_a_shell_s_exit_code_of_a_signal_counts_as_killed(harness: JobHarness) -> None:
    process = harness.job()
    process.end(exit_code=143)
    everything_ends()
    told = display(harness.call(peek="b-1"))
    assert (told["final_cause"], told["exit_code"], told["signal"]) == ("killed", 143, 15)


def test_a_job_that_ignores_its_signal_goes_on(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bash, "KILL_SECONDS", 0)
    process = harness.job()
    output = harness.call(kill="b-1")
    assert "kill_pending_kernel: b-1 is still running" in output.text
    assert 'signal "KILL"' in output.text
    assert display(output)["status"] == "kill_pending_kernel"
    assert display(harness.call(peek="b-1"))["kill_pending"] is True
    assert process.kills == 0, "nothing is escalated"
    process.end()


def test_a_cancelled_kill_stops_waiting(harness: JobHarness) -> None:
    process = harness.job()
    answer = harness.begin(kill="b-1")
    assert process.signals.get(timeout=BOUND) == 15
    harness.cancel.cancel()
    assert answer.result(BOUND).text == "[cancelled; b-1 continues]"
    process.end()


def test_a_kill_wakes_waiting_callers(harness: JobHarness) -> None:
    process = harness.job()
    answer = harness.begin(wait="b-1", wait_seconds=900)
    harness.watched(process)
    harness.call(kill="b-1", signal="KILL")
    assert "killed, with everything it started" in answer.result(BOUND).text
    assert not answer.result().is_error


# --- handles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["peek", "wait", "kill"])
def test_an_unknown_handle_says_which_there_are(harness: JobHarness, what: str) -> None:
    process = harness.job()
    output = harness.call(**{what: "b-7"})
    assert output.is_error
    assert output.text.startswith("handle_not_found: This conversation has no job 'b-7'. Its handles are b-1.")
    harness.conversation = "c-2"
    foreign = harness.call(**{what: "b-1"})
    assert foreign.text.startswith("handle_not_found: ")
    assert "It has no handles." in foreign.text
    assert process.kills == 0
    assert process.signals.empty()
    process.end()


def test_handles_count_per_conversation(harness: JobHarness) -> None:
    processes = [harness.job(), harness.job()]
    harness.conversation = "c-2"
    processes.append(harness.job())
    assert harness.toolbox.jobs("c-1") == ("b-1", "b-2")
    assert harness.toolbox.jobs("c-2") == ("b-1",)
    for process in processes:
        process.end()


def test_a_ninth_job_is_refused_and_the_others_are_listed(harness: JobHarness) -> None:
    processes = [harness.job(f"serve {number}") for number in range(8)]
    output = harness.call(cmd="ls")
    assert output.is_error
    assert output.text.startswith("handle_cap_reached: 8 jobs are running, which is the limit")
    assert "b-3: running for " in output.text
    told = display(output)["jobs"]
    assert [job["handle"] for job in told] == [f"b-{number}" for number in range(1, 9)]
    assert told[2].keys() == {"handle", "cmd", "age_seconds", "status"}
    processes[0].end()
    while len(harness.toolbox.jobs("c-1")) == 8:
        job_threads()[0].join(0.01)
    processes.append(harness.job())
    for process in processes[1:]:
        process.end()


def test_jobs_that_are_started_at_the_same_time_never_exceed_the_cap(harness: JobHarness) -> None:
    barrier = threading.Barrier(9)

    def together(process: HeldProcess) -> None:
        barrier.wait(BOUND)

    harness.sandbox.starting = together
    answers = [harness.begin(cmd=f"serve {number}", wait_seconds=0) for number in range(12)]
    barrier.wait(BOUND)
    told = [display(answer.result(BOUND)) for answer in answers]
    running = [shown["handle"] for shown in told if shown["status"] == "still_running"]
    assert len(set(running)) == 8
    assert sum(shown.get("error") == "handle_cap_reached" for shown in told) == 4
    for _ in running:
        harness.process().end()


def test_only_the_last_ended_jobs_are_kept(harness: JobHarness) -> None:
    for _ in range(job.MAX_ENDED + 2):
        harness.job().end()
        everything_ends()
    assert display(harness.call(peek="b-1"))["error"] == "handle_not_found"
    assert display(harness.call(peek="b-2"))["status"] == "tombstoned"


# --- who hears of a job -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        ({"exit_code": 0}, JobStatus.EXITED, 0),
        ({"exit_code": 3}, JobStatus.EXITED, 3),
        ({"exit_code": None, "signal": 11}, JobStatus.EXITED, 139),
        ({"killed": True}, JobStatus.KILLED, None),
        ({"exit_code": None, "leaked": True}, JobStatus.LOST, None),
    ],
)
def test_a_job_is_reported_when_it_is_let_go_and_when_it_has_ended(
    harness: JobHarness, end: dict[str, Any], status: JobStatus, code: int | None
) -> None:
    process = harness.job("serve \\\n  --port 1")
    began = harness.job_changes.get(timeout=BOUND)
    assert began == BackgroundJob("b-1", "t-1", "serve \\ --port 1")
    process.end(**end)
    assert harness.job_changes.get(timeout=BOUND) == replace(began, status=status, exit_code=code)
    everything_ends()
    assert harness.job_changes.empty()


def test_a_command_that_ends_within_its_call_is_no_job_and_reported_by_its_result_alone(harness: JobHarness) -> None:
    answer = harness.begin(cmd="make", wait_seconds=900)
    harness.process().end()
    assert answer.result(BOUND).ended_job == ""
    assert harness.job_changes.empty()


def test_a_job_that_ends_as_it_is_let_go_is_reported_with_both(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def track(process: ports.RunningProcess) -> Callable[[], bool]:
        let_go = JobHarness.track(harness, process)

        def after_its_end() -> bool:
            process.end()  # type: ignore[attr-defined]
            everything_ends()
            return let_go()

        return after_its_end

    monkeypatch.setattr(harness, "track", track)
    assert display(harness.call(cmd="quick", wait_seconds=0))["status"] == "still_running"
    assert [harness.job_changes.get(timeout=BOUND).status for _ in range(2)] == [JobStatus.RUNNING, JobStatus.EXITED]


def test_a_result_that_shows_the_end_of_a_job_says_so_and_the_end_was_reported_before(harness: JobHarness) -> None:
    process = harness.job()
    assert harness.call(peek="b-1").ended_job == ""
    assert harness.call(wait="b-1", wait_seconds=0).ended_job == ""
    answer = harness.begin(wait="b-1", wait_seconds=900)
    harness.watched(process)
    process.end()
    assert answer.result(BOUND).ended_job == "b-1"
    assert harness.job_changes.qsize() == 2
    for action in ("peek", "wait", "kill"):
        assert harness.call(**{action: "b-1"}).ended_job == "b-1"
    process = harness.job()
    assert harness.call(kill="b-2", signal="KILL").ended_job == "b-2"


# --- ends that come from elsewhere ------------------------------------------------------------------------------------


def test_ending_the_jobs_never_waits_and_does_not_touch_the_running_call(harness: JobHarness) -> None:
    stubborn = harness.job()
    stubborn.dies = False
    answer = harness.begin(cmd="make", wait_seconds=900)
    making = harness.process()
    receipts: SimpleQueue[KillReceipt] = SimpleQueue()
    assert harness.toolbox.end_jobs("c-1", receipts.put) == ("b-1",)
    assert harness.toolbox.jobs("c-1") == (), "what is dying survives nothing"
    assert receipts.empty()
    assert (stubborn.kills, making.kills) == (1, 0)
    stubborn.end(leaked=True)
    assert receipts.get(timeout=BOUND).leaked
    making.end()
    answer.result(BOUND)


def test_forgetting_a_conversation_ends_all_of_it(harness: JobHarness) -> None:
    process = harness.job()
    waiting = harness.begin(wait="b-1", wait_seconds=900)
    harness.watched(process)
    making = harness.begin(cmd="make", wait_seconds=900)
    made = harness.process()
    harness.toolbox.forget("c-1")
    assert "killed, with everything it started" in waiting.result(BOUND).text
    assert "killed, with everything it started" in making.result(BOUND).text
    assert (process.kills, made.kills) == (1, 1)
    everything_ends()
    assert harness.toolbox.jobs("c-1") == ()
    assert display(harness.call(wait="b-1"))["error"] == "handle_not_found"
    harness.toolbox.forget("c-1")


def test_a_command_that_starts_while_its_conversation_is_forgotten_is_killed(harness: JobHarness) -> None:
    harness.sandbox.starting = lambda process: harness.toolbox.forget("c-1")
    output = harness.call(cmd="make", wait_seconds=900)
    assert harness.process().kills == 1
    assert output.is_error


def test_a_job_whose_end_is_lost_still_wakes_waiting_callers(harness: JobHarness) -> None:
    process = harness.job()
    answer = harness.begin(wait="b-1", wait_seconds=900)
    harness.watched(process)
    process.be_lost()
    output = answer.result(BOUND)
    assert "how it ended is unknown" in output.text
    assert "not all of its processes could be confirmed dead" in output.text


def test_a_receipt_that_cannot_be_delivered_breaks_nothing(harness: JobHarness) -> None:
    def fail(receipt: KillReceipt) -> None:
        raise OSError

    process = harness.job()
    answer = harness.begin(wait="b-1", wait_seconds=900)
    harness.watched(process)
    harness.toolbox.end_jobs("c-1", fail)
    assert "killed" in answer.result(BOUND).text


def test_a_start_that_fails_leaves_no_job(harness: JobHarness) -> None:
    def fail(process: HeldProcess) -> None:
        raise ports.ProcessStartError("no process could be created")

    harness.sandbox.starting = fail
    for _ in range(9):
        with pytest.raises(ports.ToolTransientError) as failed:
            harness.call(cmd="ls", wait_seconds=0)
        assert failed.value.begun is False
    assert harness.toolbox.jobs("c-1") == ()


def test_a_machine_without_threads_runs_nothing_unwatched(harness: JobHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(job.threading, "Thread", NoThread)  # type: ignore[attr-defined]
    with pytest.raises(ports.ToolTransientError) as failed:
        harness.call(cmd="ls", wait_seconds=0)
    assert failed.value.begun is True
    assert harness.process().kills == 1
    assert harness.reaped == [41, 42]
    assert harness.toolbox.jobs("c-1") == ()
