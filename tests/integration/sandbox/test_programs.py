"""What a program finds around it, what is kept of it, and what happens when it cannot start."""

import hashlib
import os
import resource
import threading
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.sandbox import fork_server, process_tree, toolhost
from actors.adapters.sandbox.host import kernel, process_walk
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import ProcessEnd, ProcessLimits, ProcessStartError, SandboxReport, SandboxUnavailableError
from tests.support.footprint import assert_nothing_left, footprint
from tests.support.patience import eventually
from tests.support.trees import BOUND, host_of_this_process, launch


def run(sandbox: ToolHostSandbox, command: str, **changes: Any) -> ProcessEnd:
    return sandbox.start(launch(command, **changes), lambda data: None).wait()


def lines(end: ProcessEnd) -> list[str]:
    return end.head.decode().splitlines()


def test_output_is_merged_and_the_exit_code_reported(sandbox: ToolHostSandbox) -> None:
    end = run(sandbox, "echo out; echo err >&2; exit 3")
    assert (end.exit_code, end.signal, end.head, end.tail, end.cut_bytes) == (3, None, b"out\nerr\n", b"", 0)
    assert (end.killed, end.leaked, end.limit, end.reaped) == (False, False, "", ())


def test_a_signal_is_reported(sandbox: ToolHostSandbox) -> None:
    end = run(sandbox, "kill -TERM $$")
    assert (end.exit_code, end.signal, end.killed) == (None, 15, False)


def test_the_environment_is_what_the_launch_says_and_nothing_else(
    sandbox: ToolHostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a secret")
    env = {"PATH": os.environ["PATH"], "ONE": "1"}
    found = run(sandbox, "env -0", env=env, argv=("env",))
    names = {line.partition("=")[0] for line in lines(found)}
    assert names == {"PATH", "ONE", "BEDROCK_CALL"}


def test_the_working_directory_is_the_launch_s(sandbox: ToolHostSandbox, tmp_path: Path) -> None:
    assert lines(run(sandbox, "pwd", cwd=str(tmp_path))) == [str(tmp_path.resolve())]


def test_only_the_standard_streams_are_open_and_none_is_a_terminal(sandbox: ToolHostSandbox) -> None:
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    try:
        found = run(sandbox, "ls -1 /proc/$$/fd; tty; test -t 1 || echo none")
    finally:
        os.close(inherited)
    assert [line for line in lines(found) if line != "255"] == ["0", "1", "2", "not a tty", "none"]


def test_files_that_tools_make_have_the_rights_that_the_server_s_user_gives_new_files(sandbox: ToolHostSandbox) -> None:
    before = os.umask(0o027)
    try:
        assert lines(run(sandbox, "umask")) == ["0027"]
    finally:
        os.umask(before)


def test_nothing_is_blocked_or_ignored(sandbox: ToolHostSandbox) -> None:
    found = run(sandbox, "grep -E '^Sig(Blk|Ign):' /proc/self/status")
    libc_s_own = 0b11 << 31  # signals 32 and 33: the C library keeps them to itself, nobody can set or reset them
    assert {int(line.split()[1], 16) & ~libc_s_own for line in lines(found)} == {0}


def test_the_program_leads_a_session_of_its_own(sandbox: ToolHostSandbox) -> None:
    pid, session, group = lines(run(sandbox, "read -r stat < /proc/$$/stat; set -- $stat; echo $1; echo $6; echo $5"))
    assert pid == session == group


@pytest.mark.parametrize("content", [b"one\ntwo", b"\0\xff" * 400_000])
def test_stdin_is_the_launch_s(sandbox: ToolHostSandbox, content: bytes) -> None:
    end = run(sandbox, "sha256sum", stdin=content)
    assert lines(end) == [f"{hashlib.sha256(content).hexdigest()}  -"]


def test_stdin_is_open_once(sandbox: ToolHostSandbox) -> None:
    assert lines(run(sandbox, "ls -1 /proc/$$/fd; true", stdin=b"x")) == ["0", "1", "2"]


def test_stdin_is_empty_without(sandbox: ToolHostSandbox) -> None:
    assert run(sandbox, "wc -c").head == b"0\n"


def test_a_new_namespace_shows_only_the_tool_s_processes(report: SandboxReport) -> None:
    if not report.pid_namespace:
        pytest.skip("this machine allows no PID namespace")
    sandbox = ToolHostSandbox(report)
    found = run(sandbox, "echo $$; ls /proc | grep -c '^[0-9]'; cat /proc/1/environ; cat /proc/1/comm")
    sandbox.close()
    pid, visible, *_ = lines(found)
    assert pid == "2", "the program is not PID 1, which ignores signals"
    assert int(visible) <= 5
    assert b"PATH" not in found.head


def test_limits_are_set(sandbox: ToolHostSandbox) -> None:
    limits = ProcessLimits(cpu_seconds=77, memory_bytes=1 << 30, file_bytes=1 << 20, open_files=99, processes=400)
    cpu, memory, size, files = lines(run(sandbox, "ulimit -t; ulimit -d; ulimit -f; ulimit -n", limits=limits))
    assert (cpu, memory, size, files) == ("77", str(1 << 20), str(1 << 10), "99")


def test_a_limit_above_the_server_s_own_is_lowered_to_it(sandbox: ToolHostSandbox) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    end = run(sandbox, "ulimit -Hn", limits=ProcessLimits(open_files=hard + 5))
    assert lines(end) == [str(hard)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"argv": ("no-such-program",)}, "No such file"),
        ({"argv": ("/etc/passwd",)}, "Permission denied"),
        ({"argv": ("bash", "-c", "x" * 200_000)}, "too long"),
        ({"argv": ("bash", "-c", "a\0b")}, "NUL"),
        ({"argv": ("bash", "-c", "\ud800")}, "Unicode"),
        ({"cwd": "/no/such/directory"}, "working directory"),
        ({"cwd": "/etc/passwd"}, "working directory"),
    ],
)
def test_a_program_that_cannot_start_is_reported_and_has_not_begun(
    sandbox: ToolHostSandbox, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ProcessStartError, match=why):
        run(sandbox, "true", **changes)
    assert sandbox.live == 0


