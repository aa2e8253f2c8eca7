"""Runs one program as a tool so that its whole process tree can always be stopped (REQ-BED-005).

`fork_server.py` starts this program as an interpreter with `-I -S`, single-threaded, in its own session, without the
server's environment: either as the fork server, which has all modules loaded and forks a process for each tool call, or
directly, for one call. The program consists of this module and those of `fork_server.MODULES`, which import nothing
else of this project and as little as possible: the processes of a call are copies of the fork server's process.

Processes. A call has three, each the only child of the previous one:

    host   forked by the fork server as a child of the server. Exchanges messages (frames) with the server,
           forwards output, enforces the time limit, and kills the other processes.
    init   PID 1 of a new PID namespace if one can be created; otherwise a subreaper like the host.
    main   the program, in its own session. Init inherits its descendants when they lose their parents.

In a namespace, the kernel kills all processes when init exits. Without one, killing init makes the host inherit all
orphans, and `clear` kills and reaps until the kernel reports that no child is left. Either way, the host is done only
when waitpid fails with ECHILD. These events end a call:

    the server sends KILL        the host kills init and clears
    a limit is exceeded          the host kills init and clears; the limits are time, processes, memory, and the lease
    main ends                    the host reads the rest of the output, then kills init and clears; init has already
                                 ended if main left no process behind
    the server ends              the control socket ends or fails: the host clears
    init ends                    the status pipe ends: the host clears
    the host ends                the kernel signals init: in a namespace it exits, and all others, too; else it clears
    the tool kills host, init    possible only without a namespace: the server finds the rest by mark or control group

Lease. A server that shares its store with other servers lets tools run only until a certain time, which it keeps moving
into the future while it may use the store. The time is in a file in memory: 8 bytes, nanoseconds of CLOCK_MONOTONIC.
The host reads the file before it begins, and again when the time that it read has come, so the server need not send
anything to hosts. Main compares the time once more before it execs. Init closes the file before main exists, so no tool
ever has it; only the server can write to it.

The host must outlive its server to clean up, so it does not set PR_SET_PDEATHSIG for itself. PR_SET_PDEATHSIG is used
only between these single-threaded processes, because it fires when the *thread* that forked ends. Main is forked only
after INIT was sent to the server: a host that ends before that has certainly started nothing.

Control socket (AF_UNIX, SOCK_SEQPACKET, so that a frame arrives whole or not at all, even if its writer is killed):

    server → host   the length of the launch in 4 bytes, then the launch (marshal of a dict: both ends are the same
                    interpreter) in packets; later KILL, or SIGNAL and a number for main's process group
    host → server   one byte of kind, then: HOST "pid", INIT "pid namespace grouped", STARTED, FAILED "stage errno",
                    OUTPUT bytes, END "exit signal killed limit leaked milliseconds pid…", CLEARED "pid…" (sent by init
                    after the host has died)

The fork server gets the control socket of each call, and the call's stdin and stdout if it has its own, through a
SEQPACKET socket. It never gets the launch and never runs a call, so its memory, which all later hosts copy, contains no
call's data. It ends when that socket ends. It sends FAILED "host errno" if it could not fork.

Launch: argv [bytes], python bool (argv[0] is source to run, not a program to exec), cwd bytes, env {bytes: bytes},
limits {name: number, 0 none}, namespace bool, mark number or 0, groups [(path bytes, controllers text, unified bool,
[(file text, content text)])], hide [path bytes], restrict None or {tier "A" or "B", abi number, private path bytes,
protected [path bytes], readable None or [path bytes], listable path bytes, workspace None or {root path bytes, names
[path bytes], denied [path bytes], private path bytes}}.

Limits. The host enforces the time limit. The kernel limits each single process (rlimits). The number of processes, and
their total memory, are limited by the kernel if the call has control groups (the number of processes also by a
namespace, or the user's own limit); otherwise the host counts (Census).

Restriction. All requested restrictions apply, or main does not exec (FAILED "restrict …", "hide …"). They are applied
by the call's own processes, so none remain after the call, and in this order, because each step needs rights that the
next one takes away:

    host   user and PID namespace; in tier A even for root, so that init's capabilities reach nothing outside
    init   mount namespace, own /proc, pid_max; tier A: also network, IPC, host name and cgroup namespaces, masks over
           hidden paths, every mount read-only, private tmpfs over the private directory and /dev/shm
    main   capabilities dropped permanently, no_new_privs, Landlock, seccomp, exec

There are two kinds of restriction: tier A uses namespaces and needs all these steps; tier B needs only those of main.
In tier A, masks hide directories; a protected file in a directory that others share gets no Landlock rule either, so
that a file that replaces it stays inaccessible. In tier B, nothing is masked, and no protected path has a rule. Mounts
belong to init's namespace and end with it; none propagate outwards.

In workspace mode, init is also the broker, which carries out main's changes beneath the workspace (see
write_broker.py), and drops its capabilities. In tier A it has the only descriptor through which the workspace can be
changed: a copy of the workspace's mounts that has no path.
"""

