"""Programs of one principal against the files and processes of another one, in both tiers."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.sandbox.probe import with_separation
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.workspace.local import LocalWorkspace
from actors.core.content import Image
from actors.core.context import Mode
from actors.ports import SandboxUnavailableError, ToolOutput
from actors.ports.sandbox import ConfinedSandbox, Permissions
from tests.documents.pages import ROOT
from tests.integration.sandbox.test_restricted import REPORTS, run
from tests.support.tool_harness import ToolHarness

PYTHON = f"{sys.executable} -I -S -c"
FILES = ("secret", "AGENTS.md", ".git/HEAD", "deep/er/secret", "image.png", "odd name", "fifo.txt", ".env")
DIRECTORIES = ("", "deep", ".git", "deep/er")

ON_FILES = {
    "cat": "cat '{path}'",
    "redirection": "read -r x < '{path}' && echo \"$x\"",
    "copy": "cp '{path}' $TMPDIR/c && cat $TMPDIR/c",
    "link": "ln -s '{path}' $TMPDIR/l && cat $TMPDIR/l",
    "hard link": "ln '{path}' $TMPDIR/h && cat $TMPDIR/h",
    "link in the root": "cat 'links/{name}'",
    "upwards": "cat '../bob/{name}'",
    "upwards from links": "cat 'links/../../bob/{name}'",
    "through the root of init": "cat '/proc/1/root{path}'",
    "through the own root": "cat '/proc/self/root{path}'",
    "through the working directory": "cat '/proc/self/cwd/../bob/{name}'",
    "of the outer process": "cat '/proc/{pid}/root{path}'",
    "python": PYTHON + " 'import sys; print(open(sys.argv[1]).read())' '{path}'",
    "openat of the parent": PYTHON + " 'import os, sys; print(os.read(os.open(sys.argv[1], 0,"
    " dir_fd=os.open(\"..\", 0)), 99))' 'bob/{name}'",
    "append": "echo changed >> '{path}' && echo got",
    "truncate": ": > '{path}' && echo got",
    "remove": "rm '{path}' && echo got",
    "rename": "mv '{path}' $TMPDIR/m && echo got",
    "mode": "chmod 777 '{path}' && echo got",
    "times": "touch '{path}' && echo got",
}
ON_DIRECTORIES = {
    "list": "ls -A '{path}'",
    "glob": "shopt -s nullglob dotglob; a=('{path}'/*); [ ${{#a[@]}} -gt 0 ] && echo got",
    "find": "find '{path}' -mindepth 1",
    "scan": PYTHON + " 'import os, sys; print(os.listdir(sys.argv[1]))' '{path}'",
    "archive": "tar cf - -C '{path}' . | grep -q . && echo got",
    "enter": "cd '{path}' && ls -A",
    "create": "echo x > '{path}/new' && echo got",
    "make a directory": "mkdir '{path}/made' && echo got",
    "make a link": "ln -s / '{path}/link' && echo got",
}
ON_PROCESSES = {
    "terminate": "kill -TERM {pid} && echo got",
    "probe": "kill -0 {pid} && echo got",
    "kill the group": "kill -TERM -- -{pid} && echo got",
    "continue": "kill -CONT {pid} && echo got",
    "command line": "tr '\\0' ' ' < /proc/{pid}/cmdline | grep .",
    "environment": "tr '\\0' ' ' < /proc/{pid}/environ | grep .",
    "memory map": "grep . /proc/{pid}/maps",
    "working directory": "readlink /proc/{pid}/cwd",
    "open files": "ls /proc/{pid}/fd | grep .",
    "status": "grep . /proc/{pid}/status",
    "list of processes": "ls /proc | grep -x {pid}",
    "ps": "ps -p {pid} -o pid= | grep .",
    "nice": "renice -n 5 -p {pid} && echo got",
    "limits": "prlimit --pid {pid} --nofile | grep -i nofile",
    "affinity": "taskset -p 1 {pid} && echo got",
    "trace": PYTHON + " 'import ctypes; print(1 // (ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0))'",
    "queue a signal": PYTHON + " 'import os, signal; os.kill({pid}, signal.SIGUSR1); print(1)'",
    "pidfd": PYTHON + " 'import os, signal as s; s.pidfd_send_signal(os.pidfd_open({pid}), s.SIGUSR1); print(1)'",
    "its socket": PYTHON + " 'import socket as s; s.socket(s.AF_UNIX).connect(\"{socket}\"); print(1)'",
}


@pytest.fixture
def ada(tmp_path: Path) -> Path:
    """The directory of one principal, with links to that of another one, bob."""
    ada, bob = tmp_path / "ada", tmp_path / "bob"
    (ada / "links").mkdir(parents=True)
    (ada / "mine").write_text("mine\n")
    for name in FILES:
        (bob / name).parent.mkdir(parents=True, exist_ok=True)
        (bob / name).write_text("theirs\n")
        (ada / "links" / name).parent.mkdir(parents=True, exist_ok=True)
        (ada / "links" / name).symlink_to(bob / name)
    return ada


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the other principal, the leader of a group, which a signal would end."""
    with subprocess.Popen(["sleep", "1000"], cwd=tmp_path / "bob", start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "bob" / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        yield path


@pytest.fixture(params=REPORTS)
def confined(request: pytest.FixtureRequest, ada: Path) -> Iterator[ConfinedSandbox]:
    """The sandbox as tools of ada see it, in each tier."""
    sandbox = ToolHostSandbox(REPORTS[request.param])
    yield ConfinedSandbox(sandbox, Permissions(frozenset({Mode.RESTRICTED}), (str(ada),)))
    sandbox.close()


def attacks(ada: Path, pid: int, listening: str, most: int = 99) -> dict[str, str]:
    """Return commands by name that each print something only if they succeed, on so many files and directories."""
    bob = ada.parent / "bob"
    on_files = {
        f"{what} {name}": how.format(path=bob / name, name=name, pid=pid)
        for what, how in ON_FILES.items()
        for name in FILES[:most]
    }
    on_folders = {
        f"{what} {name or 'the root'}": how.format(path=bob / name if name else bob)
        for what, how in ON_DIRECTORIES.items()
        for name in DIRECTORIES[:most]
    }
    return on_files | on_folders | {what: how.format(pid=pid, socket=listening) for what, how in ON_PROCESSES.items()}


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mode, path.read_bytes()) for path in files}