def test_a_tool_host_that_cannot_start_is_reported(sandbox: ToolHostSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "START", "raise SystemExit({})")
    with pytest.raises(ProcessStartError):
        run(sandbox, "true")
    assert sandbox.live == 0


def test_a_server_out_of_threads_is_reported(sandbox: ToolHostSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    run(sandbox, "true")
    before = footprint()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ProcessStartError, match="any more threads"):
        run(sandbox, "true")
    assert sandbox.live == 0
    monkeypatch.undo()
    # The fork server may fork the host of that call only now. It ends at once, and is reaped with a later request.
    assert any(run(sandbox, "true").exit_code == 0 and footprint().within(before) for _ in range(20))


def limit_that_leaves(spare: int) -> int:
    """The limit of open files below which so many numbers are free, wherever earlier tests left gaps."""
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    return next(islice((number for number in count() if number not in taken), spare, None))


@pytest.mark.parametrize("forks_anew", [True, False])
def test_a_server_that_runs_out_of_files_starts_it_or_reports_that(sandbox: ToolHostSandbox, forks_anew: bool) -> None:
    run(sandbox, "true")
    before = footprint()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    started = []
    for spare in (0, 1, 2, 3, 4, 6, 8, 13):
        if forks_anew:
            sandbox._fork_server.replace(sandbox._fork_server._starts)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit_that_leaves(spare), hard))
        try:
            started.append(run(sandbox, "cat", stdin=b"x").head == b"x")
        except ProcessStartError:
            started.append(False)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        run(sandbox, "true")
        assert_nothing_left(before)
    assert (started[0], started[-1]) == (False, True)
    assert sandbox.live == 0


