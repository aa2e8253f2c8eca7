"""Run one program as a tool so that its whole process tree can always be stopped (REQ-BED-005).

Started by `spawn.py` as `python -I -S toolhost.py CONTROL`, single-threaded, in a session of its own, with an empty
environment. Self-contained and sparing with imports, because it starts once per tool call: `json`, `signal`, `socket`
and `typing` would each cost more than everything else it does before the program runs.

Theory of operation. Three processes, each the only child of the one before:

    host   this process. Talks to the server, pumps output, keeps the wall clock, kills.
    init   PID 1 of a new PID namespace where one can be had. Elsewhere a subreaper like the host.
    main   the program, in a session of its own. Its descendants may do what they like: init inherits them.

In a namespace the death of init is the death of everything, by the kernel. Without one, killing init makes the host
inherit all orphans, and `clear` kills and reaps until the kernel says that no child is left. Either way the host is
done only when waitpid answers ECHILD. Who dies, and what follows:

    told to kill, out of time    the host kills init and clears
    main ended                   its output is drained, then what it left behind is killed likewise
    the server                   the control socket ends or fails: the host clears
    init                         the status pipe ends: the host clears
    the host                     init is signalled: in a namespace it dies and takes all along, else it clears itself

The host must outlive its server to clean up, so it never asks to die with it. PR_SET_PDEATHSIG is used only between
these single-threaded processes, because it fires when the *thread* ends that forked. Main is forked only after the
server was sent INIT: a host that ends without it provably began nothing.

Control socket (AF_UNIX, SOCK_SEQPACKET, so a frame is whole or absent even if its writer is killed):

    server → host   the length of the launch in 4 bytes, then the launch (marshal of a dict: both ends are the same
                    interpreter) in packets; later KILL
    host → server   one byte of kind, then: INIT "pid namespace", STARTED, FAILED "stage errno", OUTPUT bytes,
                    END "exit signal killed wall leaked milliseconds pid…", CLEARED "pid…" (by init, host dead)

Launch: argv [bytes], cwd bytes, env {bytes: bytes}, stdin fd or -1, limits {name: number, 0 none}, mode str,
namespace bool, restrict None or dict. What `restrict` asks for is applied in main right before exec, or main does
not exec.
"""

# ruff: noqa: SIM105 -- contextlib is one more import at every tool call

import ctypes
import errno
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
    from typing import Any, NoReturn
else:
    import _signal as signal

KILL = b"K"
INIT, STARTED, FAILED, OUTPUT, END, CLEARED = b"I", b"S", b"X", b"O", b"E", b"C"

CHUNK = 1 << 16
#: Bytes read from the program at once; the largest frame is one more.

DRAIN_SECONDS = 0.2
#: How long output is awaited after main ended; a process left behind may hold the pipe for ever.

CLEAR_SECONDS = 3.0
#: How long what a call left behind may take to die before the host reports a leak (and goes on killing).

LAST_OUTPUT = 1 << 20
#: Bytes taken from the pipe after the tree is dead, at most.

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 1 << 18
LIMITS = {
    "cpu_seconds": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_DATA,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
}
RESERVED_PIDS = 300
#: The kernel never hands out the first pids again, so a namespace's pid_max counts from here.

libc = ctypes.CDLL(None, use_errno=True)


class ServerGone(Exception):
    """The control socket ended or failed: nobody is interested any more."""


class NotStarted(Exception):
    """The program did not begin; the server has been told why."""


# --- the process tree -------------------------------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    """The children of `pid`, of all its threads, zombies included; empty if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb", buffering=0) as file:
                found.extend(map(int, file.readall().split()))
    except OSError:
        pass  # ended while it was looked at; the caller looks again
    return found


def alive(pid: int) -> bool:
    """Whether `pid` exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(512).rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return False


def descendants(root: int, limit: int = 1 << 20) -> list[int]:
    """Living processes below `root`, parents first; the search stops when `limit` processes were seen."""
    seen = children(root)
    position = 0
    while position < len(seen) < limit:
        seen.extend(children(seen[position]))
        position += 1
    return [pid for pid in seen if alive(pid)]


def send_signal(pid: int, number: int) -> None:
    """Signal `pid`; nothing happens if it is gone."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def reap() -> "Iterator[tuple[int, int]]":
    """Every child that has ended, with its wait status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def childless() -> bool:
    """Whether the kernel knows no child of this process, running or ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def clear(killed: "set[int]", seconds: float) -> bool:
    """Kill and reap until no child is left; False if that took longer than `seconds`.

    Adds to `killed` what it kills. Children born meanwhile are found by the next pass, wherever they are: this
    process is their subreaper.
    """
    deadline = time.monotonic() + seconds
    while True:
        for pid in descendants(os.getpid()):
            killed.add(pid)
            send_signal(pid, signal.SIGKILL)
        for _ in reap():
            pass
        if childless():
            return True
        if time.monotonic() > deadline:
            return False
        signal.sigtimedwait({signal.SIGCHLD}, 0.005)


