"""patch in real processes: changed by a worker, cancelled, and killed at every step of its way."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.tools.patch import MAX_INPUT
from actors.adapters.tools.workers.patch_files import TEMPORARY
from actors.core.context import Mode
from tests.support.sandbox_reports import sandbox_report
from tests.support.tool_harness import ToolHarness

ROOT = Path(__file__).parents[3]
BOUND = 60.0

CALLS = "open close read write fsync fstat stat rename mkdir readlink access fchmod dup"

KILLED_WORKER = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from actors.adapters.tools.workers import patch_files
left = int(sys.argv[2])
class Killer:
    def __getattr__(self, name):
        real = getattr(os, name)
        def call(*arguments, **named):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)
        return call if name in sys.argv[3].split() else real
patch_files.os = Killer()
patch_files.change("new/deep/file" if sys.argv[4] == "new" else "link", [], lambda old: (old or b"") + b"x" * 100_000)
"""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ToolHarness]:
    data = tmp_path / "data"
    data.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    sandbox = ToolHostSandbox(sandbox_report(), protected=[str(data)])
    yield ToolHarness(sandbox, work.resolve())
    sandbox.close()


def test_a_file_is_created_changed_and_shown(harness: ToolHarness) -> None:
    created = harness.use("patch", path="a/-ä.txt", patches=[{"operation": "overwrite", "newText": "eins\nzwei\n"}])
    assert (created.text, created.is_error) == ("<patches_applied>all</patches_applied>", False)
    move = [
        {"operation": "replace", "oldText": "eins\n", "newText": "", "toClipboard": "c"},
        {"operation": "append_eof", "fromClipboard": "c", "reindent": {"add": "  "}},
    ]
    moved = harness.use("patch", path=str(harness.directory / "a/-ä.txt"), patches=move)
    assert (harness.directory / "a/-ä.txt").read_text() == "zwei\n  eins\n"
    shown = json.loads(moved.display)
    assert shown["path"] == str(harness.directory / "a/-ä.txt")
    assert shown["diff"].endswith("@@ -1,2 +1,2 @@\n-eins\n zwei\n+  eins\n")


def test_the_longest_call_and_the_longest_clipboard_go_through(harness: ToolHarness) -> None:
    text = "ä\x01" * (MAX_INPUT // 10)
    harness.use("patch", path="file", patches=[{"operation": "overwrite", "newText": text}])
    copy = {"operation": "replace", "oldText": text, "newText": "short", "toClipboard": "c"}
    assert not harness.use("patch", path="file", patches=[copy]).is_error
    assert (harness.directory / "file").read_text() == "short"


def test_a_failure_changes_nothing_and_says_why(harness: ToolHarness) -> None:
    file = harness.directory / "file"
    file.write_text("a a")
    patches = [{"operation": "append_eof", "newText": "x"}, {"operation": "replace", "oldText": "a", "newText": "b"}]
    output = harness.use("patch", path="file", patches=patches)
    assert output.is_error
    assert output.text.startswith("Nothing was changed in file: patch 2 of 2: oldText appears 2 times; ")
    assert file.read_text() == "a a"


def test_the_server_s_own_files_are_out_of_reach(harness: ToolHarness) -> None:
    data = harness.directory.parent / "data"
    (harness.directory / "link").symlink_to(data)
    for path in (str(data / "token"), str(harness.directory / "link/token"), "link/token", "../data/token"):
        assert harness.use("patch", path=path, patches=[{"operation": "append_eof", "newText": "x"}]).is_error
    assert not list(data.iterdir())


def test_restricted_nothing_is_changed_anywhere(harness: ToolHarness) -> None:
    harness.mode = Mode.RESTRICTED
    output = harness.use("patch", path="file", patches=[{"operation": "append_eof", "newText": "x"}])
    assert output.is_error
    assert "request_mode_upgrade" in output.text
    assert not list(harness.directory.iterdir())


def test_a_cancelled_call_is_an_error(harness: ToolHarness) -> None:
    harness.cancel.cancel()
    output = harness.use("patch", path="file", patches=[{"operation": "append_eof", "newText": "x"}])
    assert output.is_error
    assert "cancelled" in output.text


@pytest.mark.parametrize("kind", ["known", "new"])
def test_killed_anywhere_the_file_is_the_old_one_or_the_new_one(tmp_path: Path, kind: str) -> None:
    old, new = b"old", (b"" if kind == "new" else b"old") + b"x" * 100_000
    seen: set[bytes | None] = set()
    for number in range(1, 1000):
        work = tmp_path / str(number)
        work.mkdir()
        (work / "file").write_bytes(old)
        (work / "link").symlink_to("file")
        program = (sys.executable, "-I", "-S", "-c", KILLED_WORKER, str(ROOT), str(number), CALLS, kind)
        ended = subprocess.run(program, cwd=work, capture_output=True, timeout=BOUND, check=False)
        file = work / ("new/deep/file" if kind == "new" else "file")
        content = file.read_bytes() if file.exists() else None
        seen.add(content)
        assert content in ({None, new} if kind == "new" else {old, new})
        left = {path.name for path in work.rglob("*")} - {"file", "link", "new", "deep"}
        assert all(name.startswith(TEMPORARY) and name.endswith(".tmp") for name in left)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert number > 15
    assert seen == ({None, new} if kind == "new" else {old, new})
