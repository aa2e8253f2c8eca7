"""Programs in restricted mode: what works for them, what they may use, and that they leave nothing."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.sandbox import private_dirs as private
from actors.adapters.sandbox.probe import landlock_abi, probe
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.core.context import Mode
from actors.ports import ProcessEnd, ProcessLimits, ProcessStartError, Sandbox, SandboxReport, SandboxUnavailableError
from tests.fault.escapes import namespaces_possible
from tests.support import processes
from tests.support.patience import eventually
from tests.support.trees import BOUND, TREES, bounded, launch

PYTHON = f"{sys.executable} -I -S"
EVERYWHERE = {
    "here document": ("cat <<< hello", "hello"),
    "process substitution": ("diff <(echo a) <(echo a) && echo same", "same"),
    "pipes": ("seq 1000 | sort -rn | head -1", "1000"),
    "background job": ("sleep 0.01 & wait $!; echo waited", "waited"),
    "standard streams by name": ("echo out > /dev/stdout; echo err > /dev/stderr", "out\nerr"),
    "null": ("ls /nonexistent 2>/dev/null; echo $? > /dev/null; echo ok", "ok"),
    "temporary file": ("f=$(mktemp) && echo x > $f && cat $f && rm $f", "x"),
    "temporary directory": ("d=$(mktemp -d) && touch $d/a && mv $d/a $d/b && ln -s b $d/c && ls $d", "b\nc"),
    "home": ("cd && [ $PWD = $HOME ] && [ $HOME = $TMPDIR ] && echo x > file && cat file", "x"),
    "find": ("find /etc -maxdepth 1 -name passwd -exec echo found {} \\;", "found /etc/passwd"),
    "copy and archive": ("cd; echo x > a; cp a b; tar cf t.tar a b; tar tf t.tar", "a\nb"),
    "script that is run": ("cd; echo 'echo ran' > s; bash s", "ran"),
    "timeout": ("timeout 20 echo in time", "in time"),
    "nice": ("nice -n 5 echo nice", "nice"),
    "python": (f"{sys.executable} -c 'import json; print(json.dumps([1]))'", "[1]"),
    "python subprocess": (
        f'{sys.executable} -c \'import subprocess; print(subprocess.run(["echo", "x"], capture_output=True).stdout)\'',
        "b'x\\n'",
    ),
    "python asyncio": (f"{PYTHON} -c 'import asyncio; asyncio.run(asyncio.sleep(0)); print(1)'", "1"),
    "python threads": (
        f"{PYTHON} -c 'import threading as t; x = t.Thread(target=print, args=(1,)); x.start(); x.join()'",
        "1",
    ),
    "python temporary file": (
        f"{PYTHON} -c 'import tempfile as t; t.NamedTemporaryFile().write(b\"\"); print(1)'",
        "1",
    ),
    "no byte code": ("echo $PYTHONDONTWRITEBYTECODE", "1"),
}
NEEDS = {
    "git": {
        "git": (
            f"git -c safe.directory='*' -C {Path(__file__).parents[3]} grep -h -m1 '^name = ' -- pyproject.toml",
            'name = "phoenix-bedrock"',
        )
    },
    "perl": {"perl": ("perl -e 'print 6*7, \"\\n\"'", "42")},
    "node": {"node": ("node -e 'console.log(6*7)'", "42")},
}
ONLY_A = {
    "mode of a file": ("cd; touch f; chmod 741 f; stat -c %a f", "741"),
    "program that was made": ("cd; printf '#!/bin/sh\\necho made\\n' > p; chmod +x p; ./p", "made"),
    "unpacking": ("cd; echo x > a; tar cf t.tar a; rm a; tar xf t.tar; cat a", "x"),
    "copy with attributes": ("cd; echo x > a; cp -p a b; install -m 600 a c; cat b c", "x\nx"),
    "python multiprocessing": (
        f"{PYTHON} -c 'import multiprocessing as m; q = m.get_context(\"fork\").Queue(); q.put(1); print(q.get())'",
        "1",
    ),
    "git commit": (
        "cd; git init -q r 2>&1 && cd r && touch f && git add f"
        " && git -c user.name=a -c user.email=a commit -qm m && git log --format=%s",
        "m",
    ),
}
PROGRAMS = EVERYWHERE | {
    name: program for needed, programs in NEEDS.items() if shutil.which(needed) for name, program in programs.items()
}


def reports() -> list[SandboxReport]:
    """A sandbox of each tier that the kernel has the means for; one that does not keep it fails its tests."""
    abi = landlock_abi()
    tiers = [tier for tier in "AB" if abi and (tier == "B" or namespaces_possible())]
    return [SandboxReport(tier, abi, pid_namespace=tier == "A", hides_protected=tier == "A") for tier in tiers]


REPORTS = {report.tier: report for report in reports()}


@pytest.fixture(params=REPORTS)
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def restricted(tier: str, tmp_path: Path) -> Iterator[ToolHostSandbox]:
    """A sandbox that keeps the restricted mode; a directory and a file are protected."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret").write_text("secret")
    (tmp_path / "key").write_text("secret")
    sandbox = ToolHostSandbox(REPORTS[tier], protected=[str(tmp_path / "data"), str(tmp_path / "key")])
    yield sandbox
    sandbox.close()