def test_nothing_of_another_principal_is_read_listed_changed_or_signalled(
    confined: ConfinedSandbox, ada: Path, neighbour: subprocess.Popen[bytes], listening: str
) -> None:
    tried = attacks(ada, neighbour.pid, listening)
    assert len(tried) >= 200
    before = content(ada.parent)
    script = "\n".join(
        f'if out=$( {{ {how}; }} 2>/dev/null ) && [ -n "$out" ]; then echo "{what}"; fi' for what, how in tried.items()
    )
    end = run(confined, f"{script}\ncat mine", cwd=str(ada))
    assert end.head.decode() == "mine\n"
    assert content(ada.parent) == before
    assert neighbour.poll() is None


BY_TOOLS: dict[str, Callable[[str], dict[str, Any]]] = {
    "read_file": lambda path: {"path": path},
    "read_image": lambda path: {"path": path},
    "search": lambda path: {"pattern": ".", "path": path},
    "patch": lambda path: {"path": path, "patches": [{"operation": "overwrite", "newText": "changed"}]},
    "bash": lambda path: {"cmd": f"cat '{path}'", "wait_seconds": 60},
}
"""The tools that are told a path, and what they are told."""


def test_no_tool_that_is_told_a_path_of_another_principal_finds_anything(confined: ConfinedSandbox, ada: Path) -> None:
    bob, before, kept = ada.parent / "bob", content(ada.parent), list[bytes]()
    harness = ToolHarness(confined, ada, mode=Mode.RESTRICTED)

    def keep(data: bytes) -> Image:
        kept.append(data)
        return Image("hash", "image/png", 1, 1)

    def used(tool: str, path: object) -> ToolOutput:
        found = harness.toolbox.get(tool)
        assert found is not None
        return found.run(BY_TOOLS[tool](str(path)), replace(harness.context, keep_image=keep))

    for tool in BY_TOOLS:
        for path in (
            bob / "secret",
            "../bob/secret",
            "links/secret",
            "links/../../bob/secret",
            "/proc/self/cwd/../bob",
        ):
            assert "theirs" not in used(tool, path).text, (tool, path)
    assert (kept, content(ada.parent)) == ([], before)
    assert all("mine" in used(tool, "mine").text for tool in ("read_file", "search", "bash"))
    assert used("read_image", "mine").images
    assert kept == [b"mine\n"]


