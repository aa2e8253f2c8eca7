"""The tables of what the server tells are what the code has, and so are the names in the rules for alarms."""

import ast
import logging
import re

import pytest

from actors.adapters.telemetry.metrics import METRICS
from actors.adapters.telemetry.observer import Observer
from actors.core.content import Usage
from actors.core.history import ProviderView
from actors.core.notifications import RunStop, StateChanged, StopReason
from actors.core.summary import StateSummary
from actors.ports import ModelRequest
from actors.ports.telemetry import AttemptEnd, AttemptStart, Rpc, ToolEnd, ToolStart
from actors.runtime.services import SystemClock
from tests.documents.pages import ROOT, section, table
from tests.support.commit_builder import record_of

LOGGING = re.compile(r"_?log\.(debug|info|warning|error|exception|critical|log)")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
RULES = (ROOT / "server" / "deploy" / "bedrock.rules.yml").read_text(encoding="utf-8")


def words(cell: str) -> tuple[str, ...]:
    """What a cell names in code spans, in order."""
    return tuple(cell.replace("`", "").split())


SCRAPED = re.findall(r"(?m)^# TYPE (\w+)", (ROOT / "tests/unit/telemetry/scrape.txt").read_text(encoding="utf-8"))
"""The names of all metrics, in their order."""


def test_the_lines_of_the_log_are_in_the_guide(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "actors")
    observer = Observer(SystemClock())
    for stream, command, outcome in (
        (True, False, "OK"),
        (False, True, "OK"),
        (False, False, "OK"),
        (False, True, "NOT_FOUND"),
    ):
        observer.rpc_ended(Rpc("SendMessage", "c", "p", "peer", "id", outcome, 1.0, stream, command))
    record = record_of("c", parent_conversation_id="parent", user_initiated=False)
    attempt, end = AttemptStart("c", "r", 1, "m", "p", "title"), AttemptEnd("ok", 1.0, 0.5, Usage(1, 1, 1, 1, 1))
    observer.published(record, [StateChanged(StateSummary("llm_requesting", run="c:1"), ())])
    observer.attempt_ended(attempt, end, ModelRequest("c", "r", 1, "", (), ProviderView(())), None)
    observer.tool_ended(ToolStart("c", "t", "bash"), ToolEnd("ok", 1.0), {}, "")
    observer.published(record, [RunStop("c:1", StopReason.ERROR, "detail")])
    plain = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime"}
    found = {line.getMessage(): tuple(name for name in line.__dict__ if name not in plain) for line in caplog.records}
    rows = table(section(OPERATIONS, "## Logs"))
    assert {line.strip("`"): words(fields) for line, _, fields in rows} == found


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
