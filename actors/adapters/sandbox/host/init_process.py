"""The init process of a call: it adopts orphaned processes, and in workspace mode makes the program's file changes."""

# ruff: noqa: SIM105 -- contextlib.suppress would need one more import for every tool call

import os

from actors.adapters.sandbox.broker import reported_calls, write_broker
from actors.adapters.sandbox.host import (
    call_limits,
    confinement,
    frames,
    kernel,
    main_process,
    namespaces,
    one_call,
    process_walk,
    system_calls,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any, NoReturn
else:
    import _signal as signal
    import _socket as socket


def run_init(call: one_call.HostedCall) -> "NoReturn":
    """Run init: adopt the main process's orphans, and report the main process's wait status to the host, in 4 bytes."""
    launch, namespace, pipes = call.launch, call.namespace, call.pipes
    try:
        kernel.libc.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL if namespace else signal.SIGTERM), 0, 0, 0)
        kernel.close(pipes.life_end, pipes.output, pipes.status, pipes.report)
        be_first_to_go(call.behind)
        if not namespace:
            kernel.libc.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        refusal = joined_or_why_not(call.groups) or namespaces.arrange_mounts_or_why_not(launch, namespace)
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
    """Join the control groups; return b"" or, if that failed, the error for the server: b"group" and the errno."""
    try:
        groups.join()
    except OSError as error:
        return f"group {error.errno or 0}".encode()
    return b""


def be_first_to_go(behind: int) -> None:
    """Make the OOM killer choose this process tree before the server; set the nice value `behind` unless it is 0."""
    try:
        kernel.write_file("/proc/self/oom_score_adj", "1000")
    except OSError:
        pass  # /proc is not writable: the kernel then kills the largest process
    if behind:
        os.nice(behind)


def begin(call: one_call.HostedCall) -> None:
    """Start the main process, and reap processes until the host has ended. Raises OSError if it was not started."""
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
    """Return the broker, which makes the file changes of a call with a workspace; else None. Raises OSError."""
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
    broker.register(system_calls.NUMBERS[os.uname().machine] | system_calls.EVERYWHERE)
    return broker


def service_of(broker: "write_broker.Broker", channel: "socket.socket") -> "write_broker.Service | None":
    """Return the service that makes the program's file changes, and drop all capabilities.

    Returns None if the main process failed before it became the program. Raises OSError; then the program is not
    executed.
    """
    received = kernel.received_files(channel.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)[1])
    if not received:
        return None
    confinement.drop_capabilities()
    service = write_broker.Service(broker, received[0], (signal.SIGCHLD, signal.SIGTERM))
    channel.send(b"g")
    channel.close()
    return service


def attend(main: int, pipes: one_call.Pipes, service: "write_broker.Service | None") -> None:
    """Reap children, and report how `main` ended, until the host has ended.

    In a PID namespace the kernel kills this process together with the host. If `main` has ended and left no process
    behind, this process ends at once. Signals for `main` are sent here and not by the host, because only the parent of
    `main` can be certain that the pid was not reused.
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
    """Kill the tree in place of the dead host, and report to the server if all processes end in time."""
    killed: set[int] = set()
    if process_walk.clear(killed, process_walk.CLEAR_SECONDS):
        os.write(control, frames.CLEARED + " ".join(map(str, killed)).encode())
        return
    os.close(control)
    while not process_walk.clear(killed, process_walk.CLEAR_SECONDS):
        pass


def fork_main(call: one_call.HostedCall, channel: int) -> int:
    """Fork the process that becomes the program; return its pid. Raises OSError."""
    host = os.getppid()
    try:
        main = os.fork()
    except OSError as error:
        os.write(call.pipes.report_end, f"fork {error.errno}".encode())
        raise
    if main == 0:
        kernel.libc.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        main_process.become(call, host, channel)
    return main


def wanted(life: int) -> bytes | None:
    """Read, from the pipe `life`, the numbers of signals to send to main, one byte each; None if the host has ended."""
    numbers = b""
    try:
        while more := os.read(life, frames.CHUNK):
            numbers += more
    except BlockingIOError:
        return numbers
    return None


def signal_group(leader: int, number: int) -> None:
    """Signal a process group; no effect if it has ended or the number is invalid."""
    try:
        os.killpg(leader, number)
    except OSError:
        pass