DEPENDING = {"through the root of init", "of the outer process", "trace", "ps", "affinity", "limits"}
"""Attacks that the machine may prevent, or for which it may lack the program."""
ENDING = {"terminate", "kill the group", "queue a signal", "pidfd"}
"""Attacks after which there is no process to attack."""


def test_the_attacks_work_where_nothing_keeps_principals_apart(
    ada: Path, neighbour: subprocess.Popen[bytes], listening: str
) -> None:
    """So that an attack that fails for another reason is found."""
    failed = []
    for what, how in attacks(ada, neighbour.pid, listening, 1).items():
        if what in ENDING or any(what.startswith(each) for each in DEPENDING):
            continue
        here = ada.parent / "copy"
        shutil.copytree(ada.parent, here, symlinks=True, ignore=shutil.ignore_patterns("copy", "s"))
        environment = {"PATH": os.environ["PATH"], "TMPDIR": str(here)}
        command = how if what in ON_PROCESSES else how.replace(str(ada.parent), str(here))
        done = subprocess.run(
            ["bash", "-c", command], cwd=here / "ada", env=environment, stdout=subprocess.PIPE, check=False
        )
        if not done.stdout:
            failed.append(what)
        shutil.rmtree(here)
    assert failed == []


def test_what_landlock_does_not_restrict_of_reading_is_refused_too(confined: ConfinedSandbox, ada: Path) -> None:
    """Names of files as they are made, and attributes."""
    attack = (
        "import ctypes, os, sys; libc = ctypes.CDLL(None); watch = libc.inotify_init1(0); "
        "print(libc.inotify_add_watch(watch, sys.argv[1].encode(), 0xFFF), libc.inotify_add_watch(libc.inotify_init(), "
        "sys.argv[1].encode(), 0xFFF)); os.listxattr(sys.argv[1]); print('attributes')"
    )
    end = run(confined, f'{PYTHON} "{attack}" {ada.parent / "bob"} 2>/dev/null', cwd=str(ada))
    assert end.head == b"-1 -1\n"


@pytest.mark.parametrize("tier", REPORTS)
def test_what_nobody_may_read_is_not_read_as_a_root_either(tier: str, ada: Path) -> None:
    bob = ada.parent / "bob"
    sandbox = ToolHostSandbox(REPORTS[tier], protected=[str(bob)])
    try:
        roots = (str(ada), str(bob), str(bob / "deep"))
        end = run(ConfinedSandbox(sandbox, Permissions(roots=roots)), "cat mine links/*/* links/*/*/*", cwd=str(ada))
    finally:
        sandbox.close()
    assert b"mine\n" in end.head
    assert b"theirs" not in end.head


def test_a_root_that_becomes_a_link_is_no_root_any_more(confined: ConfinedSandbox, ada: Path) -> None:
    """Whoever may write in the directory around a root could choose others to be read."""
    second = ada.parent / "second"
    second.mkdir()
    (second / "secret").write_text("own")
    both = ConfinedSandbox(confined._sandbox, Permissions(roots=(str(ada), str(second))))
    assert run(both, f"cat {second}/secret", cwd=str(ada)).head == b"own"
    (second / "secret").unlink()
    second.rmdir()
    second.symlink_to("bob")
    assert b"theirs" not in run(both, f"cat {second}/secret", cwd=str(ada)).head
    with pytest.raises(SandboxUnavailableError, match="outside its principal's directories"):
        run(both, "true", cwd=str(second))
    with pytest.raises(ValueError, match="outside"):
        LocalWorkspace().check(str(second), (str(ada), str(second)))


def test_what_programs_need_of_the_system_is_there(confined: ConfinedSandbox, ada: Path) -> None:
    command = (
        "ls -A; cat < mine; git --version; python3 -c 'import json, ssl; print(1)' || true; "
        f"{sys.executable} -I -c 'import json, ssl; print(2)'; echo x > $TMPDIR/f && cat $HOME/f; id -un; date +%Z; "
        "(! test -e /etc/ssl/openssl.cnf || cat /etc/ssl/openssl.cnf > /dev/null) && echo settings of OpenSSL"
    )
    lines = run(confined, command, cwd=str(ada)).head.decode().splitlines()
    assert lines[:3] == ["links", "mine", "mine"]
    assert lines[3].startswith("git version")
    assert "2" in lines
    assert "x" in lines
    assert "settings of OpenSSL" in lines, "without it nothing of Node runs"


