"""The worked tasks of docs/contributing.md can be carried out: their patches apply, and touch what is said."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.documents.pages import ROOT, section

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
TASKS = {
    "### A new tool": "new-tool",
    "### A new command and RPC": "new-command",
    "### A new model protocol": "new-model-protocol",
    "### A new store": "new-store",
}
EVERY_TASK = pytest.mark.parametrize("heading", TASKS, ids=TASKS.values())


def patch_of(heading: str) -> Path:
    return ROOT / "docs" / "tasks" / f"{TASKS[heading]}.diff"


def touched(patch: Path) -> tuple[set[str], set[str]]:
    """Return the paths that a patch adds and those that it changes."""
    parts = re.split(r"^diff --git ", patch.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    paths = {re.split(r" b/|\n", part)[1]: "new file mode" in part for part in parts}
    return {path for path, new in paths.items() if new}, {path for path, new in paths.items() if not new}


def test_every_patch_is_of_a_task() -> None:
    assert sorted((ROOT / "docs" / "tasks").iterdir()) == sorted(map(patch_of, TASKS))


@EVERY_TASK
def test_the_patch_applies(heading: str) -> None:
    command = ["git", "apply", "--check", str(patch_of(heading))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@EVERY_TASK
def test_every_file_of_the_patch_is_named_and_counted(heading: str) -> None:
    new, changed = touched(patch_of(heading))
    text = section(PAGE, heading)
    assert not [path for path in new | changed if f"`{path}`" not in text]
    counted = re.search(r"(\d+)\s+new files, (\d+)\s+changed", text)
    assert counted
    assert (int(counted[1]), int(counted[2])) == (len(new), len(changed))
