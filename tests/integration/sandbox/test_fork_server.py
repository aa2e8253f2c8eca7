"""The process that tool hosts are forked from: nothing of a call is in it, and no call depends on its life."""

import os
import signal
import subprocess
import threading
import uuid
from pathlib import Path

import pytest

from actors.adapters.sandbox import fork_server, process_tree
from actors.adapters.sandbox.host import process_walk
from actors.adapters.sandbox.process_tree import ProcessTree
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.ports import Launch, ProcessEnd, ProcessStartError
from tests.support import processes
from tests.support.footprint import assert_nothing_left, footprint
from tests.support.patience import eventually
from tests.support.toolhost_source import toolhost_source
from tests.support.trees import host_of_this_process, hosts_of_this_process, launch


def run(sandbox: ToolHostSandbox, command: str, **changes: object) -> ProcessEnd:
    return sandbox.start(launch(command, **changes), lambda data: None).wait()  # type: ignore[arg-type]


def server_of(sandbox: ToolHostSandbox) -> int:
    """The fork server's process id; there has been a call."""
    process = sandbox._fork_server._process
    assert process is not None
    return process.pid


def waiting(sandbox: ToolHostSandbox) -> tuple[ProcessTree, threading.Event]:
    """A call that lasts, and an event that says when it runs."""
    runs = threading.Event()
    return sandbox.start(launch("echo up; sleep 1000"), lambda data: runs.set()), runs


def sockets(pid: int) -> set[str]:
    """The sockets that a process has open."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return {link for link in found if link.startswith("socket:")}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The programs that this process starts from now on."""
    programs: list[tuple[object, ...]] = []
    start = subprocess.Popen.__init__

    def record(process: subprocess.Popen[bytes], *arguments: object, **options: object) -> None:
        programs.append(arguments)
        start(process, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess.Popen, "__init__", record)
    return programs