def test_the_server_itself_enforces_the_wall_clock_if_the_host_does_not(
    sandbox: ToolHostSandbox, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, "WALL_GRACE_SECONDS", -1000.0)
    tree = sandbox.start(launch("sleep 1000", mark, limits=ProcessLimits(wall_seconds=900)), lambda data: None)
    end = tree.wait()
    assert (end.limit, end.killed, end.signal, end.leaked) == ("wall", True, 9, False)


def test_the_tool_host_is_compiled_once_and_no_other_user_can_change_it(
    sandbox: ToolHostSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(sandbox, "echo ran").head == b"ran\n"
    monkeypatch.setattr(toolhost, "__file__", "/nowhere")
    assert run(sandbox, "echo ran").head == b"ran\n"
    with pytest.raises(PermissionError):
        os.pwrite(fork_server.program(), b"x", 0)


def test_a_restricted_program_is_refused_where_nothing_restricts(sandbox: ToolHostSandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError):
        run(sandbox, "touch ran", mode=Mode.RESTRICTED, cwd=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_tool_host_itself_refuses_a_restriction_that_it_cannot_keep(tmp_path: Path) -> None:
    sandbox = ToolHostSandbox(SandboxReport(tier="A", landlock_abi=7, pid_namespace=False))
    with pytest.raises(SandboxUnavailableError):
        run(sandbox, "touch ran", mode=Mode.RESTRICTED, cwd=str(tmp_path))
    sandbox.close()
    assert not list(tmp_path.iterdir())


def test_long_output_keeps_its_head_and_its_tail(sandbox: ToolHostSandbox) -> None:
    whole = b"".join(b"%d\n" % number for number in range(1, 200_001))
    seen = hashlib.sha256()
    end = sandbox.start(launch("seq 1 200000", output_bytes=1001), seen.update).wait()
    assert (end.head, end.tail) == (whole[:500], whole[-501:])
    assert end.cut_bytes == len(whole) - 1001
    assert seen.digest() == hashlib.sha256(whole).digest(), "watchers get everything, in order"


def test_unread_output_stops_the_program_not_the_memory(sandbox: ToolHostSandbox) -> None:
    first, go_on = threading.Event(), threading.Event()
    total = 0

    def take(data: bytes) -> None:
        nonlocal total
        total += len(data)
        first.set()
        assert go_on.wait(BOUND)

    tree = sandbox.start(launch("yes | head -c 200M"), take)
    assert first.wait(BOUND)
    host = host_of_this_process()
    writer = process_walk.descendants(host)[-1]
    eventually(lambda: Path(f"/proc/{writer}/wchan").read_text() != "0", "a writer that waits")
    assert total <= kernel.CHUNK
    go_on.set()
    peak = _peak_kilobytes(host)
    end = tree.wait()
    assert total == 200 << 20
    assert len(end.head) + len(end.tail) == 128 * 1024
    assert end.cut_bytes == total - 128 * 1024
    assert peak < 64 * 1024


def _peak_kilobytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1])
    raise AssertionError("no VmHWM")


def test_a_watcher_that_fails_does_not_harm_the_call(sandbox: ToolHostSandbox) -> None:
    def fail(data: bytes) -> None:
        raise ValueError("no more")

    assert sandbox.start(launch("echo one; sleep 0.01; echo two"), fail).wait().head == b"one\ntwo\n"


def test_the_last_words_of_a_process_substitution_are_kept(sandbox: ToolHostSandbox) -> None:
    assert run(sandbox, "echo hello > >(cat; echo bye)").head == b"hello\nbye\n"


def test_twenty_calls_leave_nothing_behind(sandbox: ToolHostSandbox) -> None:
    run(sandbox, "true")
    before = footprint()
    for number in range(20):
        if number % 4 == 3:
            with pytest.raises(ProcessStartError):
                run(sandbox, "true", cwd="/no/such/directory")
            continue
        tree = sandbox.start(launch("cat; sleep 1000" if number % 4 == 2 else "cat", stdin=b"x"), lambda data: None)
        if number % 4 == 2:
            tree.kill()
        tree.wait()
    assert_nothing_left(before)
