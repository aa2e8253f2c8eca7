"""The server's side of a running program: receives the tool host's messages (frames), and kills the process tree.

The tool host is the process that runs the program for the server; see toolhost.py.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from actors.adapters.sandbox import control_groups
from actors.adapters.sandbox.host import kernel, process_walk
from actors.common.machine import exhausted_resource, run_in_thread
from actors.ports import Launch, ProcessEnd, ProcessStartError, SandboxUnavailableError

log = logging.getLogger(__name__)

BEGIN_SECONDS = 10.0

# Seconds after a kill within which the host must report that the tree has ended. The tool runner waits a little less,
# so that it has reported that processes may still be running before this module stops waiting.
REPORT_SECONDS = 2.2

# Seconds that the host has, after a program's time limit, to enforce this limit; then the server itself kills the
# program.
WALL_GRACE_SECONDS = 5.0

# Maximum seconds that the server spends on killing the processes of a host that did not report their end.
CONFIRM_SECONDS = 0.5

FORK_REFUSALS = frozenset({errno.ENOSYS, errno.EINVAL, errno.EPERM})

# The names of the limits, indexed by the numbers that the tool host reports.
LIMITS = ("", "wall", "processes", "memory", "lease")

STAGES = {
    "host": "the tool host could not be forked",
    "fork": "no process could be created",
    "group": "its control groups could not be joined",
    "session": "its session could not be created",
    "cwd": "the working directory cannot be entered",
    "limits": "its limits could not be set",
    "files": "its files could not be set up",
    "restrict": "the sandbox could not be applied",
    "hide": "the server's files could not be hidden from it",
    "lease": "this node cannot start tools until the cluster's database responds",
    "exec": "the program cannot be executed",
}


class Capture:
    """Keeps the first and the last bytes of a stream, at most `limit` bytes in all. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit // 2
        self._tail_room = limit - self._head_room
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        taken = min(len(data), self._head_room - len(self._head))
        self._head += data[:taken]
        self._tail += data[max(taken, len(data) - self._tail_room) :]
        if len(self._tail) > 2 * self._tail_room:
            self._trim()

    def parts(self) -> tuple[bytes, bytes, int]:
        """The head, the tail, and the number of bytes that were dropped between them.

        If no bytes were dropped, the head is the whole output.
        """
        self._trim()
        cut = self._total - len(self._head) - len(self._tail)
        if cut == 0:
            return bytes(self._head + self._tail), b"", 0
        return bytes(self._head), bytes(self._tail), cut

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_room)]


class HostProcess:
    """A tool host that is a child of this process; its pid stays valid until a method here reaps it. Thread-safe."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lock = threading.Lock()
        self._reaped = False

    def ended(self) -> bool:
        with self._lock:
            if not self._reaped:
                try:
                    self._reaped = os.waitpid(self.pid, os.WNOHANG)[0] != 0
                except ChildProcessError:
                    self._reaped = True
            return self._reaped

    def ended_within(self, seconds: float) -> bool:
        if self.ended():
            return True
        with suppress(OSError), kernel.Opened(os.pidfd_open(self.pid)) as descriptor:
            _ends_within(descriptor, seconds)
        return self.ended()

    def kill(self, *, group: bool = False) -> None:
        """Send SIGKILL to the host, or to its process group; has no effect if the host has ended."""
        with self._lock:
            if not self._reaped:
                with suppress(OSError):
                    (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)


class HostLostError(ProcessStartError):
    """The fork server ended or did not answer before it forked a host; the program did not start."""


class ForkUnsupportedError(ProcessStartError):
    """The kernel does not let the fork server fork hosts; the program did not start."""


class InitProcess:
    """The root of the program's process tree. When it exits, the kernel or the host kills the rest."""

    def __init__(self, pid: int, namespace: bool, host: int) -> None:
        self.pid = pid
        self.namespace = namespace
        self._pidfd: int | None = None
        self._ours = False
        self._vanished = False
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._vanished = True
        except OSError:
            log.warning("cannot open a pidfd for a tool's process; cancelling it takes a little longer")
        else:
            self._ours = _parent(pid) == host

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to init if it is certain that the pid still belongs to the host's child."""
        if self._pidfd is not None and self._ours:
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, number)

    def ended_within(self, seconds: float) -> bool:
        """Wait for at most `seconds`; return whether init has certainly ended."""
        if self._pidfd is None:
            return self._vanished
        return _ends_within(self._pidfd, seconds)

    def close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _ends_within(pidfd: int, seconds: float) -> bool:
    poll = select.poll()  # unlike select, works with any number of open files
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class EndReport(NamedTuple):
    """The tool host's last message."""

    code: int  # -1 if a signal ended the program
    signal: int
    killed: int
    limit: int  # an index of LIMITS
    leaked: int
    milliseconds: int
    pids: tuple[int, ...]

    @classmethod
    def read(cls, content: bytes) -> EndReport:
        code, number, killed, limit, leaked, milliseconds, *pids = _numbers(content)
        return cls(code, number, killed, limit, leaked, milliseconds, tuple(pids))