import errno
import gc
import marshal
import os
import select
import sys
import time
from contextlib import suppress

from actors.adapters.sandbox.host import call_limits, call_processes, confinement, kernel, process_walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any, NoReturn
else:
    import _signal as signal
    import _socket as socket

# Seconds to wait for further output after the main process has ended, because another process may keep the pipe open.
DRAIN_SECONDS = 0.2

LAST_OUTPUT = 1 << 20


class ServerGoneError(Exception):
    """The control socket ended or failed: the server no longer needs this call."""


class NotStartedError(Exception):
    pass


class Host(call_processes.HostedCall):
    """The host process's part in one call, from the launch to the exit of the call's last process."""

    def __init__(self, control: int, launch: "dict[str, Any]", lease: call_processes.LeaseFile) -> None:
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
        """Run the call until its last process has exited, and report its end.

        Raises ServerGoneError or NotStartedError after killing the tree and waiting a few seconds for its end.
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
        self.send_buffered()
        self.send(kernel.END + " ".join(map(str, self.result(cleared, ended))).encode())

    def begin(self) -> None:
        if self.lease.over():
            self.fail(b"lease %d" % errno.ETIME)
        pipes = self.pipes
        restricted = self.launch["restrict"] is not None
        self.groups = call_limits.Groups(self.launch["groups"])
        try:
            self.namespace = bool(self.launch["namespace"]) and confinement.enter_pid_namespace(restricted)
            self.census = call_limits.Census(self.launch["limits"], self.namespace, self.groups)
            if self.census.processes and os.geteuid() == 0:  # RLIMIT_NPROC does not limit root
                self.nice_value = call_limits.step_ahead()
            self.init = self.groups.fork()
        except OSError as error:
            self.fail(f"fork {error.errno}".encode())
        if self.init == 0:
            call_processes.run_init(self)
        kernel.close(pipes.life, pipes.output_end, pipes.status_end, pipes.report_end, *self.launch["streams"])
        os.set_blocking(pipes.output, False)
        os.set_blocking(self.control, False)
        self.send(kernel.INIT + f"{self.init} {int(self.namespace)} {int(bool(self.groups.held))}".encode())
        os.write(pipes.life_end, b"g")
        os.set_blocking(pipes.life_end, False)
        for source in (self.control, pipes.report, pipes.status, pipes.output):
            self.poll.register(source, select.POLLIN)

    def fail(self, why: bytes) -> "NoReturn":
        self.send(kernel.FAILED + why)
        raise NotStartedError

    def watch(self) -> None:
        """Forward output until KILL, an exceeded limit, the end of init, or the end of main and of its output."""
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
        """Whether the process tree must be killed now. Sets `self.limit` (see kernel.py) if a limit is the reason."""
        if self.drain_until:
            drained = time.monotonic() >= self.drain_until or not (self.output_open or self.unsent)
            return drained or self.lease.over()
        if self.lease.over():
            self.limit = kernel.LEASE
        elif self.wall > 0 and time.monotonic() >= self.began + self.wall:
            self.limit = kernel.WALL
        else:
            self.limit = self.census.exceeded(self.init)
        return self.limit > 0

    def patience(self) -> float | None:
        """The milliseconds until limits must be checked again; None if no limit has to be checked."""
        now = time.monotonic()
        dues = [self.drain_until] if self.drain_until else [self.began + self.wall] if self.wall else []
        if (asked := self.census.due()) is not None:
            dues.append(asked)
        if self.lease.file >= 0:
            dues.append(self.lease.until / 1e9)
        return max(0.0, min(dues) - now) * 1000 + 1 if dues else None

    def hear(self) -> bool:
        """Handle a frame from the server or send pending output; return whether it was KILL. Raises ServerGoneError."""
        try:
            frame = os.read(self.control, kernel.CHUNK)
        except BlockingIOError:
            self.flush()
        except OSError as error:
            raise ServerGoneError from error
        else:
            self.kill_requested = frame == kernel.KILL
            if frame[:1] == kernel.SIGNAL:
                self.pass_on(frame[1:])
            elif not self.kill_requested:
                raise ServerGoneError
        return self.kill_requested

    def pass_on(self, number: bytes) -> None:
        """Let init send signal `number` to the main process's group; no effect if init has ended or is not reading."""
        try:
            os.write(self.pipes.life_end, number)
        except OSError:
            return
        process_walk.send_signal(self.init, signal.SIGTERM)

    def read_report(self) -> None:
        """Tell the server whether main became the program: exec closes the report pipe.

        Raises NotStartedError if the pipe contains an error.
        """
        self.begun = True
        self.poll.unregister(self.pipes.report)
        why = os.read(self.pipes.report, kernel.CHUNK)
        if why:
            self.fail(why)
        self.send(kernel.STARTED)

    def read_status(self) -> bool:
        """Read main's wait status; False if init has ended without reporting it."""
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
        data = os.read(self.pipes.output, kernel.CHUNK)
        self.poll.unregister(self.pipes.output)
        if data:
            self.unsent = kernel.OUTPUT + data
            self.flush()
        else:
            self.output_open = False

    def flush(self) -> None:
        """Send the pending output. Until the server accepts it, further output stays in the program's pipe."""
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
        """Kill the process tree and wait for its end; False if it does not end within the time limit.

        After KILL, there is no time limit here: when the server's own limit has passed, the server kills this process.
        """
        if not self.init:
            return True
        if self.killed is not None:
            self.killed.update(process_walk.snapshot(self.init))
        process_walk.send_signal(self.init, signal.SIGKILL)
        if not self.namespace and (self.killed is None or len(self.killed) >= process_walk.SNAPSHOT):
            self.groups.kill()
        if self.namespace:  # the kernel kills all its processes; a search would only delay that
            signal.sigtimedwait({signal.SIGCHLD}, process_walk.CLEAR_SECONDS)
        cleared = process_walk.clear(self.killed, process_walk.CLEAR_SECONDS)
        while self.kill_requested and not cleared:
            cleared = process_walk.clear(self.killed, process_walk.CLEAR_SECONDS)
        if not self.limit and self.groups.starved():
            self.limit = kernel.MEMORY
        self.groups.remove()
        return cleared

    def send_buffered(self) -> None:
        if self.unsent:
            self.send(self.unsent)
        left = LAST_OUTPUT
        while left > 0 and self.output_open:
            try:
                data = os.read(self.pipes.output, kernel.CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            self.send(kernel.OUTPUT + data)
            left -= len(data)

    def result(self, cleared: bool, ended: float) -> list[int]:
        """The numbers in the END frame, which reports the end of the call to the server (see the module docstring)."""
        status = int(signal.SIGKILL) if self.status is None else self.status
        code = os.waitstatus_to_exitcode(status)
        milliseconds = int((ended - self.began) * 1000)
        flags = [int(self.kill_requested or self.limit > 0), self.limit, int(not cleared), milliseconds]
        return [max(code, -1), max(-code, 0), *flags, *sorted((self.killed or set()) - {self.init})]


# Standard library modules that the server's own Python programs import. The fork server imports these modules when it
# starts the first of those programs.
PRELOADED = (
    "__future__", "array", "base64", "bisect", "contextlib", "dataclasses", "difflib", "json", "pathlib", "re",
    "subprocess", "typing", "unicodedata",
)  # fmt: skip


def read_launch(control: int) -> "dict[str, Any]":
    try:
        length = int.from_bytes(os.read(control, 4), "big")
        data = b""
        while len(data) < length:
            packet = os.read(control, kernel.CHUNK)
            if not packet:
                raise ServerGoneError
            data += packet
    except OSError as error:
        raise ServerGoneError from error
    launch: dict[str, Any] = marshal.loads(data)  # noqa: S302 -- written by the server
    return launch


def serve(control: int, *streams: int, lease: int = -1) -> "NoReturn":
    """Run the call that the server describes on `control`, and end this process.

    `streams` are for the program's stdin, or for its stdin and stdout. `lease` is a descriptor of the file with the
    time until which the call may run, or -1.
    """
    os.set_inheritable(control, False)
    kernel.libc.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD, signal.SIGTERM})
    try:
        Host(control, {**read_launch(control), "streams": streams}, call_processes.LeaseFile(lease)).run()
    finally:
        while not process_walk.clear(None, process_walk.CLEAR_SECONDS):
            pass
        os._exit(0)


