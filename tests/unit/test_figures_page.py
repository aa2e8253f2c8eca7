"""docs/figures.md and the figures of README.md are what their generator writes from docs/figures.json."""

import json
from typing import Any

from tests.bench.goals import GOALS, judged
from tests.documents.pages import README
from tests.generate.figure_rows import FIGURES
from tests.generate.figures import CLUSTER, DATA, PAGE, collected, render, render_cluster, render_readme

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
    + [{"name": "peers: LangGraph + SQLite 2.0", "not_run": "needs Python 3.12 to 3.13"}],
}
CLUSTER_REPORT = {
    **MACHINE,
    "figures": [
        {
            "name": "cluster: 1 node, called itself",
            "value": 81.6,
            "cpu_ms": 9.04,
            "database_cpu_ms": 1.11,
            "commits": 0.9,
            "idle_percent": 2.0,
        },
        {"name": "cluster: LangGraph + PostgreSQL 1.0", "value": 20.4, "cpu_ms": 30.0, "idle_percent": 40.0},
    ],
}


def test_the_pages_are_what_the_generator_writes() -> None:
    assert render(DOCUMENT) == PAGE.read_text(encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    assert render_readme(readme, DOCUMENT) == readme
    cluster = CLUSTER.read_text(encoding="utf-8")
    assert render_cluster(cluster, DOCUMENT) == cluster


def test_every_figure_is_one_that_the_generator_knows() -> None:
    assert DOCUMENT["figures"].keys() <= {figure.label for figure in FIGURES}
    assert DOCUMENT["goals"].keys() <= {goal.label for goal in GOALS}
    assert len({figure.label for figure in FIGURES}) == len(FIGURES)


def test_a_report_replaces_the_figures_that_it_holds() -> None:
    label = "start to ready; memory at rest"
    after = collected(DOCUMENT, REPORT, {}, {}, {}, {})
    assert after["figures"][label] == {"measured": "0.50 s; 50 MiB", **MACHINE}
    assert {name: row for name, row in after["figures"].items() if name != label} == {
        name: row for name, row in DOCUMENT["figures"].items() if name != label
    }
    assert f"| {label} | 0.50 s; 50 MiB | 1 cores of Z80, abcdef1, 2030-01-02, load 0.1 |\n" in render(after)
    assert f"| {label} | 0.50 s; 50 MiB |\n" in render_readme(README.read_text(encoding="utf-8"), after)


def test_what_the_generator_does_not_know_any_more_is_dropped() -> None:
    after = collected({"figures": {"gone": {}}, "goals": {"gone": {}}}, {}, {}, {}, {}, {})
    assert (after["figures"], after["goals"]) == ({}, {})


def test_goals_are_compared_with_the_measured_values() -> None:
    goals = collected(DOCUMENT, REPORT, PEERS, CLUSTER_REPORT, {}, {})["goals"]
    assert goals["start to ready"] == {"wanted": "≤ 0.4 s", "measured": "0.5 s", "reached": False, **MACHINE}
    assert goals["memory at rest"]["reached"] is True
    assert goals["the same, times LangGraph with SQLite"]["measured"] == "3"
    assert goals["the same, times LangGraph with SQLite"]["reached"] is True
    assert goals["turns a second of a node on PostgreSQL, times LangGraph with its PostgreSQL saver"]["measured"] == "4"
    assert judged({}) == {}


def test_a_program_that_could_not_be_run_says_what_it_needs() -> None:
    page = render(collected(DOCUMENT, {}, PEERS, {}, {}, {}))
    assert "| LangGraph + SQLite 1.0 | 30.0 | 0.1 | 9 ms (4 times) | 90 MiB | 0.30 s | 1 cores of Z80" in page
    assert "| LangGraph + SQLite 2.0 | not run: needs Python 3.12 to 3.13 |" in page


def test_what_nodes_cost_is_said_where_clusters_are_explained() -> None:
    missing = [{"name": "cluster: LangGraph + PostgreSQL 2.0", "not_run": "needs an installation"}]
    report = {**MACHINE, "figures": CLUSTER_REPORT["figures"] + missing}  # type: ignore[operator]
    page = render_cluster(CLUSTER.read_text(encoding="utf-8"), collected(DOCUMENT, {}, {}, report, {}, {}))
    assert "| 1 node, called itself | 82 | 9 ms |  | 1.1 ms | 0.9 | 2 % | 1 cores of Z80" in page
    assert "| LangGraph + PostgreSQL 1.0 | 20 | 30 ms |  |  |  | 40 % | 1 cores of Z80" in page
    assert "| LangGraph + PostgreSQL 2.0 | not run: needs an installation |" in page


def test_what_failures_cost_is_said_there_too() -> None:
    faults = {**MACHINE, "figures": [{"name": "faults: cancel at another node → tool dead", "p99": 27}]}
    soak = {**MACHINE, "disturbances": {"kill": 3.0, "blink": 1.0}, "longest_pause_seconds": {"kill": 4.21, "": 0.5}}
    after = collected(DOCUMENT, {}, {}, {}, faults, soak)
    page = render_cluster(CLUSTER.read_text(encoding="utf-8"), after)
    assert (
        "| cancel at a node that does not own → every process of the tool dead, p99 | ≤ 100 ms | 27 ms | yes | 1"
        in page
    )
    assert "| kill | 3 | 4.2 s | 1 cores of Z80" in page
    assert collected(after, {}, {}, {}, {}, {}) == after
