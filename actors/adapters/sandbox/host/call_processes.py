"""The processes of a call below its host (init and main), and code that all three processes share; see toolhost.py."""

import errno
import fcntl
import os
import sys
import time
from contextlib import suppress

from actors.adapters.sandbox.host import call_limits, confinement, kernel, process_walk, reported_calls, write_broker

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any, NoReturn
else:
    import _signal as signal
    import _socket as socket


class LeaseFile:
    """The time until which tools may run, read from a file that the server writes; no limit without a file (-1)."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.until = sys.maxsize if file < 0 else 0
        """The time that was last read, in nanoseconds of CLOCK_MONOTONIC."""

    def over(self) -> bool:
        """Whether tools must be ended; rereads the file if the time that was last read has passed."""
        if self.passed() and self.file >= 0:
            self.read()
        return self.passed()

    def passed(self) -> bool:
        return time.monotonic_ns() >= self.until

    def read(self) -> None:
        """Read the file until two results in a row are equal, because the server may be writing it. Raises OSError."""
        before = b""
        while (found := os.pread(self.file, 8, 0)) != before:
            before = found
        self.until = int.from_bytes(found, sys.byteorder)

    def check(self) -> None:
        if self.passed():
            raise OSError(errno.ETIME, "the lease has expired")

    def leave(self) -> None:
        """Read the time once more, and close the file, so that the program does not inherit it."""
        if self.file >= 0:
            self.read()
            os.close(self.file)


class Pipes:
    def __init__(self) -> None:
        self.output, self.output_end = os.pipe()
        self.status, self.status_end = os.pipe()
        self.report, self.report_end = os.pipe()
        # The host's first byte lets init continue; later bytes are signals for main. The pipe closes when the host
        # ends.
        self.life, self.life_end = os.pipe()


class HostedCall:
    """The state of one call in each of its three processes; each gets a copy from the process that forked it."""

    groups: call_limits.Groups

    def __init__(self, control: int, launch: "dict[str, Any]", lease: LeaseFile) -> None:
        self.control = control
        self.launch = launch
        self.lease = lease
        self.pipes = Pipes()
        self.namespace = False
        self.nice_value = 0
        """The nice value that init sets for the tree; 0 for no change."""


def become(call: HostedCall, host: int, channel: int) -> "NoReturn":
    """Turn this process into the program, or write "stage errno" to the report pipe and end.

    `channel` is the socket over which init gets the descriptor for reported system calls, or -1.
    """
    launch, namespace, pipes = call.launch, call.namespace, call.pipes
    report = pipes.report_end
    stage = "session"
    try:
        os.setsid()
        restore_signals()
        stage = "cwd"
        os.chdir(launch["cwd"])
        stage = "limits"
        call_limits.set_limits(launch["limits"], namespace, launch["mark"])
        stage = "files"
        report, channel = arrange_files(launch["streams"], pipes, channel)
        stage = "restrict"
        confinement.restrict(launch["restrict"], () if namespace else (os.getppid(), host), channel)
        stage = "lease"
        call.lease.check()
        stage = "exec"
        if launch["python"]:
            os.close(report)
            run_python(launch["argv"], launch["env"])
        execute(launch["argv"], launch["env"])
    except BaseException as error:  # noqa: BLE001 -- after any error the program has not started
        os.write(report, f"{stage} {getattr(error, 'errno', None) or 0}".encode())
    finally:
        os._exit(127)


def restore_signals() -> None:
    """Reset the signals that were blocked or ignored by this process, its parents, or whatever started the server."""
    for number in range(1, signal.NSIG):
        if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def arrange_files(streams: "tuple[int, ...]", pipes: "Pipes", channel: int) -> tuple[int, int]:
    """Keep only the standard streams, the error pipe and `channel` (-1 for none).

    Returns the new numbers of the error pipe and of `channel`. `streams` are the program's own stdin, or stdin and
    stdout; the defaults are /dev/null and the output pipe. /dev/null is opened again, because the host's descriptor for
    it belongs to a writable mount.
    """
    output, report = pipes.output_end, pipes.report_end
    if channel >= 0:
        channel = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, 5)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number, stream in enumerate(streams or (os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC),)):
        os.dup2(stream, number)
    if report != 3:
        os.dup2(report, 3, inheritable=False)
    if channel >= 0:
        os.dup2(channel, 4, inheritable=False)
    os.closerange(4 if channel < 0 else 5, os.sysconf("SC_OPEN_MAX"))
    return 3, min(channel, 4)


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    program, failure = argv[0], OSError(errno.ENOENT, "not found")
    folders = [b""] if b"/" in program else env.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    for folder in folders:
        try:
            os.execve(os.path.join(folder, program), argv, env)  # noqa: S606 -- no shell is wanted here
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                failure = error
    raise failure


def run_python(argv: "list[bytes]", env: "dict[bytes, bytes]") -> "NoReturn":
    """Run argv[0], which is Python source, like `python -I -S -c`, and end this process."""
    status = 1
    try:
        kernel.libc.prctl(kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in env.items()})
        sys.argv = ["-c", *map(os.fsdecode, argv[1:])]
        exec(compile(argv[0], "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})  # noqa: S102 -- this is the program to run
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 -- any error is shown, as by the interpreter
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        flush_output()
        os._exit(status & 0xFF)


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


def run_init(call: HostedCall) -> "NoReturn":
    """Run init: adopt orphans of the main process, and report the main process's wait status (4 bytes) to the host."""
    launch, namespace, pipes = call.launch, call.namespace, call.pipes
    try:
        kernel.libc.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL if namespace else signal.SIGTERM), 0, 0, 0)
        kernel.close(pipes.life_end, pipes.output, pipes.status, pipes.report)
        prefer_for_oom_kill(call.nice_value)
        if not namespace:
            kernel.libc.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        refusal = joined_or_why_not(call.groups) or confinement.arrange_mounts_or_why_not(launch, namespace)
        if os.read(pipes.life, 1):
            if refusal:
                os.write(pipes.report_end, refusal)
            else:
                call.lease.leave()
                begin(call)
        clear_for_host(call.control)
    finally:
        os._exit(0)