# --- namespaces -------------------------------------------------------------------------------------------------------


def kernel_at_least(*version: int) -> bool:
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit()) >= version


def enter_pid_namespace() -> bool:
    """Let the next child be PID 1 of a new namespace; False if the kernel refuses.

    Root needs no user namespace. Anybody else gets one in which only the own user and group exist, so programs that
    become another user do not work there.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        return bool(libc.unshare(CLONE_NEWPID) == 0)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        write_file(f"/proc/self/{name}", text)
    return True


def write_file(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def mount_proc() -> bool:
    """Give a new PID namespace its own /proc; False where that is not allowed: then the outer one stays visible.

    Only /proc becomes private, so other mounts behave for the program as they do outside.
    """
    return not (
        libc.unshare(CLONE_NEWNS)
        or libc.mount(b"none", b"/proc", None, MS_REC | MS_PRIVATE, None)
        or libc.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    )


def limit_pids(processes: int) -> None:
    """Bound the processes of this namespace, root's too, where the kernel keeps pid_max per namespace."""
    if processes and os.geteuid() == 0 and kernel_at_least(6, 14):
        try:
            write_file("/proc/sys/kernel/pid_max", str(RESERVED_PIDS + processes))
        except OSError:
            pass  # the tree can be killed all the same


# --- main: the program ------------------------------------------------------------------------------------------------


def become(launch: "dict[str, Any]", namespace: bool, output: int, report: int) -> "NoReturn":
    """Turn this process into the program; if that fails, write "stage errno" to `report` and end."""
    stage = "session"
    try:
        os.setsid()
        os.umask(0o077)
        restore_signals()
        stage = "cwd"
        os.chdir(launch["cwd"])
        stage = "limits"
        set_limits(launch["limits"], namespace)
        stage = "files"
        report = arrange_files(launch["stdin"], output, report)
        stage = "restrict"
        restrict(launch["restrict"])
        stage = "exec"
        execute(launch["argv"], launch["env"])
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the program has not begun
        os.write(report, f"{stage} {getattr(error, 'errno', None) or 0}".encode())
    finally:
        os._exit(127)


def restore_signals() -> None:
    """Undo what this process, its parents or whoever started the server block and ignore."""
    for number in range(1, signal.NSIG):
        if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def set_limits(limits: "dict[str, float]", namespace: bool) -> None:
    for name, number in LIMITS.items():
        if limits[name]:
            lower(number, int(limits[name]))
    processes = int(limits["processes"])
    if processes:
        counted_per_namespace = namespace and os.geteuid() != 0 and kernel_at_least(5, 14)
        lower(resource.RLIMIT_NPROC, processes if counted_per_namespace else processes + running_threads())


def lower(limit: int, value: int) -> None:
    """Set a limit, never above what the server itself has."""
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def running_threads() -> int:
    """Threads on the whole machine: RLIMIT_NPROC counts all of a user, wherever they were started."""
    with open("/proc/loadavg", "rb", buffering=0) as file:
        return int(file.read(128).split()[3].partition(b"/")[2])


def arrange_files(stdin: int, output: int, report: int) -> int:
    """Leave the program its three standard streams and nothing else; returns where `report` is now.

    Without `stdin` the host's own remains: /dev/null.
    """
    if stdin >= 0:
        os.dup2(stdin, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if report != 3:
        os.dup2(report, 3, inheritable=False)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    return 3


def restrict(section: "dict[str, Any] | None") -> None:
    """Apply a restriction to this process for good; OSError if it cannot be kept."""
    if section is not None:
        raise OSError(errno.ENOSYS, "no restriction can be applied")


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Exec argv[0], looked for on the program's own PATH; OSError if there is none."""
    program, failure = argv[0], OSError(errno.ENOENT, "not found")
    folders = [b""] if b"/" in program else env.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    for folder in folders:
        try:
            os.execve(os.path.join(folder, program), argv, env)  # noqa: S606 -- no shell is meant
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                failure = error
    raise failure


# --- init -------------------------------------------------------------------------------------------------------------


class Pipes:
    """What connects the three processes; all are closed on exec."""

    def __init__(self) -> None:
        self.output, self.output_end = os.pipe()
        self.status, self.status_end = os.pipe()
        self.report, self.report_end = os.pipe()
        self.life, self.life_end = os.pipe()
        #: Held by the host: one byte lets init go on, and its end is the host's.


def close(*files: int) -> None:
    for file in files:
        os.close(file)


def run_init(launch: "dict[str, Any]", namespace: bool, pipes: Pipes, control: int) -> "NoReturn":
    """Be the parent of all that main abandons; tell the host how main ended, in 4 bytes."""
    try:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL if namespace else signal.SIGTERM), 0, 0, 0)
        close(pipes.life_end, pipes.output, pipes.status, pipes.report)
        if not namespace:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        elif mount_proc():
            limit_pids(int(launch["limits"]["processes"]))
        if os.read(pipes.life, 1):
            attend(fork_main(launch, namespace, pipes), pipes)
        clear_for_host(control)
    finally:
        os._exit(0)


