"""One command of bash that may outlive the call that started it."""

from __future__ import annotations

import functools
import logging
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from actors.adapters.tools.bash.scrollback import Scrollback, Window
from actors.adapters.tools.bash.utf8_stream import Utf8Stream
from actors.core.tool_run import KillReceipt
from actors.ports import CancelToken, Clock, ProcessEnd, RunningProcess

if TYPE_CHECKING:
    from actors.core.context import Mode

log = logging.getLogger(__name__)

TOMBSTONE_LINES = 2000
"""What is kept of the output of a job that has ended."""

OnEnd: TypeAlias = Callable[[ProcessEnd], None]


class Job:
    """A command: its process, its output, its end. Any thread, but for `feed` (the sandbox's) and `attend` (once).

    A thread of its own waits for the process and ends with it: whoever kills the process ends the thread.
    """

    def __init__(self, handle: str, command: str, tool_use_id: str, mode: Mode, clock: Clock) -> None:
        self.handle = handle
        self.command = command
        self.tool_use_id = tool_use_id
        """The call that started it."""
        self.mode = mode
        """What it may do, whatever the conversation's mode becomes."""
        self.background = False
        """Whether it goes on when that call ends."""
        self.kill_pending = False
        """Somebody waited in vain for it to end after a signal."""
        self._clock = clock
        self._began = clock.monotonic()
        self._writing = threading.Lock()
        # all up to the next lock under _writing
        self._scrollback = Scrollback()
        self._watchers: list[Callable[[str], None]] = []
        self._live = Utf8Stream(self._show)
        self._changing = threading.Lock()
        # all below under _changing
        self._process: RunningProcess | None = None
        self._doomed = False
        self._on_end: list[OnEnd] = []
        self._end: ProcessEnd | None = None

    @property
    def end(self) -> ProcessEnd | None:
        """How it ended; None while it runs, and before it does."""
        return self._end

    @property
    def doomed(self) -> bool:
        """Whether it was killed; it may still be dying."""
        return self._doomed

    @property
    def age_seconds(self) -> float:
        return self._clock.monotonic() - self._began

    # --- output -----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take a piece of output."""
        with self._writing:
            self._scrollback.feed(data)
            self._live.feed(data)

    def watch(self, show: Callable[[str], None]) -> None:
        """Pass on what is written from now on, until `unwatch`."""
        with self._writing:
            self._watchers.append(show)

    def unwatch(self, show: Callable[[str], None]) -> None:
        """`show` is not called any more once this has returned."""
        with self._writing:
            if show in self._watchers:
                self._watchers.remove(show)

    def tail(self, lines: int) -> Window:
        with self._writing:
            return self._scrollback.tail(lines)

    def since(self, line: int) -> Window:
        with self._writing:
            return self._scrollback.since(line)

    def _show(self, text: str) -> None:
        for show in self._watchers.copy():
            try:
                show(text)
            except Exception:
                self._watchers.remove(show)
                log.exception("live output of a bash job is no longer passed on")

    # --- life -------------------------------------------------------------------------------------------------------

    def attend(self, process: RunningProcess) -> None:
        """Wait for the process on a thread of the job. Raises RuntimeError if there is none to be had: then the
        process has been killed, and waited for here."""
        with self._changing:
            self._process = process
            doomed = self._doomed
        if doomed:
            process.kill()
        try:
            threading.Thread(target=self._await_end, args=(process,), name="bedrock-bash-job", daemon=True).start()
        except RuntimeError:
            process.kill()
            self._await_end(process)
            raise

    def wait(self, seconds: float, cancel: CancelToken) -> ProcessEnd | None:
        """Wait until it has ended, `seconds` at most, or until `cancel`: how it ended, None if it has not."""
        woken = threading.Event()

        def wake(_end: ProcessEnd | None = None) -> None:
            woken.set()

        if not self._when_ended(wake):
            return self._end
        cancel.on_cancel(wake)
        try:
            woken.wait(seconds)
        finally:
            cancel.forget(wake)
            with self._changing:
                if wake in self._on_end:
                    self._on_end.remove(wake)
        return self._end

    def wait_out(self) -> ProcessEnd:
        """Wait until it has ended, however long that takes: for one that is being killed."""
        settled: SimpleQueue[ProcessEnd] = SimpleQueue()
        if not self._when_ended(settled.put) and self._end is not None:
            return self._end
        return settled.get()

    def signal(self, number: int) -> None:
        """Send it a signal, once; SIGKILL goes to all that it started, too. An ended job gets none."""
        if number == signal.SIGKILL:
            self.kill()
            return
        with self._changing:
            process = None if self._end else self._process
        if process is not None:
            process.signal(number)

    def kill(self, ended: Callable[[KillReceipt], None] | None = None) -> bool:
        """Kill all of its processes, without waiting; False if it has ended already.

        If not, `ended` gets the receipt, on the job's thread. What has not started yet is killed when it does.
        """
        now = self._clock.monotonic()
        with self._changing:
            if self._end is not None:
                return False
            self._doomed = True
            if ended is not None:
                self._on_end.append(functools.partial(self._give_receipt, ended, now))
            process = self._process
        if process is not None:
            process.kill()
        return True

    def _when_ended(self, call: OnEnd) -> bool:
        """Call it at the end; False if that has been."""
        with self._changing:
            if self._end is not None:
                return False
            self._on_end.append(call)
            return True

    def _give_receipt(self, ended: Callable[[KillReceipt], None], killed_at: float, end: ProcessEnd) -> None:
        took = round((self._clock.monotonic() - killed_at) * 1000)
        ended(KillReceipt(self.tool_use_id, 0, end.reaped, took, end.leaked))

    # --- the job's thread -------------------------------------------------------------------------------------------

    def _await_end(self, process: RunningProcess) -> None:
        """Whatever happens here, those who wait are woken."""
        end = ProcessEnd(None, None, b"", b"", 0, 0, (), leaked=True)
        try:
            end = process.wait()
            with self._writing:
                self._scrollback.finish()
                self._scrollback.keep_last(TOMBSTONE_LINES)
                self._live.finish()
        except Exception:
            log.exception("the end of a bash job is not known")
        finally:
            self._settle(end)

    def _settle(self, end: ProcessEnd) -> None:
        """The state first, then those who wait for it."""
        with self._changing:
            self._end = end
            self._process = None
            calls, self._on_end = self._on_end, []
        for call in calls:
            try:
                call(end)
            except Exception:
                log.exception("the end of a bash job could not be told")
