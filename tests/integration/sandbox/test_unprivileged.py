"""The tool host of a server that is not root: a user namespace, and the protocol spoken by hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.adapters.sandbox import fork_server

ROOT = Path(__file__).parents[3]

BY_HAND = """
import ctypes, marshal, os, socket, sys
from actors.adapters.sandbox import toolhost
from actors.adapters.sandbox.host import confinement, kernel

def become_nobody():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as after an exec

def possible():
    pid = os.fork()
    if pid == 0:
        become_nobody()
        try:
            made = confinement.enter_pid_namespace()
        except OSError:
            made = False
        os._exit(0 if made else 1)
    return os.waitpid(pid, 0)[1] == 0

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
host = os.fork()
if host == 0:
    ours.close()
    os.setsid()
    become_nobody()
    toolhost.serve(theirs.fileno())
theirs.close()
description = marshal.dumps({
    "argv": [b"bash", b"-c", sys.argv[1].encode()], "cwd": b"/", "env": {b"PATH": os.environb[b"PATH"]},
    "python": False, "namespace": True, "mark": 0, "groups": [], "hide": [], "restrict": None,
    "limits": {"wall_seconds": 0, "cpu_seconds": 0, "memory_bytes": 0, "file_bytes": 0, "open_files": 0,
               "processes": 40},
})
ours.send(len(description).to_bytes(4, "big"))
ours.send(description)
output = b""
while frame := ours.recv(kernel.CHUNK + 1):
    if frame[:1] == kernel.INIT:
        print("namespace", frame[1:].split()[1].decode(), int(possible()))
    elif frame[:1] == kernel.OUTPUT:
        output += frame[1:]
        if b"fork" in output:
            ours.send(kernel.KILL)
    elif frame[:1] == kernel.END:
        print("end", frame[1:].decode())
os.waitpid(host, 0)
sys.stdout.write(output.decode())
"""


def by_hand(command: str) -> list[str]:
    """Run `command` in a tool host as nobody; its namespace, its end, its output."""
    done = subprocess.run(
        [sys.executable, "-c", BY_HAND, command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def test_a_tool_of_nobody_runs_as_nobody_and_leaves_nothing() -> None:
    namespace, end, *output = by_hand("id -u; sleep 1000 >/dev/null 2>&1 & setsid sleep 1000 >/dev/null 2>&1 & exit 4")
    made, possible = namespace.split()[1:]
    assert made == possible, "a namespace is used exactly where one can be had"
    code, number, killed, wall, leaked, _, *pids = map(int, end.split()[1:])
    assert (code, number, killed, wall, leaked, len(pids)) == (4, 0, 0, 0, 0, 2)
    assert output == [str(os.geteuid() or 65534)]


def test_a_fork_bomb_of_nobody_is_bounded() -> None:
    namespace, end, *output = by_hand("for i in {1..2000}; do sleep 1000 & done")
    assert any("fork" in line for line in output)
    assert int(end.split()[3]) == 1, "it was killed"
    if namespace.split()[1] == "1":
        assert len(end.split()[7:]) <= 40


def test_a_host_that_may_not_fork_says_that_nothing_began() -> None:
    script = BY_HAND.replace(
        "    toolhost.serve",
        "    import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\n    toolhost.serve",
    ).replace(
        "if frame[:1] == kernel.INIT:", "if frame[:1] == kernel.FAILED: print(frame)\n    elif frame[:1] in b'I':"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "echo begun"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "b'Xfork 11'\n"


def test_the_probe_prints_one_digit() -> None:
    command, program = fork_server.command("probe"), fork_server.program()
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, pass_fds=[program])
    assert done.stdout in {b"0", b"1"}


@pytest.mark.parametrize("ending", ["closed before the launch", "closed in the middle of the launch"])
def test_a_tool_host_whose_server_exits_early_ends(ending: str) -> None:
    script = BY_HAND.partition("ours.send(description)")[0]
    if ending == "closed before the launch":
        script = script.partition("description = ")[0]
    script += "\nours.close()\nprint(os.waitpid(host, 0)[1])"
    done = subprocess.run(
        [sys.executable, "-c", script, "true"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"


FORK_SERVER_BY_HAND = (
    BY_HAND.partition("ours, theirs =")[0]
    + """
def owner(pid):
    return os.stat(f"/proc/{pid}/environ").st_uid

channel, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server = os.fork()
if server == 0:
    channel.close()
    become_nobody()
    toolhost.serve_forks(other_end.fileno())
other_end.close()
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
socket.send_fds(channel, [kernel.PROGRAM], [theirs.fileno()])
theirs.close()
host = int(ours.recv(100)[1:])
while os.getsid(host) != host or owner(host) == 0:
    pass
print(owner(server), owner(host))
ours.close()
os.waitpid(host, 0)
channel.close()
os.waitpid(server, 0)
"""
)


def test_others_of_the_same_user_cannot_look_into_the_fork_server_and_its_hosts_are_like_any_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_SERVER_BY_HAND], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    user = os.geteuid() or 65534
    assert done.stdout.split() == ["0", str(user)], "the kernel gives what cannot be inspected to root"
