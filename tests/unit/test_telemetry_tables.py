"""The tables of what the server tells are what the code has, and so are the names in the rules for alarms."""

from __future__ import annotations

import ast
import re

from actors.adapters.telemetry.log_lines import LINES
from actors.adapters.telemetry.metrics import METRICS
from tests.documents.pages import ROOT, section, table

LOGGING = re.compile(r"_?log\.(debug|info|warning|error|exception|critical|log)")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
RULES = (ROOT / "server" / "deploy" / "bedrock.rules.yml").read_text(encoding="utf-8")


def words(cell: str) -> tuple[str, ...]:
    """What a cell names in code spans, in order."""
    return tuple(cell.replace("`", "").split())


SCRAPED = re.findall(r"(?m)^# TYPE (\w+)", (ROOT / "tests/unit/telemetry/scrape.txt").read_text(encoding="utf-8"))
"""The names of all metrics, in their order."""


def test_the_lines_of_the_log_are_in_the_guide() -> None:
    rows = table(section(OPERATIONS, "## Logs"))
    assert {line.strip("`"): words(fields) for line, _, fields in rows} == LINES


def test_the_metrics_are_in_the_guide() -> None:
    rows = table(section(OPERATIONS, "### Metrics"))
    for row, metric, name in zip(rows, METRICS, SCRAPED, strict=True):
        labels = tuple(label.replace(".", "_") for label in metric.labels)
        assert (row[0].strip("`"), row[1], words(row[2]), row[3]) == (
            name, metric.kind.value, labels, metric.help
        )  # fmt: skip


def test_rules_for_alarms_name_metrics_that_there_are() -> None:
    named = set(re.findall(r"\b(?:bedrock|gen_ai_client)_\w+", RULES))
    assert named
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in named} <= set(SCRAPED)


def test_ids_are_fields_of_a_line_and_not_in_its_text() -> None:
    found: list[str] = []
    for file in (each for package in ("actors", "server") for each in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and LOGGING.fullmatch(ast.unparse(node.func)):
                named = [ast.unparse(value) for value in node.args[1:]]
                found += [f"{file}:{node.lineno}" for text in named if re.search(r"(^|[._])id_?$", text)]
    assert not found