def variant(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Let tool hosts run a program that differs from the real one in this place."""
    sources = toolhost_source()
    assert sum(source.count(old) for _, source in sources) == 1
    program = fork_server.sealed(
        [(name, compile(source.replace(old, new), name, "exec", dont_inherit=True)) for name, source in sources]
    )
    monkeypatch.setattr(fork_server, "program", lambda: program)


def test_calls_start_no_interpreter_once_there_was_one(
    sandbox: ToolHostSandbox, started: list[tuple[object, ...]]
) -> None:
    run(sandbox, "true")
    server, before = server_of(sandbox), footprint()
    assert len(started) == 1
    for number in range(30):
        assert run(sandbox, f"exit {number}").exit_code == number
    assert len(started) == 1
    assert server_of(sandbox) == server
    assert_nothing_left(before)


def test_a_closed_sandbox_has_no_fork_server(sandbox: ToolHostSandbox) -> None:
    before = footprint()
    run(sandbox, "true")
    server = server_of(sandbox)
    sandbox.close()
    assert not processes.alive(server)
    assert_nothing_left(before)


def test_a_killed_fork_server_harms_no_running_call_and_is_replaced(
    sandbox: ToolHostSandbox, started: list[tuple[object, ...]]
) -> None:
    run(sandbox, "true")
    before = footprint()
    tree = sandbox.start(launch("cat", stdin=b"x" * 100_000), lambda data: None)
    killed = sandbox.start(launch("sleep 1000"), lambda data: None)
    os.kill(server_of(sandbox), signal.SIGKILL)
    assert run(sandbox, "echo again").head == b"again\n"
    killed.kill()
    assert (killed.wait().killed, killed.wait().leaked) == (True, False)
    assert (tree.wait().exit_code, len(tree.wait().head)) == (0, 100_000)
    assert len(started) == 2
    assert_nothing_left(before)


def test_calls_that_start_while_fork_servers_are_killed_run_or_say_that_they_did_not(
    sandbox: ToolHostSandbox, tmp_path: Path
) -> None:
    run(sandbox, "true")
    before = footprint()
    ran, refused = [], []

    def work(name: str) -> None:
        for number in range(10):
            try:
                run(sandbox, f"echo >> {tmp_path}/{name}-{number}")
                ran.append(f"{name}-{number}")
            except ProcessStartError:
                refused.append(f"{name}-{number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if (process := sandbox._fork_server._process) is not None:
            process.kill()
        threads[0].join(0.05)
    assert len(ran) + len(refused) == 30
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(ran, "\n")
    run(sandbox, "true")
    assert_nothing_left(before)


def test_a_fork_server_that_hangs_is_replaced(sandbox: ToolHostSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    run(sandbox, "true")
    before, server = footprint(), server_of(sandbox)
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(process_tree, "BEGIN_SECONDS", 0.3)
    monkeypatch.setattr(process_tree, "REPORT_SECONDS", 0.3)
    replace = sandbox._fork_server.replace

    def patient_again(number: int) -> None:
        monkeypatch.undo()
        replace(number)

    monkeypatch.setattr(sandbox._fork_server, "replace", patient_again)
    assert run(sandbox, "echo again").head == b"again\n"
    assert server_of(sandbox) != server
    assert not processes.alive(server)
    assert_nothing_left(before)


def test_a_fork_server_without_room_for_another_process_is_reported(
    sandbox: ToolHostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant(monkeypatch, "        pid = fork_sibling()\n", "        raise OSError(errno.EAGAIN, '')\n")
    before = footprint()
    with pytest.raises(ProcessStartError, match="Resource temporarily unavailable"):
        run(sandbox, "true")
    assert sandbox.live == 0
    sandbox.close()
    assert_nothing_left(before)


@pytest.mark.parametrize(
    ("flags", "kernel"), [(0x800, "refuses to fork for the parent"), (0, "takes no notice of the parent")]
)
def test_where_no_child_can_be_forked_for_the_parent_each_host_is_started(
    sandbox: ToolHostSandbox,
    monkeypatch: pytest.MonkeyPatch,
    started: list[tuple[object, ...]],
    flags: int,
    kernel: str,
) -> None:
    variant(monkeypatch, "CLONE_PARENT = 0x00008000\n", f"CLONE_PARENT = {flags}\n")
    before = footprint()
    assert run(sandbox, "cat", stdin=b"x").head == b"x"
    tree = sandbox.start(launch("setsid sleep 1000 & sleep 1000"), lambda data: None)
    tree.kill()
    assert (tree.wait().killed, tree.wait().leaked) == (True, False)
    assert len(started) == 3, "the fork server, then a host for each call"
    assert_nothing_left(before)


def test_the_fork_server_holds_nothing_of_the_server_or_of_a_call(
    sandbox: ToolHostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = uuid.uuid4().hex
    monkeypatch.setenv("ANTHROPIC_API_KEY", f"key-{secret}")
    env = {"PATH": os.environ["PATH"], "MARK": f"environment-{secret}"}
    asked = Launch(argv=("cat", f"argument-{secret}"), cwd="/", env=env, mode=launch("").mode, stdin=secret.encode())
    sandbox.start(asked, lambda data: None).wait()
    server = server_of(sandbox)
    assert secret.encode() not in memory(server)
    names = {line.partition(b"=")[0] for line in Path(f"/proc/{server}/environ").read_bytes().split(b"\0") if line}
    assert names <= {b"LD_BIND_NOW", b"LD_LIBRARY_PATH"}
    links = [os.readlink(f"/proc/{server}/fd/{name}") for name in os.listdir(f"/proc/{server}/fd")]
    assert len(links) == 5
    assert len(sockets(server)) == 1, "the channel to the server"
    assert {link for link in links if not link.startswith("socket:")} == {
        "/dev/null",
        "/memfd:bedrock-toolhost (deleted)",
    }


def memory(pid: int) -> bytes:
    """What is in a process's memory."""
    found = b""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as content:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            if line.split()[1].startswith("rw"):
                content.seek(start)
                found += content.read(end - start)
    return found


def test_a_host_has_no_file_of_another_call_or_of_the_fork_server(sandbox: ToolHostSandbox) -> None:
    trees = [waiting(sandbox) for _ in range(3)]
    assert all(runs.wait(60) for _, runs in trees)
    everyone = hosts_of_this_process()
    assert len(everyone) == 3
    held = [sockets(pid) for pid in (*everyone, server_of(sandbox))]
    assert [len(each) for each in held] == [1, 1, 1, 1]
    assert len(set().union(*held)) == 4
    for tree, _ in trees:
        tree.kill()
        tree.wait()


def test_every_call_finds_the_same_whatever_earlier_ones_did_to_themselves(sandbox: ToolHostSandbox) -> None:
    look = (
        "umask; pwd; ulimit -a | grep -v -e '-R)' -e '-u)'; cat /proc/self/oom_score_adj; nice;"
        " grep -E 'Sig(Blk|Ign|Cgt)|Cpus_allowed:' /proc/self/status; ls /proc/self/fd;"
        " env | sort | grep -v BEDROCK_CALL"
    )
    first = run(sandbox, look).head
    spoil = (
        "umask 777; cd /tmp; ulimit -n 20; ulimit -c 0; trap '' TERM HUP; exec 9</dev/null; export SPOILT=1;"
        " renice 19 $$ $PPID >/dev/null; taskset -p 1 $$ >/dev/null; taskset -p 1 $PPID > /dev/null; echo spoilt"
    )
    assert run(sandbox, spoil).head.endswith(b"spoilt\n")
    assert run(sandbox, look).head == first


def test_the_processes_of_a_host_that_was_forked_are_the_server_s_to_reap(sandbox: ToolHostSandbox) -> None:
    tree, runs = waiting(sandbox)
    assert runs.wait(60)
    server = server_of(sandbox)
    host = host_of_this_process()
    assert process_walk.children(server) == []
    assert os.getsid(host) == host != os.getsid(server)
    os.kill(host, signal.SIGKILL)
    assert tree.wait().signal == signal.SIGKILL
    eventually(lambda: host not in process_walk.children(os.getpid()), "reaping of the host")


def test_a_call_that_is_killed_before_it_has_a_host_never_runs(sandbox: ToolHostSandbox, tmp_path: Path) -> None:
    run(sandbox, "true")
    before, server = footprint(), server_of(sandbox)
    os.kill(server, signal.SIGSTOP)
    tree, description, _ = sandbox._spawn(launch(f"touch {tmp_path}/ran"), lambda _: None)
    tree.begin(description)
    tree.kill()
    os.kill(server, signal.SIGCONT)
    tree.wait()
    run(sandbox, "true")  # the same fork server has handled the first request by now
    run(sandbox, "true")  # the request for this one has reaped the host of the first
    assert server_of(sandbox) == server
    assert tree._init is None
    assert not (tmp_path / "ran").exists()
    assert_nothing_left(before)


def test_a_closed_fork_server_starts_no_process(sandbox: ToolHostSandbox) -> None:
    run(sandbox, "true")
    sandbox.close()
    with pytest.raises(OSError, match="shutting down"):
        sandbox._fork_server.request(0, (), python=False)
    assert sandbox._fork_server._process is None
