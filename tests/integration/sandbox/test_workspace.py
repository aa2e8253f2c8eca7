"""Programs in workspace mode: what works beneath the working directory, what stays as it is, where it is refused."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.tools.request_mode_upgrade import HOW_TO_ASK_FOR_MORE
from actors.core.context import Mode
from actors.ports import ProcessEnd, ProcessLimits, ProcessStartError, SandboxUnavailableError
from tests.integration.sandbox.test_restricted import PYTHON, REPORTS
from tests.support.tool_harness import ToolHarness
from tests.support.trees import BOUND, launch

USES = {
    "write and read": ("echo one > a && echo two >> a && cat a", "one\ntwo"),
    "in place": ("echo one > a && sed -i s/one/two/ a && cat a", "two"),
    "directories": ("mkdir -p a/b && touch a/b/c && mv a d && find d | sort && rm -r d && ls", "d\nd/b\nd/b/c"),
    "links": ("echo x > a && ln -s a b && cat b && echo y > b && cat a && rm b && ls", "x\ny\na"),
    "modes and times": ("touch -d 2020-01-01 a && chmod 741 a && stat -c '%a %y' a | cut -c1-14", "741 2020-01-01"),
    "unpacking": ("mkdir s && echo x > s/a && tar cf t.tar ./s && rm -r s && tar xf t.tar && cat s/a", "x"),
    "copies with attributes": ("echo x > a && cp -p a b && install -m 711 a c && stat -c %a c && cat b", "711\nx"),
    "copies of directories": (
        "mkdir d && touch d/a && cp -a d e && mkdir $TMPDIR/f && mv $TMPDIR/f f && ls d e",
        "d:\na\n\ne:\na",
    ),
    "a program that was made": ("printf '#!/bin/sh\\necho made\\n' > p && chmod +x p && ./p", "made"),
    "is it writable": ("test -w . && touch a && test -w a && ! test -w .git/config && echo yes", "yes"),
    "umask": ("umask 077 && echo > a && mkdir d && umask 022 && echo > b && stat -c %a a d b", "600\n700\n644"),
    "exclusive": ("set -C; echo x > a; (echo y > a) 2>/dev/null || cat a", "x"),
    "a database": (
        f'{PYTHON} -c \'import sqlite3; c = sqlite3.connect("d"); c.execute("pragma journal_mode=wal");'
        ' c.execute("create table t(a)"); c.commit(); print(c.execute("select count(*) from t").fetchone())\'',
        "(0,)",
    ),
    "private directory too": ("cd && echo x > a && mv a b && chmod 700 b && cat b", "x"),
    "from elsewhere": ("W=$PWD && cd / && echo x > $W/a && cat $W/a", "x"),
    "move from the private directory": ("echo x > $TMPDIR/a && mv $TMPDIR/a a && cat a", "x"),
    "reading git": ("cat .git/config", "content"),
    "renaming over a hard link": ("echo x > new && mv new linked && cat linked", "x"),
    "signals": ("(sleep 1000 & P=$!; kill $P; wait $P; echo ended) 2>/dev/null", "ended"),
    "no byte code": ("echo $PYTHONDONTWRITEBYTECODE", "1"),
}
NEEDS = {
    "gcc": ("printf 'int main(){return 0;}' > m.c && gcc m.c -o m && ./m && echo ran", "ran"),
    "git": ("git init -q $TMPDIR/r && git -C $TMPDIR/r status --short && echo clean", "clean"),
}
ALL = USES | {name: use for name, use in NEEDS.items() if shutil.which(name)}

KEPT = {
    "git": "echo x > .git/config",
    "git anew": "mkdir -p a && git init -q a || mkdir a/.git",
    "nested": "echo x > nested/.envrc",
    "a name that is not there yet": "mkdir -p new/deep && touch new/deep/.envrc",
    "another case": "touch .EnvRC",
    "hooks of git": "mkdir -p .husky || mkdir .githooks",
    "settings of agents": "mkdir .claude || touch .mcp.json",
    "by a link": "ln -s .git g && touch g/x",
    "by a directory that is moved": "mv nested other",
    "a name in two steps": "mkdir -p m/.bin && mv m node_modules && touch node_modules/.bin/x",
    "a name in two steps by a link": "ln -s m node_modules",
    "a link that is moved": "ln -s m n && mv n node_modules || (rm n; false)",
    "a link that is exchanged": (
        f"ln -s m l; mkdir node_modules; {PYTHON} -c 'import ctypes, sys; "
        'sys.exit(ctypes.CDLL(None).renameat2(-100, b"l", -100, b"node_modules", 2) != 0)\'; '
        "done=$?; rm -r l node_modules; exit $done"
    ),
    "a link in another case": "ln -s m Node_Modules",
    "a bare repository": "mkdir -p r/objects r/refs && touch r/HEAD",
    "a hard link": "echo x > linked",
    "out": "echo x > ../out",
    "out by a link": "echo x > link/made",
    "the network": "exec 3<>/dev/tcp/127.0.0.1/1",
}


ROUNDS = 200
TOGETHER = {
    "a repository": ("objects", "os.mkdir(d + '/HEAD')", "os.mkdir(d + '/refs')", ("HEAD", "refs")),
    "a name": ("m", "os.rename(d + '/m', d + '/node_modules')", "os.mkdir(d + '/m/.bin')", ("node_modules/.bin",)),
    "a link": ("x", "os.rename(d + '/l', d + '/node_modules')", "os.symlink('m', d + '/l')", ("node_modules",)),
}  # fmt: skip
"""What one call and another one try at the same moment, in a directory with one entry, and what must not come of it."""

IN_STEP = """
import os, sys
folder, rounds, me, other, attempt = sys.argv[1:]
for number in range(int(rounds)):
    d = f"{folder}/{number}"
    os.mkdir(f"{d}/{me}")
    while not os.path.exists(f"{d}/{other}"):
        pass
    try:
        exec(attempt)
    except OSError:
        pass
