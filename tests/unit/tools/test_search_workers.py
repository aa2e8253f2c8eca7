"""Workers are programs of their own: they start fast, and need nothing that is installed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from actors.tools import workers

PACKAGE = "actors.tools.workers"

MODULES = sorted(Path(workers.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_worker_imports_the_standard_library_and_its_neighbours_only(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
            assert not node.level
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if name != PACKAGE and not name.startswith(f"{PACKAGE}.")} == set()
