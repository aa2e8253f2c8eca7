from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import size

SOURCE = '''"""A module's docstring
of two lines."""

# A comment.
VALUE = """text
that is code"""  # two lines


def function() -> int:
    """A docstring."""
    return 1
'''


def test_only_lines_that_hold_code_count() -> None:
    assert size.code_lines(SOURCE) == 4


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("actors/core/rules/idle_states.py", "actors/core"),
        ("actors/adapters/llm/transport/http.py", "actors/adapters/llm"),
        ("clients/bedrock/cli/chat/chat.py", "clients/bedrock/cli"),
        ("server/cli.py", "server"),
        ("tests/unit/core/test_budgets.py", "tests"),
    ],
)
def test_a_module_counts_against_the_budget_of_its_folder(file: str, folder: str) -> None:
    assert size.folder_of(file) == folder


def test_a_folder_above_its_budget_fails_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(size, "BUDGET", tmp_path / "size.json")
    monkeypatch.setattr(size, "measured", lambda: {"actors/core": [11, 2], "server": [5, 1]})
    size.BUDGET.write_text(json.dumps({"actors/core": [10, 2], "server": [9, 1]}))
    assert size.main(["--check"]) == 1
    assert "actors/core" in (said := capsys.readouterr().out)
    assert "server " not in said
    size.main(["--lower"])
    assert json.loads(size.BUDGET.read_text()) == {"actors/core": [10, 2], "server": [5, 1]}