def attend(main: int, pipes: Pipes) -> None:
    """Reap, and tell how `main` ended, until the host is gone. In a namespace that is the end of this process too."""
    close(pipes.output_end, pipes.report_end)
    while not gone(pipes.life):
        signal.sigwait({signal.SIGCHLD, signal.SIGTERM})
        for pid, status in reap():
            if pid == main:
                os.write(pipes.status_end, status.to_bytes(4, "big"))


def clear_for_host(control: int) -> None:
    """Clear in the dead host's stead, and tell the server if that succeeds in the bound."""
    killed: set[int] = set()
    if clear(killed, CLEAR_SECONDS):
        os.write(control, CLEARED + " ".join(map(str, killed)).encode())
        return
    os.close(control)
    while not clear(killed, CLEAR_SECONDS):
        pass


def fork_main(launch: "dict[str, Any]", namespace: bool, pipes: Pipes) -> int:
    try:
        main = os.fork()
    except OSError as error:
        os.write(pipes.report_end, f"fork {error.errno}".encode())
        raise
    if main == 0:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        become(launch, namespace, pipes.output_end, pipes.report_end)
    return main


def gone(life: int) -> bool:
    """Whether the other end of this pipe is closed."""
    poll = select.poll()
    poll.register(life, select.POLLIN)
    return bool(poll.poll(0))


# --- host -------------------------------------------------------------------------------------------------------------