"""


@pytest.fixture(params=REPORTS)
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return laid_out(tmp_path)


def laid_out(place: Path) -> Path:
    """A working directory with everything that is kept in it, as if nothing had ever been done there."""
    shutil.rmtree(place)
    folder = place / "workspace"
    for name in (".git", "nested", "own"):
        (folder / name).mkdir(parents=True)
    for name in (".git/config", "nested/.envrc", "own/token"):
        (folder / name).write_text("content\n")
    (place / "outside").mkdir()
    (folder / "link").symlink_to(place / "outside")
    (place / "other-name").write_text("content\n")
    (folder / "linked").hardlink_to(place / "other-name")
    return folder


@pytest.fixture
def sandbox(tier: str, workspace: Path) -> Iterator[ToolHostSandbox]:
    report = REPORTS[tier]
    report = type(report)(
        tier,
        report.landlock_abi,
        report.pid_namespace,
        hides_protected=report.hides_protected,
        workspace_available=True,
    )
    sandbox = ToolHostSandbox(report, protected=[str(workspace / "own")] if tier == "A" else [])
    yield sandbox
    sandbox.close()


def run(sandbox: ToolHostSandbox, command: str, workspace: Path, **changes: Any) -> ProcessEnd:
    fields: dict[str, Any] = {
        "mode": Mode.WORKSPACE,
        "cwd": str(workspace),
        "env": {"PATH": os.environ["PATH"]},
        "limits": ProcessLimits(wall_seconds=BOUND),
        **changes,
    }
    return sandbox.start(launch(command, **fields), lambda data: None).wait()


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything below a directory."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in folder.rglob("*")
    }


def test_what_people_do_in_their_directories_works(sandbox: ToolHostSandbox, tmp_path: Path) -> None:
    own = ("own", ".git", "nested", "link", "linked")
    for name, (command, output) in ALL.items():
        end = run(sandbox, command, laid_out(tmp_path))
        said = "\n".join(line for line in end.head.decode().splitlines() if line not in own)
        assert (name, said, end.exit_code) == (name, output, 0)


def test_what_is_protected_stays_as_it_is(sandbox: ToolHostSandbox, tmp_path: Path) -> None:
    kept = ("/.git", "/nested", "/own", "/link", "/linked")
    for name, command in KEPT.items():
        workspace = laid_out(tmp_path)
        before = {path: entry for path, entry in tree(tmp_path).items() if path.startswith(kept, len("workspace"))}
        end = run(sandbox, f"({command}) 2>&1", workspace)
        assert end.exit_code != 0, (name, end.head)
        after = tree(tmp_path)
        assert (name, {path: after.get(path) for path in before}) == (name, before)
        made = {path.rpartition("/")[2].lower() for path in after.keys() - before.keys()}
        unwanted = made & {".git", ".envrc", ".bin", "made", "out", "head", "mine", "other"}
        assert not unwanted or name == "a name in two steps", (name, unwanted)
        assert not (workspace / "node_modules").exists(), name


@pytest.mark.parametrize("inner", [False, True], ids=["one workspace", "one in the other"])
@pytest.mark.parametrize("name", TOGETHER)
def test_two_calls_cannot_make_together_what_neither_could_alone(
    sandbox: ToolHostSandbox, workspace: Path, name: str, inner: bool
) -> None:
    entry, one, other, parts = TOGETHER[name]
    rounds = workspace / "rounds"
    for number in range(ROUNDS):
        (rounds / str(number) / entry).mkdir(parents=True)
    node = ToolHostSandbox(sandbox.report)

    def call(there: ToolHostSandbox, folder: Path, *arguments: str) -> None:
        end = run(there, "", folder, argv=(IN_STEP, str(rounds), str(ROUNDS), *arguments), python=True)
        assert end.exit_code == 0, end.head

    with ThreadPoolExecutor() as pool:
        calls = [
            pool.submit(call, sandbox, workspace, "one", "other", one),
            pool.submit(call, node, rounds if inner else workspace, "other", "one", other),
        ]
    node.close()
    for each in calls:
        each.result()
    assert not [
        number for number in os.listdir(rounds) if all(os.path.lexists(rounds / number / part) for part in parts)
    ]


def test_a_link_that_was_there_before_protects_what_it_may_lead_to(sandbox: ToolHostSandbox, workspace: Path) -> None:
    tools = ToolHarness(sandbox, workspace, mode=Mode.WORKSPACE)
    write = [{"operation": "overwrite", "newText": "new\n"}]
    (workspace / "m").mkdir()
    (workspace / "node_modules").symlink_to("m")
    assert run(sandbox, "mkdir m/.bin || touch m/.BIN || mkdir -p a/.bin", workspace).exit_code != 0
    for path in ("m/.bin/tool", "node_modules/.bin/tool"):
        assert tools.use("patch", path=path, patches=write).is_error
    assert list((workspace / "m").iterdir()) == []
    assert not tools.use("patch", path="m/bin/tool", patches=write).is_error
    (workspace / "node_modules").unlink()
    assert run(sandbox, "mkdir m/.bin", workspace).exit_code == 0
    assert not tools.use("patch", path="m/.bin/tool", patches=write).is_error


def test_what_is_written_is_the_user_s_and_outlives_the_call(sandbox: ToolHostSandbox, workspace: Path) -> None:
    run(sandbox, "echo here > file", workspace)
    status = (workspace / "file").stat()
    assert (workspace / "file").read_text() == "here\n"
    assert (status.st_uid, status.st_mode & 0o777) == (os.geteuid(), 0o644)


def test_a_file_is_as_large_as_a_limit_lets_it_be(sandbox: ToolHostSandbox, workspace: Path) -> None:
    limits = ProcessLimits(wall_seconds=BOUND, file_bytes=1 << 20)
    command = (
        "head -c 3M /dev/zero > big; stat -c %s big; truncate -s 2M big; : > short; truncate -s 1M short; wc -c < short"
    )
    end = run(sandbox, command, workspace, limits=limits)
    assert [line for line in end.head.decode().splitlines() if line.isdigit()] == ["1048576", "1048576"]
    assert (workspace / "big").stat().st_size == 1 << 20


def test_a_program_of_python_that_the_host_runs_itself_is_served_too(sandbox: ToolHostSandbox, workspace: Path) -> None:
    source = "import os\nopen('made', 'w').write('x')\ntry: os.mkdir('.git/x')\nexcept OSError as e: print(e.errno)"
    end = run(sandbox, "", workspace, argv=(source,), python=True)
    assert (workspace / "made").read_text() == "x"
    assert end.head.strip().isdigit()


def test_many_processes_at_once_are_served(sandbox: ToolHostSandbox, workspace: Path) -> None:
    command = (
        "for i in {1..20}; do (for j in {1..20}; do echo $i > f$i-$j; mv f$i-$j g$i-$j; done) & done; wait; ls | wc -l"
    )
    end = run(sandbox, command, workspace)
    assert int(end.head) == 400 + 4
    assert (workspace / "g7-3").read_text() == "7\n"


def test_a_background_process_goes_on_to_be_served_until_the_program_ends(
    sandbox: ToolHostSandbox, workspace: Path
) -> None:
    end = run(sandbox, "(echo late > late) & wait; cat late", workspace)
    assert end.head == b"late\n"


def test_patch_changes_files_of_the_workspace_and_says_why_it_cannot_change_others(
    sandbox: ToolHostSandbox, workspace: Path, tmp_path: Path
) -> None:
    tools = ToolHarness(sandbox, workspace, mode=Mode.WORKSPACE)
    write = [{"operation": "overwrite", "newText": "new\n"}]
    for path in ("made", "deep/er/made", str(workspace / "absolute"), "made"):
        assert not tools.use("patch", path=path, patches=write).is_error
        assert (workspace / path).read_text() == "new\n"
    for path in (
        ".git/config",
        "nested/.envrc",
        "deep/.vscode/tasks.json",
        str(tmp_path / "outside" / "made"),
        "linked",
    ):
        before = tree(tmp_path)
        output = tools.use("patch", path=path, patches=write)
        assert output.is_error
        assert path == "linked" or HOW_TO_ASK_FOR_MORE in output.text
        assert {name: entry for name, entry in tree(tmp_path).items() if name in before} == before
    assert not (workspace / "deep" / ".vscode").exists()
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_command_that_the_mode_stopped_says_how_to_ask(sandbox: ToolHostSandbox, workspace: Path) -> None:
    tools = ToolHarness(sandbox, workspace, mode=Mode.WORKSPACE)
    assert HOW_TO_ASK_FOR_MORE in tools.use("bash", cmd="echo x > .git/config").text
    assert HOW_TO_ASK_FOR_MORE not in tools.use("bash", cmd="echo x > file; false").text


@pytest.mark.parametrize("place", ["/", "/etc", "~", "the home directory of a user"])
def test_what_cannot_be_a_workspace_is_refused_before_anything_runs(
    sandbox: ToolHostSandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HOME", str(workspace / "nested"))
    folder = {"~": workspace / "nested", "the home directory of a user": workspace}.get(place, Path(place))
    assert sandbox.mode_refusal(Mode.WORKSPACE, str(folder))
    with pytest.raises(SandboxUnavailableError, match="workspace mode is not available in this directory"):
        run(sandbox, "touch ran", folder)
    assert sandbox.live == 0


@pytest.mark.parametrize(
    ("name", "why"), [(".git", "may not change"), ("own", "the server"), ("bare/objects", "repository")]
)
def test_nor_can_what_is_protected_itself(sandbox: ToolHostSandbox, workspace: Path, name: str, why: str) -> None:
    for entry in ("objects", "refs", "HEAD"):
        (workspace / "bare" / entry).mkdir(parents=True)
    protecting = ToolHostSandbox(sandbox.report, protected=[str(workspace / "own")])
    assert why in protecting.mode_refusal(Mode.WORKSPACE, str(workspace / name))
    protecting.close()


def test_only_tier_a_takes_a_directory_with_the_server_s_own_files(
    sandbox: ToolHostSandbox, workspace: Path, tier: str
) -> None:
    """Tier B keeps them by rules for all that is around them, so that what is made there could not be read."""
    protecting = ToolHostSandbox(sandbox.report, protected=[str(workspace / "own"), str(workspace.parent / "key")])
    refusal = protecting.mode_refusal(Mode.WORKSPACE, str(workspace))
    assert "own, which tools cannot" in refusal if tier == "B" else refusal == ""
    if tier == "A":
        end = run(
            protecting,
            "cat own/token; echo x > own/token; rm -rf own; mv own mine; chmod 0 .; echo x > a; cat a",
            workspace,
        )
        assert end.head.endswith(b"\nx\n")
        assert b"content" not in end.head
    protecting.close()
    assert (workspace / "own" / "token").read_text() == "content\n"


def test_a_file_of_the_server_s_own_in_it_is_refused_in_both_tiers(sandbox: ToolHostSandbox, workspace: Path) -> None:
    protecting = ToolHostSandbox(sandbox.report, protected=[str(workspace / "own" / "token")])
    assert "token, which tools cannot read" in protecting.mode_refusal(Mode.WORKSPACE, str(workspace))
    protecting.close()


def test_the_server_s_own_programs_are_no_workspace_nor_part_of_one(tier: str) -> None:
    report = type(REPORTS[tier])(tier, REPORTS[tier].landlock_abi, tier == "A", workspace_available=True)
    sandbox = ToolHostSandbox(report)
    root = Path(__file__).parents[3]
    try:
        assert "the server" in sandbox.mode_refusal(Mode.WORKSPACE, str(root / "actors"))
        end = run(sandbox, f"touch {root.name}/actors/made", root.parent)
        assert end.exit_code != 0
    finally:
        sandbox.close()
    assert not (root / "actors" / "made").exists()


def test_where_the_machine_cannot_keep_it_nothing_runs(tier: str, workspace: Path) -> None:
    sandbox = ToolHostSandbox(REPORTS[tier])
    with pytest.raises(SandboxUnavailableError, match="workspace mode"):
        run(sandbox, "touch ran", workspace)
    sandbox.close()
    assert not (workspace / "ran").exists()


@pytest.mark.parametrize("broken", [{"root": b"/nonexistent"}])
def test_a_broker_that_cannot_be_made_starts_nothing(
    sandbox: ToolHostSandbox, workspace: Path, broken: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    described = sandbox._workspaces.describe
    monkeypatch.setattr(sandbox._workspaces, "describe", lambda *given: described(*given) | broken)
    with pytest.raises((SandboxUnavailableError, ProcessStartError)):
        run(sandbox, "touch $TMPDIR/ran; touch ran", workspace)
    assert not (workspace / "ran").exists()
    assert sandbox.live == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_mounts_beneath_it_belong_to_others(tmp_path: Path) -> None:
    """A directory of somewhere else that is mounted in the workspace, whatever is below it, is not written."""
    script = (
        "mount --bind $1/elsewhere $1/workspace/mounted && python=$2 && cd $3 && "
        "$python -c 'import sys; from pathlib import Path; from tests.integration.sandbox import test_workspace as t\n"
        "t.try_mounted(Path(sys.argv[1]))' $1"
    )
    for name in ("elsewhere", "workspace/mounted"):
        (tmp_path / name).mkdir(parents=True)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [
            "unshare",
            "-m",
            "--propagation",
            "private",
            "bash",
            "-c",
            script,
            "bash",
            str(tmp_path),
            sys.executable,
            str(root),
        ],
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'clients'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.splitlines() == ["kept"] * len(REPORTS), done.stderr
    assert not list((tmp_path / "elsewhere").iterdir())


def try_mounted(folder: Path) -> None:
    """Run in a mount namespace of its own: print "kept" for each tier in which nothing was written there."""
    for tier, report in REPORTS.items():
        offered = type(report)(tier, report.landlock_abi, tier == "A", workspace_available=True)
        sandbox = ToolHostSandbox(offered)
        end = run(sandbox, "touch mounted/made; touch made && ls mounted", folder / "workspace")
        sandbox.close()
        print("kept" if end.exit_code == 0 and b"made\n" not in end.head.splitlines(keepends=True) else end.head)
