"""The shell commands that the bash tool has started: their processes, their output, and how they ended. Kept in memory.

A command may outlive the tool call that started it.
"""

from __future__ import annotations

import codecs
import copy
import functools
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from msgspec.structs import replace

from actors.adapters.tools.bash.scrollback import LineWindow, Scrollback
from actors.adapters.tools.program_launch import ToolRefusedError
from actors.common.machine import run_in_thread
from actors.common.terminal_text import TerminalText
from actors.core.context import Mode, wider
from actors.core.states import BackgroundJob, JobStatus
from actors.core.tool_run import KillReceipt
from actors.ports import CancelToken, Clock, ProcessEnd, RunningProcess

log = logging.getLogger(__name__)

MAX_COMMAND_CHARS = 200

TOMBSTONE_LINES = 2000

OnEnd: TypeAlias = Callable[[ProcessEnd], None]


class Job:
    """A command with its process, its output, and how it ended. Thread-safe.

    Only the sandbox calls `feed`. `attend` is called once; it starts a thread that waits for the process and then ends.
    """

    def __init__(self, handle: str, command: str, tool_use_id: str, mode: Mode, clock: Clock) -> None:
        self.handle = handle
        self.command = command
        self.tool_use_id = tool_use_id
        self.mode = mode
        """The job's permission mode; a later change to the conversation's mode does not affect the job."""
        self.background = False
        """Whether the job continues after the call that started it has returned."""
        self.kill_pending = False
        """Whether the tool sent the job a signal, and the job had not ended when the tool stopped waiting."""
        self._clock = clock
        self._began = clock.monotonic()
        # There are two locks, so that a slow `watch` callback, which blocks output, cannot block a kill.
        self._writing = threading.Lock()
        # _writing guards everything from here to _changing
        self._scrollback = Scrollback()
        self._screen = TerminalText()
        self._watchers: list[Callable[[str], None]] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._changing = threading.Lock()
        # _changing guards everything below
        self._process: RunningProcess | None = None
        self.doomed = False
        """Whether the job was killed; its processes may not have ended yet."""
        self._on_end: list[OnEnd] = []
        self.end: ProcessEnd | None = None
        """How the job ended; None before it starts and while it runs."""

    @property
    def age_seconds(self) -> float:
        return self._clock.monotonic() - self._began

    # --- output -----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Append bytes that the command has written, and pass their text to the callbacks registered with `watch`."""
        with self._writing:
            self._show(self._decoder.decode(data))

    def watch(self, show: Callable[[str], None]) -> None:
        """Pass new output to `show` until `unwatch` is called or `show` raises."""
        with self._writing:
            self._watchers.append(show)

    def unwatch(self, show: Callable[[str], None]) -> None:
        """Stop passing output to `show`; it is not called again after this returns."""
        with self._writing:
            if show in self._watchers:
                self._watchers.remove(show)

    def tail(self, lines: int) -> LineWindow:
        """The last `lines` lines of output, or fewer if these are too long for one LineWindow."""
        with self._writing:
            return self._lines().tail(lines)

    def since(self, line: int) -> LineWindow:
        """The output from line number `line` on, as far as it fits into one LineWindow.

        If lines were erased, so that `line` is too high, returns what follows the last finished line.
        """
        with self._writing:
            lines = self._lines()
            return lines.since(line if line <= lines.end else self._scrollback.end)

    def _lines(self) -> Scrollback:
        """The lines as a terminal would show them now, including those that may still change."""
        lines = copy.deepcopy(self._scrollback) if (shown := self._screen.live_text) else self._scrollback
        lines.feed(shown.encode())
        return lines

    def _show(self, text: str) -> None:
        if not text:
            return
        self._scrollback.feed(self._screen.feed(text).encode())
        for show in self._watchers.copy():
            try:
                show(text)
            except Exception:
                self._watchers.remove(show)
                log.exception("cannot forward a bash job's live output; its result is not affected")

    # --- life -------------------------------------------------------------------------------------------------------

    def attend(self, process: RunningProcess) -> None:
        """Wait on a thread for `process` to end; kill it first if the job was killed.

        Raises RuntimeError if no thread can be started, after killing the process and waiting for its end.
        """
        with self._changing:
            self._process = process
            doomed = self.doomed
        if doomed:
            process.kill()
        try:
            run_in_thread(functools.partial(self._await_end, process), "bedrock-bash-job")
        except RuntimeError:
            process.kill()
            self._await_end(process)
            raise

    def report(self, changed: Callable[[BackgroundJob], None]) -> None:
        """Report that the job continues in the background, and later its end.

        The end is reported on the job's thread, before `wait` returns.
        """
        began = BackgroundJob(self.handle, self.tool_use_id, on_one_line(self.command))
        changed(began)

        def ended(end: ProcessEnd) -> None:
            changed(_ended(began, end))

        if not self._when_ended(ended) and self.end is not None:
            ended(self.end)

    def wait(self, seconds: float, cancel: CancelToken) -> ProcessEnd | None:
        """Wait until the job ends, `seconds` have passed, or a cancel comes; None if the job is still running."""
        woken = threading.Event()

        def wake(_end: ProcessEnd | None = None) -> None:
            woken.set()

        if not self._when_ended(wake):
            return self.end
        cancel.on_cancel(wake)
        try:
            woken.wait(seconds)
        finally:
            cancel.forget(wake)
            with self._changing:
                if wake in self._on_end:
                    self._on_end.remove(wake)
        return self.end

    def wait_out(self) -> ProcessEnd:
        """Wait without a time limit for a job that is being killed; return how the job ended."""
        settled: SimpleQueue[ProcessEnd] = SimpleQueue()
        if not self._when_ended(settled.put) and self.end is not None:
            return self.end
        return settled.get()

    def signal(self, number: int) -> None:
        """Send a signal to the job's process; SIGKILL also kills all its descendants. No effect on an ended job."""
        if number == signal.SIGKILL:
            self.kill()
            return
        with self._changing:
            process = None if self.end else self._process
        if process is not None:
            process.signal(number)

    def kill(self, ended: Callable[[KillReceipt], None] | None = None) -> bool:
        """Kill all processes without waiting; False if the job has already ended.

        When the killed job has ended, `ended` gets a report on the job's thread. A job that has not started yet is
        killed as soon as it starts.
        """
        now = self._clock.monotonic()
        with self._changing:
            if self.end is not None:
                return False
            self.doomed = True
            if ended is not None:
                self._on_end.append(functools.partial(self._give_receipt, ended, now))
            process = self._process
        if process is not None:
            process.kill()
        return True

    def _when_ended(self, call: OnEnd) -> bool:
        """Register a callback for the job's end; return False without registering it if the job has already ended."""
        with self._changing:
            if self.end is not None:
                return False
            self._on_end.append(call)
            return True

    def _give_receipt(self, ended: Callable[[KillReceipt], None], killed_at: float, end: ProcessEnd) -> None:
        took = round((self._clock.monotonic() - killed_at) * 1000)
        ended(KillReceipt(self.tool_use_id, 0, end.reaped, took, end.leaked))

    # --- thread of the job -------------------------------------------------------------------------------------------

    def _await_end(self, process: RunningProcess) -> None:
        """Wait for the process to end, then record how the job ended; wake all waiting threads even if this fails."""
        end = ProcessEnd(None, None, b"", b"", 0, 0, (), leaked=True)
        try:
            end = process.wait()
            with self._writing:
                self._show(self._decoder.decode(b"", final=True))
                self._scrollback.feed(self._screen.finish().encode())
                if end.cut_bytes and self._screen.altered:
                    head, tail, cut = self._scrollback.ends()
                    end = replace(end, head=head, tail=tail, cut_bytes=cut)
                self._scrollback.finish()
                self._scrollback.keep_last(TOMBSTONE_LINES)
        except Exception:
            log.exception("cannot determine how a bash job ended")
        finally:
            self._settle(end)

    def _settle(self, end: ProcessEnd) -> None:
        with self._changing:
            self.end = end
            self._process = None
            calls, self._on_end = self._on_end, []
        for call in calls:
            try:
                call(end)
            except Exception:
                log.exception("a callback for the end of a bash job failed")