def joined_or_why_not(groups: call_limits.Groups) -> bytes:
    try:
        groups.join()
    except OSError as error:
        return f"group {error.errno or 0}".encode()
    return b""


def prefer_for_oom_kill(nice_value: int) -> None:
    """Make the OOM killer choose this process tree before the server; set the nice value unless it is 0."""
    with suppress(OSError):  # if /proc is not writable, the kernel kills the largest process
        kernel.write_file("/proc/self/oom_score_adj", "1000")
    if nice_value:
        os.nice(nice_value)


def begin(call: HostedCall) -> None:
    launch, pipes = call.launch, call.pipes
    try:
        broker = make_broker(launch)
        ours, theirs = (None, None) if broker is None else socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        os.write(pipes.report_end, f"restrict {error.errno}".encode())
        raise
    main = fork_main(call, -1 if theirs is None else theirs.fileno())
    kernel.close(pipes.output_end, pipes.report_end, *launch["streams"])
    if broker is None or ours is None or theirs is None:
        attend(main, pipes, None)
        return
    theirs.close()
    attend(main, pipes, service_of(broker, ours))


def make_broker(launch: "dict[str, Any]") -> "write_broker.Broker | None":
    restriction = launch["restrict"]
    if restriction is None or restriction["workspace"] is None:
        return None
    workspace = restriction["workspace"]
    if restriction["tier"] == "A":
        writable = workspace["place"], -1
    else:
        root, private = (
            os.open(path, reported_calls.DIRECTORY) for path in (workspace["root"], restriction["private"])
        )
        writable = root, private
    broker = write_broker.Broker(workspace, writable, int(launch["limits"]["file_bytes"]))
    broker.register(kernel.NUMBERS[os.uname().machine] | kernel.EVERYWHERE)
    return broker


def service_of(broker: "write_broker.Broker", channel: "socket.socket") -> "write_broker.Service | None":
    """The service that carries out the program's file changes. Drops all capabilities of this process.

    None if main failed before it became the program. If this raises OSError, the program is not executed.
    """
    received = kernel.received_files(channel.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)[1])
    if not received:
        return None
    confinement.drop_capabilities()
    service = write_broker.Service(broker, received[0], (signal.SIGCHLD, signal.SIGTERM))
    channel.send(b"g")
    channel.close()
    return service


def attend(main: int, pipes: Pipes, service: "write_broker.Service | None") -> None:
    """Reap children, and report how `main` ended, until the host has ended.

    In a PID namespace, the kernel kills this process when the host ends. If `main` ends and leaves no process behind,
    this process ends at once. Signals for `main` are sent here, because only the parent of `main` can be certain that
    the pid was not reused.
    """
    os.set_blocking(pipes.life, False)
    running = True
    while (numbers := wanted(pipes.life)) is not None:
        for number in numbers if running else b"":
            signal_group(main, number)
        if service is None:
            signal.sigwait({signal.SIGCHLD, signal.SIGTERM})
        else:
            service.wait()
        for pid, status in process_walk.reap():
            if pid == main:
                running = False
                os.write(pipes.status_end, status.to_bytes(4, "big"))
        if not running and process_walk.childless():
            os._exit(0)


def clear_for_host(control: int) -> None:
    """Kill the tree in place of the dead host, and report to the server if all processes end within the time limit."""
    killed: set[int] = set()
    if process_walk.clear(killed, process_walk.CLEAR_SECONDS):
        os.write(control, kernel.CLEARED + " ".join(map(str, killed)).encode())
        return
    os.close(control)
    while not process_walk.clear(killed, process_walk.CLEAR_SECONDS):
        pass


def fork_main(call: HostedCall, channel: int) -> int:
    host = os.getppid()
    try:
        main = os.fork()
    except OSError as error:
        os.write(call.pipes.report_end, f"fork {error.errno}".encode())
        raise
    if main == 0:
        kernel.libc.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        become(call, host, channel)
    return main


def wanted(life: int) -> bytes | None:
    """The signals to send to main, one byte each, read from the pipe `life`; None if the host has ended."""
    numbers = b""
    try:
        while more := os.read(life, kernel.CHUNK):
            numbers += more
    except BlockingIOError:
        return numbers
    return None


def signal_group(leader: int, number: int) -> None:
    with suppress(OSError):
        os.killpg(leader, number)
