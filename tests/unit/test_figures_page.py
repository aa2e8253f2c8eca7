"""docs/figures.md and the figures of README.md are what their generator writes from docs/figures.json."""

from __future__ import annotations

import json
from typing import Any

from tests.bench.goals import GOALS, judged
from tests.documents.pages import README
from tests.generate.figure_rows import FIGURES
from tests.generate.figures import DATA, PAGE, collected, render, render_readme

DOCUMENT: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
MACHINE = {"cpu": "Z80", "cores": 1, "load_before": 0.1, "date": "2030-01-02", "commit": "abcdef1"}
REPORT = {
    **MACHINE,
    "figures": [
        {"name": "start to ready", "p50": 0.5},
        {"name": "resident memory, idle", "p50": 50.0},
        {"name": "peers: not of this report", "value": 1},
    ],
}
PEERS = {
    **MACHINE,
    "figures": [
        {
            "name": f"peers: {name}",
            "value": rate,
            "of_threads": rate / 300,
            "cpu_ms": 9.0,
            "cpu_of_threads": 4.0,
            "rss_mib": 90,
            "added_p50_s": 0.3,
        }
        for name, rate in (("Bedrock", 90.0), ("LangGraph + SQLite 1.0", 30.0))
    ]
    + [{"name": "peers: OpenHands SDK 1.0", "not_run": "needs Python 3.12 to 3.13"}],
}


def test_the_page_and_the_readme_are_what_the_generator_writes() -> None:
    assert render(DOCUMENT) == PAGE.read_text(encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    assert render_readme(readme, DOCUMENT) == readme


def test_every_figure_is_one_that_the_generator_knows() -> None:
    assert DOCUMENT["figures"].keys() <= {figure.label for figure in FIGURES}
    assert DOCUMENT["goals"].keys() <= {goal.label for goal in GOALS}
    assert len({figure.label for figure in FIGURES}) == len(FIGURES)


def test_a_report_replaces_the_figures_that_it_holds() -> None:
    label = "start to ready; memory at rest"
    after = collected(DOCUMENT, REPORT, {})
    assert after["figures"][label] == {"measured": "0.50 s; 50 MiB", **MACHINE}
    assert {name: row for name, row in after["figures"].items() if name != label} == {
        name: row for name, row in DOCUMENT["figures"].items() if name != label
    }
    assert f"| {label} | 0.50 s; 50 MiB | 1 cores of Z80, abcdef1, 2030-01-02, load 0.1 |\n" in render(after)
    assert f"| {label} | 0.50 s; 50 MiB |\n" in render_readme(README.read_text(encoding="utf-8"), after)


def test_goals_are_compared_with_the_measured_values() -> None:
    goals = collected(DOCUMENT, REPORT, PEERS)["goals"]
    assert goals["start to ready"] == {"wanted": "≤ 0.4 s", "measured": "0.5 s", "reached": False, **MACHINE}
    assert goals["memory at rest"]["reached"] is True
    assert goals["the same, times LangGraph with SQLite"]["measured"] == "3"
    assert goals["the same, times LangGraph with SQLite"]["reached"] is True
    assert judged({}) == {}


def test_a_program_that_could_not_be_run_says_what_it_needs() -> None:
    page = render(collected(DOCUMENT, {}, PEERS))
    assert "| LangGraph + SQLite 1.0 | 30.0 | 0.1 | 9 ms (4 times) | 90 MiB | 0.30 s | 1 cores of Z80" in page
    assert "| OpenHands SDK 1.0 | not run: needs Python 3.12 to 3.13 |" in page
