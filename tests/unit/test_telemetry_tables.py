"""The tables of what the server tells are what the code has."""

from __future__ import annotations

from actors.adapters.telemetry.log_lines import LINES
from tests.documents.pages import ROOT, section, table

OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def words(cell: str) -> tuple[str, ...]:
    """What a cell names in code spans, in order."""
    return tuple(cell.replace("`", "").split())


def test_the_lines_of_the_log_are_in_the_guide() -> None:
    rows = table(section(OPERATIONS, "## Logs"))
    assert {line.strip("`"): words(fields) for line, _, fields in rows} == LINES