def test_programs_that_cannot_be_read_are_not_in_the_way(confined: ConfinedSandbox, ada: Path) -> None:
    """The server's PATH may begin with directories of the operator's home, where the same programs are."""
    own = ada.parent / "operator"
    own.mkdir()
    (own / "id").write_text("#!/bin/sh\n")
    (own / "id").chmod(0o755)
    end = run(confined, "id -u; echo $PATH", cwd=str(ada), env={"PATH": f"{own}:/usr/bin:/bin"})
    assert end.head.decode().splitlines() == [str(os.geteuid()), "/usr/bin:/bin"]


def test_the_servers_own_programs_in_python_run(confined: ConfinedSandbox, ada: Path) -> None:
    source = (
        "import sys, json, difflib; from actors.adapters.tools.workers import read_file; print(open('mine').read())"
    )
    end = run(
        confined, "", argv=(f"import sys; sys.path.insert(0, {str(ROOT)!r}); {source}",), python=True, cwd=str(ada)
    )
    assert end.head == b"mine\n\n"


def test_what_is_beside_the_servers_own_package_is_not_read(confined: ConfinedSandbox, ada: Path) -> None:
    """A server that runs from a checkout: its history, tests and notes are the operator's."""
    others = ("pyproject.toml", ".git", "tests/README.md", "server/app/wiring.py", "actors/__init__.py")
    tried = "; ".join(f"cat {ROOT / other}" for other in others)
    own = (ROOT / "actors" / "__init__.py").read_text()
    assert run(confined, f"({tried}) 2> /dev/null", cwd=str(ada)).head.decode() == own


@pytest.mark.parametrize("mode", [Mode.WORKSPACE, Mode.UNRESTRICTED])
def test_no_wider_mode_is_given_where_it_cannot_keep_principals_apart(
    confined: ConfinedSandbox, ada: Path, mode: Mode
) -> None:
    assert "isolate principals' files" in confined_to_all_modes(confined).mode_refusal(mode, str(ada))
    with pytest.raises(SandboxUnavailableError, match="isolate principals' files"):
        run(confined_to_all_modes(confined), "true", cwd=str(ada), mode=mode)


def confined_to_all_modes(confined: ConfinedSandbox) -> ConfinedSandbox:
    roots = confined._permissions.roots
    return ConfinedSandbox(confined._sandbox, Permissions(roots=roots))


def test_a_program_cannot_begin_outside_of_its_roots(confined: ConfinedSandbox, ada: Path) -> None:
    for place in (ada.parent, ada.parent / "bob", ada / "links" / "deep" / ".." / ".." / ".." / "bob"):
        with pytest.raises(SandboxUnavailableError, match="outside its principal's directories"):
            run(confined, "true", cwd=str(place))


def test_a_sandbox_that_is_asked_directly_refuses_too(ada: Path) -> None:
    """Whoever forgets the permissions and asks for readable paths gets no wider mode."""
    sandbox = ToolHostSandbox(next(iter(REPORTS.values())))
    try:
        with pytest.raises(SandboxUnavailableError, match="several principals"):
            run(sandbox, "true", cwd=str(ada), mode=Mode.UNRESTRICTED, readable=(str(ada),))
    finally:
        sandbox.close()


@pytest.mark.parametrize("tier", REPORTS)
def test_the_probe_tries_it(tier: str) -> None:
    assert with_separation(REPORTS[tier]).separation_reason == ""


def test_signals_that_cannot_be_kept_in_are_a_reason_against_it() -> None:
    report = replace(next(iter(REPORTS.values())), tier="B", landlock_abi=5)
    assert "Linux 6.12" in with_separation(report).separation_reason


def test_a_machine_without_a_sandbox_says_why() -> None:
    report = replace(next(iter(REPORTS.values())), tier="none", reason="no Landlock here")
    assert with_separation(report).separation_reason == "no Landlock here"


def test_a_machine_that_cannot_keep_them_apart_runs_nothing(ada: Path) -> None:
    sandbox = ToolHostSandbox(replace(next(iter(REPORTS.values())), separation_reason="it does not hold"))
    try:
        with pytest.raises(SandboxUnavailableError, match="it does not hold"):
            run(sandbox, "true", cwd=str(ada), readable=(str(ada),))
    finally:
        sandbox.close()