def on_one_line(text: str) -> str:
    """The beginning of a command, without line breaks."""
    line = " ".join(text[: 2 * MAX_COMMAND_CHARS].split())
    return line if len(line) <= MAX_COMMAND_CHARS else f"{line[:MAX_COMMAND_CHARS]}…"


def _ended(job: BackgroundJob, end: ProcessEnd) -> BackgroundJob:
    if end.killed:
        return replace(job, status=JobStatus.KILLED)
    if end.exit_code is None and end.signal is None:
        return replace(job, status=JobStatus.LOST)
    return replace(
        job, status=JobStatus.EXITED, exit_code=128 + (end.signal or 0) if end.exit_code is None else end.exit_code
    )


MAX_LIVE = 8

MAX_ENDED = 16


class JobRegistry:
    """Finds jobs by conversation and handle, in memory. Thread-safe; never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the jobs of all conversations; not held while jobs are killed
        self._jobs: dict[str, dict[str, Job]] = {}
        self._numbers: Counter[str] = Counter()

    def open(self, conversation_id: str, command: str, tool_use_id: str, mode: Mode, clock: Clock) -> Job:
        """Create a job with the next handle (b-1, b-2, …) without starting it. Raises ToolRefusedError (too many)."""
        with self._lock:
            jobs = self._jobs.setdefault(conversation_id, {})
            if len(live := _live(jobs)) >= MAX_LIVE:
                raise _too_many(live)
            ended = [handle for handle, job in jobs.items() if job.end is not None]
            for handle in ended[: max(0, len(ended) - MAX_ENDED)]:
                del jobs[handle]
            self._numbers[conversation_id] += 1
            handle = f"b-{self._numbers[conversation_id]}"
            job = jobs[handle] = Job(handle, command, tool_use_id, mode, clock)
            return job

    def drop(self, conversation_id: str, job: Job) -> None:
        with self._lock:
            self._jobs.get(conversation_id, {}).pop(job.handle, None)

    def find(self, conversation_id: str, handle: str) -> Job:
        """The job with this handle. Raises ToolRefusedError if the conversation has no such job."""
        with self._lock:
            jobs = self._jobs.get(conversation_id, {})
            if handle in jobs:
                return jobs[handle]
            known = [job.handle for job in jobs.values() if job.background]
        raise _not_found(handle, known)

    def running(self, conversation_id: str, wider_than: Mode | None = None) -> list[Job]:
        """The running background jobs, oldest first; with `wider_than`, only those with more rights than that mode."""
        with self._lock:
            jobs = [job for job in _live(self._jobs.get(conversation_id, {})) if job.background]
        return [job for job in jobs if wider_than is None or wider(job.mode, wider_than)]

    def end_all(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> tuple[str, ...]:
        """Kill the jobs that `running` returns; return the handles of those that had not yet ended.

        When a killed job has ended, `ended` gets a report on the job's thread.
        """
        return tuple(job.handle for job in self.running(conversation_id, wider_than) if job.kill(ended))

    def forget(self, conversation_id: str) -> None:
        """Kill all jobs of a conversation, including those that are being started, and remove them."""
        with self._lock:
            jobs = self._jobs.pop(conversation_id, {})
            self._numbers.pop(conversation_id, None)
        for job in _live(jobs):
            job.kill()


def _live(jobs: dict[str, Job]) -> list[Job]:
    return [job for job in jobs.values() if job.end is None]


def _too_many(live: list[Job]) -> ToolRefusedError:
    jobs = [
        {
            "handle": job.handle,
            "cmd": on_one_line(job.command),
            "age_seconds": int(job.age_seconds),
            "status": "kill_pending" if job.kill_pending else "running",
        }
        for job in live
    ]
    listed = "\n".join(f"{job['handle']}: {job['status']} for {job['age_seconds']} s: {job['cmd']}" for job in jobs)
    text = (
        f"{len(live)} jobs are running, which is the limit. Wait for one of them or kill it. Nothing was run.\n{listed}"
    )
    return ToolRefusedError("handle_cap_reached", text, jobs=jobs)


def _not_found(handle: str, known: list[str]) -> ToolRefusedError:
    has = f"Its handles are {', '.join(known)}" if known else "It has no handles"
    named = on_one_line(handle)
    text = (
        f"This conversation has no job {named!r}. {has}. A handle comes from a `cmd` that was still running when its "
        f"wait was over; jobs and their output are lost when the server restarts, and only the last {MAX_ENDED} ended "
        "jobs are kept."
    )
    return ToolRefusedError("handle_not_found", text, handle=named, handles=known)