def run(sandbox: Sandbox, command: str, **changes: Any) -> ProcessEnd:
    fields: dict[str, Any] = {"mode": Mode.RESTRICTED, "env": {"PATH": os.environ["PATH"]}, **changes}
    return sandbox.start(launch(command, **fields), lambda data: None).wait()


def test_everyday_programs_work(restricted: ToolHostSandbox) -> None:
    for name, (command, output) in PROGRAMS.items():
        end = run(restricted, command)
        assert (name, end.head.decode().strip(), end.exit_code) == (name, output, 0)


def test_what_works_in_tier_a_only(restricted: ToolHostSandbox, tier: str) -> None:
    for name, (command, output) in ONLY_A.items():
        end = run(restricted, command)
        assert (end.head.decode().strip() == output) == (tier == "A"), (name, end.head)


def test_the_probe_finds_what_the_kernel_has_the_means_for() -> None:
    best = min(REPORTS, default="none")
    assert probe().tier == best
    for tier in REPORTS:
        assert probe(tier).tier == tier


def test_a_program_writes_in_its_private_directory_and_nowhere_else(
    restricted: ToolHostSandbox, tmp_path: Path
) -> None:
    end = run(restricted, "echo $HOME; touch $HOME/in; touch out; cat key data/secret; ls", cwd=str(tmp_path))
    home, *rest = end.head.decode().splitlines()
    assert not Path(home, "in").exists()
    assert not (tmp_path / "out").exists()
    assert "secret" not in rest
    assert rest[-2:] == ["data", "key"]


def test_calls_share_nothing_they_can_write_to(restricted: ToolHostSandbox) -> None:
    for _ in range(2):
        assert run(restricted, "ls -A $HOME /dev/shm/mine; touch $HOME/a; touch /dev/shm/mine").head.count(b"\na") == 0


def test_private_directories_go_with_their_calls(restricted: ToolHostSandbox, mark: str) -> None:
    assert restricted._private is not None
    root = Path(restricted._private.path)
    tree = restricted.start(
        launch("mkdir -m 0 $HOME/x; touch $HOME/y; setsid sleep 1000 & sleep 1000", mark, mode=Mode.RESTRICTED),
        lambda _: None,
    )
    eventually(lambda: len(processes.sleepers(mark)) == 2, "a tree")
    tree.kill()
    assert tree.wait().killed
    with pytest.raises(ProcessStartError):
        run(restricted, "true", cwd="/nonexistent")
    assert list(root.iterdir()) == []
    restricted.close()
    assert not root.exists()


@pytest.mark.parametrize("kind", ["double fork", "nohup setsid daemon that traps", "deaf to TERM and INT"])
def test_a_killed_restricted_tree_has_no_survivors(restricted: ToolHostSandbox, mark: str, kind: str) -> None:
    command, size = TREES[kind]
    tree = restricted.start(launch(command, mark, mode=Mode.RESTRICTED), lambda _: None)
    eventually(lambda: len(processes.sleepers(mark)) >= size, f"{size} sleeps")
    tree.kill()
    end = tree.wait()
    assert processes.running(mark) == []
    assert (end.killed, end.leaked) == (True, False)


def test_a_restricted_program_can_be_signalled(restricted: ToolHostSandbox, mark: str) -> None:
    ready = threading.Event()
    tree = restricted.start(
        launch("trap 'echo got; exit 3' INT; echo up; while :; do sleep 0.01; done", mark, mode=Mode.RESTRICTED),
        lambda _: ready.set(),
    )
    assert ready.wait(BOUND)
    tree.signal(signal.SIGINT)
    assert tree.wait().exit_code == 3


# --- limits -------------------------------------------------------------------------------------------------------


def test_wall_time_is_limited(restricted: ToolHostSandbox) -> None:
    assert run(restricted, "sleep 1000", limits=ProcessLimits(wall_seconds=0.3)).limit == "wall"


def test_cpu_time_is_limited(restricted: ToolHostSandbox) -> None:
    end = run(restricted, "while :; do :; done", limits=ProcessLimits(cpu_seconds=1, wall_seconds=BOUND))
    assert end.signal in {signal.SIGXCPU, signal.SIGKILL}
    assert end.limit == ""


def test_memory_is_limited(restricted: ToolHostSandbox) -> None:
    program = "try: bytearray(1 << 30)\nexcept MemoryError: print('refused')"
    end = run(
        restricted, "", argv=(sys.executable, "-I", "-S", "-c", program), limits=ProcessLimits(memory_bytes=1 << 29)
    )
    assert end.head == b"refused\n"


def test_file_size_is_limited(restricted: ToolHostSandbox) -> None:
    end = run(restricted, "cd; head -c 3M /dev/zero > big; stat -c %s big", limits=ProcessLimits(file_bytes=1 << 20))
    assert end.head.split()[-1] == b"1048576"