# A callback that gets the ended tree, its host (None if unknown), and the marks of its processes (None if it is certain
# that none are running).
OnEnd: TypeAlias = "Callable[[ProcessTree, HostProcess | None, control_groups.CallMarks | None], None]"


class ProcessTree:
    """A program and all its descendants, run by its tool host (implements ports.RunningProcess).

    Any thread may call `kill`, `signal` and `wait`. A reader thread receives the host's frames, and reaps the host
    after the last frame; `wait` does not wait for the reaping.
    """

    def __init__(
        self,
        host: HostProcess | None,
        control: socket.socket,
        launch: Launch,
        on_output: Callable[[bytes], None],
        *,
        on_end: OnEnd,
        trace: control_groups.CallMarks,
    ) -> None:
        self._marks = trace
        self._control = control
        self._on_output: Callable[[bytes], None] | None = on_output
        self._on_end = on_end
        self._capture = Capture(launch.output_bytes)
        self._began = time.monotonic()
        wall = launch.limits.wall_seconds
        self._wall_until = self._began + wall + WALL_GRACE_SECONDS if wall else None
        self._reading = False
        self._read_all = threading.Event()
        self._finishing = threading.Lock()  # the first waiting thread computes `_end` for all
        self._end: ProcessEnd | None = None
        self._changed = threading.Condition()  # notified by the reader and `kill`
        # everything below is guarded by _changed
        self._host = host
        self._init: InitProcess | None = None
        self._grouped = False
        self._started = False
        self._refusal: Exception | None = None
        self._report: EndReport | None = None
        self._tree_cleared = False
        self._host_gone = False
        self._over = False
        self._killed_at: float | None = None
        self._wall_passed = False
        self._killed_pids: set[int] = set()

    # --- start ----------------------------------------------------------------------------------------------------

    def begin(self, description: bytes) -> None:
        """Send the launch message `description` to the host. Raises ProcessStartError if no program started."""
        try:
            run_in_thread(self._read, "bedrock-toolhost")
            self._reading = True
        except RuntimeError as error:
            self._host_gone = True
            raise ProcessStartError(
                exhausted_resource(error) or "the thread for the tool's output could not be started"
            ) from error
        try:
            self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(BEGIN_SECONDS), 0))
            self._control.sendall(len(description).to_bytes(4, "big"))
            for start in range(0, len(description), kernel.CHUNK):
                self._control.sendall(description[start : start + kernel.CHUNK])
        except (BrokenPipeError, ConnectionResetError):
            return  # `await_begin` determines the reason
        except OSError as error:
            raise ProcessStartError(f"the tool host did not accept the launch message: {error.strerror}") from error

    def await_begin(self) -> None:
        """Wait until the program runs.

        Raises ProcessStartError or SandboxUnavailableError if the program certainly did not start; after HostLostError
        or ForkUnsupportedError, an attempt with another host may succeed. If the host is lost later, `wait` reports
        that.
        """
        with self._changed:
            known = self._changed.wait_for(self._start_decided, BEGIN_SECONDS)
        if not known:
            self.kill()
            with self._changed:
                self._changed.wait_for(self._start_decided, REPORT_SECONDS)
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            if self._host is None:
                raise HostLostError("the process that forks tool hosts exited or did not respond")
            if self._init is None:
                raise ProcessStartError("the tool host exited before the program started")

    def _start_decided(self) -> bool:
        return self._started or self._refusal is not None or self._report is not None or self._host_gone

    # --- kill -----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        with self._changed:
            if self._over or self._killed_at is not None:
                return
            self._killed_at = time.monotonic()
            with suppress(OSError):
                self._control.send(kernel.KILL, socket.MSG_DONTWAIT)
            if self._init is None:
                self._kill_host()
            else:
                self._killed_pids.update(process_walk.snapshot(self._init.pid))
                self._init.kill()
            self._changed.notify_all()

    def _kill_host(self) -> None:
        """Kill a host that has not started init.

        A host whose pid is unknown ends when it tries to report the pid, because the socket is shut down here.
        """
        if self._host is not None:
            self._host.kill()
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR if self._host is None else socket.SHUT_WR)

    def signal(self, number: int) -> None:
        with self._changed:
            if not self._over and self._killed_at is None:
                with suppress(OSError):
                    self._control.send(kernel.SIGNAL + bytes([number]), socket.MSG_DONTWAIT)

    # --- wait -----------------------------------------------------------------------------------------------------

    def wait(self) -> ProcessEnd:
        """Block until the program and all its descendants have exited or count as leaked; return how it ended."""
        with self._finishing:
            if self._end is None:
                self._end = self._finish()
            return self._end

    def _finish(self) -> ProcessEnd:
        leaked = bool(self._report and self._report.leaked) if self._await_report() else not self._clear()
        with self._changed:
            self._over = True
            ends_by_itself = self._report is not None and not leaked
        if not ends_by_itself:
            self._join_reader(leaked)
            if self._host is not None:
                self._host.ended_within(CONFIRM_SECONDS)
        self._control.close()
        if self._init is not None:
            self._init.close()
        control_groups.remove_groups(self._marks)
        if leaked:
            log.error("a tool's process tree was killed, but some of its processes might still be running")
        self._on_end(self, self._host, self._marks if leaked else None)
        return self._result(leaked)

    def _join_reader(self, leaked: bool) -> None:
        """Wait until the reader thread has ended. If `leaked`, the host is still running, so end the thread now."""
        if not self._reading:  # the reader was never started, so the host's pid is not known
            self._control.settimeout(CONFIRM_SECONDS)
            self._read()
            return
        self._read_all.wait(0 if leaked else CONFIRM_SECONDS)
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._read_all.wait()

    def _await_report(self) -> bool:
        """Wait for the host's report; False if the host is lost, or takes longer than REPORT_SECONDS after a kill."""
        with self._changed:
            while self._report is None and not self._host_gone:
                due = self._wall_until if self._killed_at is None else self._killed_at + REPORT_SECONDS
                left = None if due is None else due - time.monotonic()
                if left is None or left > 0:
                    self._changed.wait(left)
                elif self._killed_at is None:
                    self._wall_passed = True
                    self.kill()
                else:
                    return False
            return self._report is not None

    def _clear(self) -> bool:
        """Kill the tree in place of a host that has exited or does not report; return whether all of it has exited.

        Without a namespace, init ends last, because it kills the others when its host has ended. If the tool has killed
        init, remaining processes are found by the call's marks.
        """
        host, init = self._host, self._init
        if host is None:
            return True
        confirmed = self._refusal is not None or self._tree_cleared or (not self._host_gone and self._sweep(host))
        host.kill(group=True)
        if init is None:
            return True
        if init.namespace or confirmed:
            init.kill()
            return init.ended_within(CONFIRM_SECONDS)
        init.kill(signal.SIGCONT)  # a stopped init would not clean up
        killed, certain = control_groups.kill_orphans(self._marks, CONFIRM_SECONDS, grouped=self._grouped)
        self._killed_pids.update(killed)
        return init.ended_within(CONFIRM_SECONDS) and (certain or self._tree_cleared)

    def _sweep(self, host: HostProcess) -> bool:
        """Kill the descendants of a live host that does not report; return whether none are left.

        A host that is exiting has already lost its children; finding none proves nothing in that case.
        """
        deadline = time.monotonic() + CONFIRM_SECONDS
        while not host.ended() and time.monotonic() < deadline:
            pids = process_walk.descendants(host.pid)
            if not pids:
                return not host.ended()
            self._killed_pids.update(pids)
            for pid in pids:
                process_walk.send_signal(pid, signal.SIGKILL)
            time.sleep(0.005)
        return False

    def _result(self, leaked: bool) -> ProcessEnd:
        duration = int((time.monotonic() - self._began) * 1000)
        report = self._report or EndReport(-1, int(signal.SIGKILL), 0, 0, 0, duration, ())
        head, tail, cut = self._capture.parts()
        infrastructure = {each.pid for each in (self._host, self._init) if each}
        return ProcessEnd(
            exit_code=None if report.code < 0 else report.code,
            signal=report.signal or None,
            head=head,
            tail=tail,
            cut_bytes=cut,
            duration_ms=report.milliseconds,
            reaped=tuple(sorted(self._killed_pids.union(report.pids) - infrastructure)),
            killed=bool(report.killed) or (self._killed_at is not None and report.code < 0),
            leaked=leaked,
            limit="wall" if self._wall_passed and report.code < 0 else LIMITS[report.limit],
        )

    # --- the reader thread --------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while self._report is None and (frame := self._next_frame()):
                self._handle_frame(frame[:1], frame[1:])
        except OSError:
            pass  # the host is lost; `wait` finds the remaining processes
        finally:
            with self._changed:
                self._host_gone = True
                self._changed.notify_all()
            self._read_all.set()
        if self._report is not None and self._host is not None:
            self._host.ended_within(CONFIRM_SECONDS)

    def _next_frame(self) -> bytes:
        """The host's next frame; b"" at the end. Raises OSError.

        If the host ends before it has read everything, the socket is reset, although the host's frames can still be
        read. The first ConnectionResetError is therefore ignored.
        """
        try:
            return self._control.recv(kernel.CHUNK + 1)
        except ConnectionResetError:
            return self._control.recv(kernel.CHUNK + 1)

    def _handle_frame(self, kind: bytes, content: bytes) -> None:
        if kind == kernel.OUTPUT:
            self._handle_output(content)
            return
        with self._changed:
            if kind == kernel.HOST:
                self._host = HostProcess(int(content))
            elif kind == kernel.INIT and self._host is not None:
                pid, namespace, grouped = _numbers(content)
                self._grouped = bool(grouped)
                self._init = InitProcess(pid, bool(namespace), self._host.pid)
            elif kind == kernel.STARTED:
                self._started = True
            elif kind == kernel.FAILED:
                self._refusal = _refusal(content)
            elif kind == kernel.CLEARED:
                self._tree_cleared = True
                self._killed_pids.update(_numbers(content))
            elif kind == kernel.END:
                self._report = EndReport.read(content)
                return  # `_read` notifies the waiting threads
            if self._start_decided():
                self._changed.notify_all()

    def _handle_output(self, output: bytes) -> None:
        self._capture.add(output)
        if self._on_output is None:
            return
        try:
            self._on_output(output)
        except Exception:
            self._on_output = None
            log.exception("cannot forward a tool's live output; its result is not affected")


def _numbers(content: bytes) -> tuple[int, ...]:
    return tuple(map(int, content.split()))


def _refusal(content: bytes) -> Exception:
    stage, _, number = content.decode().partition(" ")
    cause = os.strerror(int(number)) if number != "0" else "internal error"
    text = f"{STAGES[stage]} ({cause})"
    if stage == "host" and int(number) in FORK_REFUSALS:
        return ForkUnsupportedError(text)
    return SandboxUnavailableError(text) if stage in {"restrict", "hide"} else ProcessStartError(text)


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read(512).rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0