def serve_forks(channel: int, lease: int = -1) -> "NoReturn":
    """Fork a host for each packet on `channel`, until the server ends.

    A packet passes the host's control socket and the program's streams; its content is kernel.PROGRAM, or kernel.PYTHON
    for source that the host runs itself. The user's other processes must not be able to change this process, because
    all later hosts are copies of it.
    """
    kernel.libc.prctl(kernel.PR_SET_DUMPABLE, 0, 0, 0, 0)
    gc.freeze()
    requests = socket.socket(fileno=channel)
    while (request := next_request(requests)) is not None:
        wanted, files = request
        if wanted == kernel.PYTHON:
            preload()
        fork_host(channel, lease, *files)
        kernel.close(*files)
    os._exit(0)


def next_request(requests: "socket.socket") -> "tuple[bytes, list[int]] | None":
    """The kind of the next host (PYTHON or PROGRAM), and descriptors for it; None if the server has ended."""
    try:
        wanted, ancillary, _, _ = requests.recvmsg(1, socket.CMSG_SPACE(12), socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    files = kernel.received_files(ancillary)
    return (wanted, files) if files else None


def preload() -> None:
    for name in PRELOADED:
        __import__(name)
    gc.freeze()


def fork_host(channel: int, lease: int, control: int, *streams: int) -> None:
    """Fork a tool host whose parent is the server. A failure is reported to the server.

    The host stays in the fork server's process group until it has sent its pid, so that the server can still reap it if
    it ends before that.
    """
    own = os.getpid()
    try:
        pid = fork_sibling()
    except OSError as error:
        send_failure(control, error.errno or 0)
        return
    if pid == 0:
        try:
            os.close(channel)
            if os.getppid() == own:
                send_failure(control, errno.ENOSYS)
                return
            os.write(control, kernel.HOST + str(os.getpid()).encode())
            os.setsid()
            kernel.libc.prctl(kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)
            serve(control, *streams, lease=lease)
        finally:
            os._exit(1)


def fork_sibling() -> int:
    """Fork a process with the same parent as this one. Raises OSError."""
    number = kernel.NUMBERS.get(os.uname().machine, {}).get("clone")
    if number is None:
        raise OSError(errno.ENOSYS, "no number of this system call is known here")
    return kernel.checked(kernel.forking_libc.syscall(number, kernel.CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))


def send_failure(control: int, error: int) -> None:
    with suppress(OSError):
        os.write(control, kernel.FAILED + b"host %d" % error)


def probe() -> None:
    made = confinement.enter_pid_namespace()
    child = os.fork()
    if child == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    _, status = os.waitpid(child, 0)
    os.write(1, b"1" if made and status == 0 else b"0")


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        probe()
    else:
        lease, *files = map(int, sys.argv[2:])
        if lease >= 0:
            os.set_inheritable(lease, False)
        if sys.argv[1] == "forks":
            serve_forks(files[0], lease)
        serve(*files, lease=lease)