def test_open_files_are_limited(restricted: ToolHostSandbox) -> None:
    program = (
        "import os\nopened = []\ntry:\n  while True: opened.append(os.open('/', 0))\nexcept OSError: print(len(opened))"
    )
    end = run(restricted, "", argv=(sys.executable, "-I", "-S", "-c", program), limits=ProcessLimits(open_files=20))
    assert end.head == b"17\n"


def test_processes_are_limited(restricted: ToolHostSandbox, mark: str) -> None:
    refused = threading.Event()
    tree = restricted.start(
        launch(
            "for i in {1..2000}; do sleep 1000 & done; wait",
            mark,
            mode=Mode.RESTRICTED,
            limits=ProcessLimits(processes=60),
        ),
        lambda data: refused.set() if b"fork" in data else None,
    )
    assert bounded(tree, refused)
    assert not processes.running(mark)


def test_the_private_directory_is_limited_in_tier_a() -> None:
    if "A" not in REPORTS:
        pytest.skip("this kernel allows no namespaces")
    sandbox = ToolHostSandbox(REPORTS["A"])
    end = run(sandbox, "df -B1 --output=size,itotal $HOME | tail -1; df -B1 --output=size /dev/shm | tail -1")
    sandbox.close()
    assert [int(word) for word in end.head.split()] == [1 << 30, 1 << 18, 256 << 20]


# --- fail closed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [{"abi": 0}, {"private": b"/nonexistent"}, {"tier": "C"}])
def test_a_restriction_that_cannot_be_kept_starts_nothing(
    restricted: ToolHostSandbox, tier: str, broken: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = restricted._restriction
    monkeypatch.setattr(restricted, "_restriction", lambda *given: described(*given) | broken)
    with pytest.raises(SandboxUnavailableError, match="the sandbox could not be applied"):
        run(restricted, f"touch {tmp_path}/ran; touch $HOME/ran")
    assert not (tmp_path / "ran").exists()
    assert restricted.live == 0


def test_a_private_root_that_was_removed_is_created_again(restricted: ToolHostSandbox) -> None:
    assert restricted._private is not None
    private.remove(restricted._private.path)
    assert run(restricted, "echo here > $TMPDIR/file && cat $TMPDIR/file").head == b"here\n"


# --- unrestricted -------------------------------------------------------------------------------------------------


def test_the_server_s_own_files_are_hidden_from_unrestricted_tools_too(tmp_path: Path) -> None:
    if "A" not in REPORTS:
        pytest.skip("this kernel allows no namespaces")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "secret").write_text("secret")
    (tmp_path / "key").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    hidden = [str(tmp_path / "link"), str(tmp_path / "key"), str(tmp_path / "missing")]
    sandbox = ToolHostSandbox(REPORTS["A"], protected=hidden)
    assert sandbox.protected == (str(tmp_path / "data"), str(tmp_path / "key"), str(tmp_path / "missing"))
    command = "cat data/secret key; echo changed > data/secret; echo changed > key; touch free; rm -rf data; echo over"
    end = run(sandbox, command, mode=Mode.UNRESTRICTED, cwd=str(tmp_path))
    sandbox.close()
    assert b"secret\n" not in end.head
    assert end.head.endswith(b"over\n")
    assert (tmp_path / "free").exists()
    assert [(tmp_path / name).read_text() for name in ("data/secret", "key")] == ["secret", "secret"]


def test_nothing_that_is_mounted_for_a_tool_is_seen_outside(tmp_path: Path) -> None:
    if "A" not in REPORTS:
        pytest.skip("this kernel allows no namespaces")
    before = Path("/proc/self/mountinfo").read_text()
    for name in ("protected", "work"):
        (tmp_path / name).mkdir()
    report = replace(REPORTS["A"], workspace_available=True)
    sandbox = ToolHostSandbox(report, protected=[str(tmp_path / "protected")])
    for mode in Mode:
        tree = sandbox.start(launch("sleep 1000", mode=mode, cwd=str(tmp_path / "work")), lambda _: None)
        assert Path("/proc/self/mountinfo").read_text() == before
        tree.kill()
        tree.wait()
    sandbox.close()
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can share mounts")
def test_nothing_reaches_outside_where_mounts_are_shared(tmp_path: Path) -> None:
    script = (
        "mount --make-rshared / && python=$1 && shift && cd $1 && "
        "$python -c 'import sys; from tests.integration.sandbox.test_restricted import *; from pathlib import Path\n"
        "test_nothing_that_is_mounted_for_a_tool_is_seen_outside(Path(sys.argv[1])); print(1)' $2"
    )
    arguments = ["unshare", "-m", "--propagation", "private", "bash", "-c", script, "bash", sys.executable]
    done = subprocess.run(
        [*arguments, str(Path(__file__).parents[3]), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parents[3]}:{Path(__file__).parents[3] / 'clients'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout == "1\n", done.stderr
