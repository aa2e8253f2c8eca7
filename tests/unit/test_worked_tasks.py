"""The worked tasks of docs/contributing.md: in a copy of the repository, they are applied, checked and tested."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.documents.pages import ROOT, section

PAGE = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
TASKS = {
    "### A new tool": "new-tool",
    "### A new command and RPC": "new-command",
    "### A new model protocol": "new-model-protocol",
    "### A new store": "new-store",
}
pytestmark = pytest.mark.timeout(900)  # they check and test a whole copy of the repository
Carried: TypeAlias = tuple[Path, dict[str, set[str]]]
"""A copy of the repository in which all tasks were carried out, and the files that each task has changed there."""
EVERY_TASK = pytest.mark.parametrize("heading", TASKS, ids=TASKS.values())

# Tests beside those that a patch touches: they look at every tool, message, protocol, page or store.
OVERARCHING = {
    "### A new tool": ("tests/unit/test_documents.py",),
    "### A new command and RPC": (
        "tests/unit/clients/test_values.py",
        "tests/unit/server/test_rules_of_the_contract.py",
        "tests/unit/test_api_docs.py",
        "tests/unit/test_contract_review.py",
    ),
    "### A new model protocol": (
        "tests/unit/llm/test_provider.py",
        "tests/unit/llm/test_catalog.py",
        "tests/unit/test_documents.py",
    ),
    "### A new store": ("tests/integration/store/test_store_contract.py",),
}

# Of what has a case for each method, message, field or store only those of the tasks (pytest's -k; "[" is in a case's
# name); of the rest all but what no task can change.
CASES = "(label or journaled or llm or tools or test_documents or not (test_calls or [)) \
and not (postgres or readme_are_typed)"


def patch_of(heading: str) -> Path:
    return ROOT / "docs" / "tasks" / f"{TASKS[heading]}.diff"


def touched(patch: Path) -> tuple[set[str], set[str]]:
    """Return the paths that a patch adds and those that it changes."""
    parts = re.split(r"^diff --git ", patch.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    paths = {re.split(r" b/|\n", part)[1]: "new file mode" in part for part in parts}
    return {path for path, new in paths.items() if new}, {path for path, new in paths.items() if not new}


def selected_tests(heading: str) -> list[str]:
    """Return the test functions that a patch adds to a file, and the whole of the other test files that it touches."""
    found: set[str] = set()
    for part in re.split(r"^diff --git ", patch_of(heading).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        path = re.split(r" b/|\n", part)[1]
        if re.fullmatch(r"tests/.*/test_\w+\.py", path):
            added = re.findall(r"^\+def (test_\w+)", part, flags=re.MULTILINE)
            found.update([f"{path}::{name}" for name in added] or [path])
    return sorted(found)


def commands_of(heading: str) -> list[list[str]]:
    """Return the commands of a task's last code block, split into words."""
    block = section(PAGE, heading).split("```")[-2].replace("\\\n", "")
    lines = re.findall(r'make(?: [a-z-]+)+(?: ARGS="[^"\n]*")?', block)
    return [shlex.split(line) for line in lines]


def run(directory: Path, *command: str) -> None:
    """Run a command in a copy of the repository; fail with its output."""
    environment = os.environ | {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join((str(directory), str(directory / "clients"))),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis"),  # has tables that take longer to make than the tests
        "GIT_CEILING_DIRECTORIES": str(directory.parent),  # else `git apply` skips paths outside of a surrounding one
    }
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"


