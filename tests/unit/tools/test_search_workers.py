"""Workers are programs of their own: they start fast, and need nothing that is installed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from actors.adapters.tools import workers

PACKAGE = "actors.adapters.tools.workers"

MODULES = sorted(Path(workers.__path__[0]).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_worker_imports_the_standard_library_and_its_neighbours(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
            assert not node.level
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if name != PACKAGE and not name.startswith(f"{PACKAGE}.")} == set()


@pytest.mark.parametrize("name", ["search", "keyword_search", "read_file", "patch"])
def test_a_program_starts_without_what_is_installed(name: str) -> None:
    loaded = python(f"from {PACKAGE} import {name}")
    assert {each for each in loaded if each.partition(".")[0] not in sys.stdlib_module_names} <= {
        *("actors", "actors.adapters", "actors.adapters.tools"),
        *map(module_name, MODULES),
    }


def module_name(path: Path) -> str:
    """Return the dotted name of a worker's module."""
    parts = path.relative_to(workers.__path__[0]).with_suffix("").parts
    return ".".join((PACKAGE, *(part for part in parts if part != "__init__")))


def python(program: str) -> set[str]:
    """What is loaded when a process of its own has run it as a worker is."""
    root = str(Path(__file__).parents[3])
    text = f"import sys; sys.path.insert(0, {root!r}); {program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.split()) - {"__main__"}
