"""The main process of a call, which becomes the tool's program."""

# ruff: noqa: SIM105 -- contextlib.suppress would need one more import for every tool call

import errno
import fcntl
import os
import sys

from actors.adapters.sandbox.host import call_limits, confinement, kernel, one_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal


def become(call: one_call.HostedCall, host: int, channel: int) -> "NoReturn":
    """Turn this process into the program; if that fails, write "stage errno" to the report pipe and end.

    `host` is the host's pid. `channel` is the socket over which init gets the descriptor that reports the program's
    system calls, or -1.
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
    """Reset the signals that are blocked or ignored by this process, its parents, or whatever started the server."""
    for number in range(1, signal.NSIG):
        if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def arrange_files(streams: "tuple[int, ...]", pipes: "one_call.Pipes", channel: int) -> tuple[int, int]:
    """Keep only the three standard streams, the pipe for errors and `channel`; return the new numbers of the last two.

    `streams` are the program's own stdin, or stdin and stdout; the defaults are /dev/null and the pipe for output.
    /dev/null is opened again, because the host's descriptor for it belongs to a writable mount. A `channel` of -1 means
    none.
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
    """Exec argv[0], searched on the PATH in `env`. Raises OSError if no such program can be executed."""
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
    """Flush the standard streams, as the interpreter does at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