def tracked() -> list[str]:
    """Return the paths of the files that git tracks and that exist."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if (ROOT / path).is_file()]


def copy_repository(to: Path) -> None:
    """Copy the tracked files, as they are now, and what they were compiled to: it is valid for the time of a source."""
    compiled = {path for folder in ("actors", "server", "clients", "tests") for path in (ROOT / folder).rglob("*.pyc")}
    for path in [*tracked(), *(str(path.relative_to(ROOT)) for path in compiled)]:
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, to / path)


def programs(*, new: bool) -> list[str]:
    """Return the paths of the Python files that the patches add, and of those that they change."""
    return sorted(path for heading in TASKS for path in touched(patch_of(heading))[not new] if path.endswith(".py"))


def digests(directory: Path) -> dict[str, bytes]:
    """Return the hash of each file that git tracks here, or that a patch adds, in a copy."""
    added = set[str]().union(*(touched(patch_of(heading))[0] for heading in TASKS))
    paths = [path for path in added.union(tracked()) if (directory / path).is_file()]
    return {path: hashlib.sha256((directory / path).read_bytes()).digest() for path in paths}


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Carried:
    """Apply each patch and run the `make` commands of its task but for its tests, with this environment as .venv."""
    directory = tmp_path_factory.mktemp("tasks")
    copy_repository(directory)
    environment = (f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.ready")
    before, written = digests(directory), dict[str, set[str]]()
    for heading in TASKS:
        run(directory, "git", "apply", str(patch_of(heading)))
        for program, *arguments in commands_of(heading):
            assert program == "make"
            if arguments[0] != "test":
                run(directory, "make", *environment, *arguments)
        after = digests(directory)
        written[heading] = {path for path, digest in after.items() if before.get(path) != digest}
        before = after
    return directory, written


def test_every_patch_is_of_a_task() -> None:
    assert sorted((ROOT / "docs" / "tasks").iterdir()) == sorted(map(patch_of, TASKS))


@EVERY_TASK
def test_every_file_of_the_patch_is_named_and_counted(heading: str) -> None:
    new, changed = touched(patch_of(heading))
    text = section(PAGE, heading)
    assert not [path for path in new | changed if f"`{path}`" not in text]
    counted = re.search(r"(\d+)\s+new files, (\d+)\s+changed", text)
    assert counted
    assert (int(counted[1]), int(counted[2])) == (len(new), len(changed))


@EVERY_TASK
def test_the_named_tests_include_those_of_the_patch(heading: str) -> None:
    (named,) = (shlex.split(words[2].removeprefix("ARGS=")) for words in commands_of(heading) if words[1] == "test")
    assert all((ROOT / path).exists() or path in touched(patch_of(heading))[0] for path in named)
    for test in [*selected_tests(heading), *OVERARCHING[heading]]:
        path = test.partition("::")[0]
        assert {path, *map(str, Path(path).parents)}.intersection(named), path


def test_every_place_of_a_requests_field_has_the_field_that_is_followed() -> None:
    places = re.findall(r"`((?:protos|actors|server|clients)/\S+)`", section(PAGE, "### A field of a request"))
    assert len(places) == 6
    assert not [place for place in places if "output_schema" not in (ROOT / place).read_text(encoding="utf-8")]


@EVERY_TASK
def test_every_patch_applies_to_what_is_here(heading: str) -> None:
    run(ROOT, "git", "apply", "--check", str(patch_of(heading)))


def test_what_the_tasks_write_passes_the_linter(carried: Carried) -> None:
    for command in (("check",), ("format", "--check")):
        run(carried[0], "ruff", *command, "--no-cache", *programs(new=True), *programs(new=False))


def test_what_the_tasks_write_passes_the_type_checker(carried: Carried) -> None:
    """But for tests that are there already, which pyright is not configured to check."""
    changed = [path for path in programs(new=False) if not path.startswith("tests/")]
    run(carried[0], "pyright", *programs(new=True), *changed)


def test_the_tests_of_the_tasks_pass(carried: Carried) -> None:
    tests = {test for heading in TASKS for test in (*selected_tests(heading), *OVERARCHING[heading])}
    run(carried[0], sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", CASES, *sorted(tests))


@EVERY_TASK
def test_what_make_writes_is_counted(carried: Carried, heading: str) -> None:
    by_patch = set.union(*touched(patch_of(heading)))
    made = carried[1][heading] - by_patch
    counted = re.search(r"writes\s+(\d+)\s+more", section(PAGE, heading))
    assert len(made) == (int(counted[1]) if counted else 0), sorted(made)
