"""The host process of a call: starts init (see toolhost.py), forwards output, enforces limits, kills the processes."""

import errno
import os
import select
import time

from actors.adapters.sandbox.host import call_limits, frames, init_process, kernel, namespaces, one_call, process_walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal

DRAIN_SECONDS = 0.2
"""Seconds to wait for output after the main process has ended; another process may keep the pipe open for ever."""

LAST_OUTPUT = 1 << 20
"""Maximum bytes read from the pipe after the process tree is dead."""


class ServerGoneError(Exception):
    """The control socket ended or failed: the server no longer needs this call."""


class NotStartedError(Exception):
    """The program did not start; the reason was sent to the server."""


class Host(one_call.HostedCall):
    """The work of the host process for one call, from the launch to the exit of the call's last process."""

    def __init__(self, control: int, launch: "dict[str, Any]", lease: one_call.LeaseFile) -> None:
        super().__init__(control, launch, lease)
        self.poll = select.poll()
        self.init = 0
        self.began = time.monotonic()
        self.wall = float(launch["limits"]["wall_seconds"])
        self.status: int | None = None
        self.drain_until = 0.0
        self.unsent = b""
        self.output_open = True
        self.begun = self.kill_requested = False
        self.limit = 0
        self.killed: set[int] | None = set()

    def run(self) -> None:
        """Run the call until its last process has exited, and report its end to the server.

        Raises ServerGoneError or NotStartedError, after having killed the process tree and waited some seconds for its
        end.
        """
        try:
            self.begin()
            self.watch()
        except ServerGoneError:
            self.killed = None
            raise
        finally:
            ended = time.monotonic()
            cleared = self.clear()
        self.send_rest()
        self.send(frames.END + " ".join(map(str, self.result(cleared, ended))).encode())

    def begin(self) -> None:
        """Start the init process, report it to the server, and let it start the main process (the program)."""
        if self.lease.over():
            self.fail(b"lease %d" % errno.ETIME)
        pipes = self.pipes
        restricted = self.launch["restrict"] is not None
        self.groups = call_limits.Groups(self.launch["groups"])
        try:
            self.namespace = bool(self.launch["namespace"]) and namespaces.enter_pid_namespace(restricted)
            self.census = call_limits.Census(self.launch["limits"], self.namespace, self.groups)
            if self.census.processes and os.geteuid() == 0:  # RLIMIT_NPROC does not limit root
                self.behind = call_limits.step_ahead()
            self.init = self.groups.fork()
        except OSError as error:
            self.fail(f"fork {error.errno}".encode())
        if self.init == 0:
            init_process.run_init(self)
        kernel.close(pipes.life, pipes.output_end, pipes.status_end, pipes.report_end, *self.launch["streams"])
        os.set_blocking(pipes.output, False)
        os.set_blocking(self.control, False)
        self.send(frames.INIT + f"{self.init} {int(self.namespace)} {int(bool(self.groups.held))}".encode())
        os.write(pipes.life_end, b"g")
        os.set_blocking(pipes.life_end, False)
        for source in (self.control, pipes.report, pipes.status, pipes.output):
            self.poll.register(source, select.POLLIN)

    def fail(self, why: bytes) -> "NoReturn":
        """Report that the program did not start. Raises NotStartedError."""
        self.send(frames.FAILED + why)
        raise NotStartedError

    def watch(self) -> None:
        """Forward output until the process tree must be killed.

        It must be killed when the server sends KILL, when a limit is exceeded, when init has ended, or when the main
        process has ended and its output was read.
        """
        while not self.over():
            ready = {source for source, _ in self.poll.poll(self.patience())}
            if self.control in ready and self.hear():
                return
            if self.pipes.report in ready:
                self.read_report()
            if self.pipes.status in ready and not self.read_status():
                return
            if self.pipes.output in ready:
                self.pump()

    def over(self) -> bool:
        """Return whether the process tree must be killed now.

        If the reason is an exceeded limit, also store the limit's number (see frames.py) in `self.limit`.
        """
        if self.drain_until:
            drained = time.monotonic() >= self.drain_until or not (self.output_open or self.unsent)
            return drained or self.lease.over()
        if self.lease.over():
            self.limit = frames.LEASE
        elif self.wall > 0 and time.monotonic() >= self.began + self.wall:
            self.limit = frames.WALL
        else:
            self.limit = self.census.exceeded(self.init)
        return self.limit > 0

    def patience(self) -> float | None:
        """Return the milliseconds until the next check of limits is due; None if no limit has to be checked."""
        now = time.monotonic()
        dues = [self.drain_until] if self.drain_until else [self.began + self.wall] if self.wall else []
        if (asked := self.census.due()) is not None:
            dues.append(asked)
        if self.lease.file >= 0:
            dues.append(self.lease.until / 1e9)
        return max(0.0, min(dues) - now) * 1000 + 1 if dues else None

    def hear(self) -> bool:
        """Handle one frame (message) of the server; if there is none, send pending output.

        Returns whether the frame was KILL. Raises ServerGoneError.
        """
        try:
            frame = os.read(self.control, frames.CHUNK)
        except BlockingIOError:
            self.flush()
        except OSError as error:
            raise ServerGoneError from error
        else:
            self.kill_requested = frame == frames.KILL
            if frame[:1] == frames.SIGNAL:
                self.pass_on(frame[1:])
            elif not self.kill_requested:
                raise ServerGoneError
        return self.kill_requested

    def pass_on(self, number: bytes) -> None:
        """Let init send signal `number` to the main process's group; no effect if init has ended or does not read."""
        try:
            os.write(self.pipes.life_end, number)
        except OSError:
            return
        process_walk.send_signal(self.init, signal.SIGTERM)

    def read_report(self) -> None:
        """Read from the report pipe whether the main process became the program, and tell the server if it did.

        The pipe contains an error, or was closed by a successful exec. Raises NotStartedError if it contains an error.
        """
        self.begun = True
        self.poll.unregister(self.pipes.report)
        why = os.read(self.pipes.report, frames.CHUNK)
        if why:
            self.fail(why)
        self.send(frames.STARTED)

    def read_status(self) -> bool:
        """Read the main process's wait status; return False if init has ended without reporting one.

        Init may also end after it has reported the status, if the main process has left no process behind.
        """
        data = os.read(self.pipes.status, 4)
        if not data:
            self.poll.unregister(self.pipes.status)
            return self.status is not None
        self.status = int.from_bytes(data, "big")
        if not self.begun:
            self.read_report()
        self.drain_until = time.monotonic() + DRAIN_SECONDS
        return True

    def pump(self) -> None:
        """Read one chunk of output; the pipe is polled again once the server has accepted the chunk."""
        data = os.read(self.pipes.output, frames.CHUNK)
        self.poll.unregister(self.pipes.output)
        if data:
            self.unsent = frames.OUTPUT + data
            self.flush()
        else:
            self.output_open = False

    def flush(self) -> None:
        """Send the pending chunk of output, then read the next one.

        Until the server accepts the chunk, further output stays in the program's pipe.
        """
        if not self.unsent:
            return
        try:
            os.write(self.control, self.unsent)
        except BlockingIOError:
            self.poll.modify(self.control, select.POLLIN | select.POLLOUT)
        except OSError as error:
            raise ServerGoneError from error
        else:
            self.unsent = b""
            self.poll.modify(self.control, select.POLLIN)
            self.poll.register(self.pipes.output, select.POLLIN)

    def send(self, frame: bytes) -> None:
        """Send a frame (message) to the server, blocking until the socket has space. Raises ServerGoneError."""
        poll = select.poll()
        poll.register(self.control, select.POLLOUT)
        while True:
            poll.poll()
            try:
                os.write(self.control, frame)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ServerGoneError from error
            return

    def clear(self) -> bool:
        """Kill the process tree and wait for its end; return False if it does not end in time.

        After the server's KILL message this waits without a limit: the server kills this process when the server's own
        time limit has passed.
        """
        if not self.init:
            return True
        if self.killed is not None:
            self.killed.update(process_walk.snapshot(self.init))
        process_walk.send_signal(self.init, signal.SIGKILL)
        if not self.namespace and (self.killed is None or len(self.killed) >= process_walk.SNAPSHOT):
            self.groups.kill()
        if self.namespace:  # the kernel kills all processes in it; searching for them as below would delay that
            signal.sigtimedwait({signal.SIGCHLD}, process_walk.CLEAR_SECONDS)
        cleared = process_walk.clear(self.killed, process_walk.CLEAR_SECONDS)
        while self.kill_requested and not cleared:
            cleared = process_walk.clear(self.killed, process_walk.CLEAR_SECONDS)
        if not self.limit and self.groups.starved():
            self.limit = frames.MEMORY
        self.groups.remove()
        return cleared

    def send_rest(self) -> None:
        """Send the output that the dead processes left in the pipe."""
        if self.unsent:
            self.send(self.unsent)
        left = LAST_OUTPUT
        while left > 0 and self.output_open:
            try:
                data = os.read(self.pipes.output, frames.CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            self.send(frames.OUTPUT + data)
            left -= len(data)

    def result(self, cleared: bool, ended: float) -> list[int]:
        """Return the numbers of the END frame, which reports the end of the call to the server (see toolhost.py)."""
        status = int(signal.SIGKILL) if self.status is None else self.status
        code = os.waitstatus_to_exitcode(status)
        milliseconds = int((ended - self.began) * 1000)
        flags = [int(self.kill_requested or self.limit > 0), self.limit, int(not cleared), milliseconds]
        return [max(code, -1), max(-code, 0), *flags, *sorted((self.killed or set()) - {self.init})]