class Host:
    """One call: from the launch to the death of the last of its processes."""

    def __init__(self, control: int, launch: "dict[str, Any]") -> None:
        self.control = control
        self.launch = launch
        self.pipes = Pipes()
        self.poll = select.poll()
        self.init = 0
        self.namespace = False
        self.began = time.monotonic()
        self.wall = float(launch["limits"]["wall_seconds"])
        self.status: int | None = None
        self.drain_until = 0.0
        self.unsent = b""
        self.output_open = True
        self.begun = self.told = self.out_of_time = False
        self.killed: set[int] = set()

    def run(self) -> None:
        """Raises ServerGone or NotStarted; whatever happens, the tree is dead or reported as leaked."""
        try:
            self.begin()
            self.watch()
        finally:
            ended = time.monotonic()
            cleared = self.clear()
        self.send_rest()
        self.send(END + " ".join(map(str, self.result(cleared, ended))).encode())

    def begin(self) -> None:
        """Start init, tell the server of it, and let it start main."""
        pipes = self.pipes
        try:
            self.namespace = bool(self.launch["namespace"]) and enter_pid_namespace()
            self.init = os.fork()
        except OSError as error:
            self.fail(f"fork {error.errno}".encode())
        if self.init == 0:
            run_init(self.launch, self.namespace, pipes, self.control)
        close(pipes.life, pipes.output_end, pipes.status_end, pipes.report_end)
        os.set_blocking(pipes.output, False)
        os.set_blocking(self.control, False)
        self.send(INIT + f"{self.init} {int(self.namespace)}".encode())
        os.write(pipes.life_end, b"g")
        for source in (self.control, pipes.report, pipes.status, pipes.output):
            self.poll.register(source, select.POLLIN)

    def fail(self, why: bytes) -> "NoReturn":
        self.send(FAILED + why)
        raise NotStarted

    def watch(self) -> None:
        """Pump until the tree is to be killed: told to, out of time, or main ended and its output was drained."""
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
        if self.drain_until:
            return time.monotonic() >= self.drain_until or not (self.output_open or self.unsent)
        self.out_of_time = self.wall > 0 and time.monotonic() >= self.began + self.wall
        return self.out_of_time

    def patience(self) -> float | None:
        """Milliseconds until something is due."""
        due = self.drain_until or (self.began + self.wall if self.wall else 0)
        return max(0.0, due - time.monotonic()) * 1000 + 1 if due else None

    def hear(self) -> bool:
        """Take what the server says, and send it what it did not take before; True if it wants the kill."""
        try:
            self.told = os.read(self.control, CHUNK) == KILL
        except BlockingIOError:
            self.flush()
        except OSError as error:
            raise ServerGone from error
        else:
            if not self.told:
                raise ServerGone
        return self.told

    def read_report(self) -> None:
        """Learn whether main became the program: it said why not, or exec closed the pipe."""
        self.begun = True
        self.poll.unregister(self.pipes.report)
        why = os.read(self.pipes.report, CHUNK)
        if why:
            self.fail(why)
        self.send(STARTED)

    def read_status(self) -> bool:
        """Take how main ended; False if init is gone."""
        data = os.read(self.pipes.status, 4)
        if not data:
            return False
        self.status = int.from_bytes(data, "big")
        if not self.begun:
            self.read_report()
        self.drain_until = time.monotonic() + DRAIN_SECONDS
        return True

    def pump(self) -> None:
        data = os.read(self.pipes.output, CHUNK)
        self.poll.unregister(self.pipes.output)
        if data:
            self.unsent = OUTPUT + data
            self.flush()
        else:
            self.output_open = False

    def flush(self) -> None:
        """Send what waits, then read on; while the server does not take it, output is left in the program's pipe."""
        if not self.unsent:
            return
        try:
            os.write(self.control, self.unsent)
        except BlockingIOError:
            self.poll.modify(self.control, select.POLLIN | select.POLLOUT)
        except OSError as error:
            raise ServerGone from error
        else:
            self.unsent = b""
            self.poll.modify(self.control, select.POLLIN)
            self.poll.register(self.pipes.output, select.POLLIN)

    def send(self, frame: bytes) -> None:
        """Send a frame, however long the server takes to make room."""
        poll = select.poll()
        poll.register(self.control, select.POLLOUT)
        while True:
            poll.poll()
            try:
                os.write(self.control, frame)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ServerGone from error
            return

    def clear(self) -> bool:
        """Kill the tree and wait for its end; False if it is not over in the bound.

        After a kill the bound is the server's, which gives this process up.
        """
        if not self.init:
            return True
        self.killed.update(descendants(self.init))
        send_signal(self.init, signal.SIGKILL)
        cleared = clear(self.killed, CLEAR_SECONDS)
        while self.told and not cleared:
            cleared = clear(self.killed, CLEAR_SECONDS)
        self.killed.discard(self.init)
        return cleared

    def send_rest(self) -> None:
        """Send the output that the dead left in the pipe."""
        if self.unsent:
            self.send(self.unsent)
        left = LAST_OUTPUT
        while left > 0 and self.output_open:
            try:
                data = os.read(self.pipes.output, CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            self.send(OUTPUT + data)
            left -= len(data)

    def result(self, cleared: bool, ended: float) -> list[int]:
        status = int(signal.SIGKILL) if self.status is None else self.status
        code = os.waitstatus_to_exitcode(status)
        milliseconds = int((ended - self.began) * 1000)
        flags = [int(self.told or self.out_of_time), int(self.out_of_time), int(not cleared), milliseconds]
        return [max(code, -1), max(-code, 0), *flags, *sorted(self.killed)]


def read_launch(control: int) -> "dict[str, Any]":
    """Receive the launch; raises ServerGone."""
    try:
        length = int.from_bytes(os.read(control, 4), "big")
        data = b""
        while len(data) < length:
            packet = os.read(control, CHUNK)
            if not packet:
                raise ServerGone
            data += packet
    except OSError as error:
        raise ServerGone from error
    launch: dict[str, Any] = marshal.loads(data)  # noqa: S302 -- written by our parent
    return launch


def serve(control: int) -> "NoReturn":
    """Run the call that the server describes on `control`, and end."""
    os.set_inheritable(control, False)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD, signal.SIGTERM})
    try:
        Host(control, read_launch(control)).run()
    finally:
        while not clear(set(), CLEAR_SECONDS):
            pass
        os._exit(0)


def probe() -> None:
    """Say on stdout whether a PID namespace can be made here: 1 or 0."""
    made = enter_pid_namespace()
    child = os.fork()
    if child == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    _, status = os.waitpid(child, 0)
    os.write(1, b"1" if made and status == 0 else b"0")


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        probe()
    else:
        serve(int(sys.argv[1]))
