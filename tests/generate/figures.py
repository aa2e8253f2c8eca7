"""Write docs/figures.json from the reports of bench, bench-peers, bench-cluster, cluster-faults and cluster, and from
that docs/figures.md and the figures of README.md and docs/cluster.md: `make figures`.

A figure that the reports lack keeps what docs/figures.json says of it, with the machine it was measured on.
"""

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from tests.bench.goals import FAULT_GOALS, GOALS, judged
from tests.documents.pages import README, ROOT, section
from tests.generate.figure_rows import FIGURES

DATA = ROOT / "docs" / "figures.json"
PAGE = ROOT / "docs" / "figures.md"
CLUSTER = ROOT / "docs" / "cluster.md"
REPORTS = ROOT / "reports"
HEADING = "## Figures"
CLUSTER_HEADING = "## What it costs"
HEAD = """\
# Figures

`make bench` measures all of this on your machine in about twelve minutes, clients and a model provider on the same
cores, prints a line each with its percentiles, and writes `reports/bench.json`; `make bench-peers` writes
`reports/peers.json`, `make bench-cluster` `reports/cluster.json`, and `make cluster-faults`
`reports/cluster-faults.json`. `make figures` writes `figures.json` from these, and from that this page, the figures of
the [README](../README.md) and [those of clusters](cluster.md#what-it-costs). A row says which machine and commit it is
of: machines of one name differ in speed by a factor of two, so compare ratios, or rows of one date. What is compared
is measured in three interleaved rounds, of which the medians count.

| figure | measured | on |
|---|---|---|
"""
GOALS_HEAD = """
## Goals

| goal | wanted | measured | reached | on |
|---|---|---|---|---|
"""
PEERS_HEAD = """
## Other programs

The same turns (two streamed answers, two tools) by LangGraph, and by bare threads, which keep nothing, stream to nobody
and cannot be cancelled: 50 conversations without a pause, 100 at 20 ms a piece of text. Bodies have a length instead of
chunks, which is the least work for all.

| program | turns/s | of bare threads | CPU of a turn | memory | added p50 at 20 ms a piece | on |
|---|---|---|---|---|---|---|
"""

FAULTS_HEADING = "## What failures cost"
FAULTS_HEAD = """\
| | wanted | measured | reached | on |
|---|---|---|---|---|
"""
PAUSES_HEAD = """\
| what happened | times | longest pause | on |
|---|---|---|---|
"""
CLUSTER_HEAD = """\
| | turns/s | CPU of a turn | passing it on | PostgreSQL | commits | CPU that nobody used | on |
|---|---|---|---|---|---|---|---|
"""

Document = dict[str, Any]
"""The content of docs/figures.json: figures and goals by their labels, other programs and nodes by their names."""


def collected(  # noqa: PLR0917 -- the reports
    document: Document,
    report: Mapping[str, Any],
    peers: Mapping[str, Any],
    cluster: Mapping[str, Any],
    faults: Mapping[str, Any],
    soak: Mapping[str, Any],
) -> Document:
    """Return the document with what the reports hold; each may be empty."""
    figures = {**document.get("figures", {}), **_figures(report)}
    goals = {**document.get("goals", {}), **_goals(report), **_goals(peers), **_goals(cluster), **_goals(faults)}
    return {  # without the labels that are gone
        "figures": {figure.label: figures[figure.label] for figure in FIGURES if figure.label in figures},
        "goals": {goal.label: goals[goal.label] for goal in GOALS if goal.label in goals},
        "peers": _rows_of("peers: ", peers) or document.get("peers", {}),
        "cluster": _rows_of("cluster: ", cluster) or document.get("cluster", {}),
        "pauses": _pauses(soak) or document.get("pauses", {}),
    }


def _named(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {row["name"]: row for row in report.get("figures", ())}


def _where(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a figure depends on."""
    return {name: report.get(name) for name in ("cpu", "cores", "load_before", "date", "commit")}


def _figures(report: Mapping[str, Any]) -> Document:
    found: Document = {}
    for figure in FIGURES:
        try:
            found[figure.label] = {"measured": figure.say(_named(report)), **_where(report)}
        except KeyError:
            continue
    return found


def _goals(report: Mapping[str, Any]) -> Document:
    return {label: row | _where(report) for label, row in judged(_named(report)).items()}


def _rows_of(prefix: str, report: Mapping[str, Any]) -> Document:
    return {name.removeprefix(prefix): {**row, **_where(report)} for name, row in _named(report).items()}


def _pauses(soak: Mapping[str, Any]) -> Document:
    """Return for how long a conversation took no command at most, by what happened to the nodes meanwhile."""
    longest = soak.get("longest_pause_seconds", {})
    return {
        kind: {"times": round(times), "pause": f"{longest[kind]:.1f} s", **_where(soak)}
        for kind, times in soak.get("disturbances", {}).items()
        if kind in longest
    }


def render(document: Document) -> str:
    """Return the whole page."""
    figures, goals, peers = document["figures"], document["goals"], document["peers"]
    page = HEAD + _table([each.label for each in FIGURES], figures, "measured")
    if goals:
        page += GOALS_HEAD + _table([each.label for each in GOALS], goals, "wanted", "measured", "reached")
    if peers:
        shown = {name: _peer(row) for name, row in peers.items()}
        page += PEERS_HEAD + _table(list(shown), shown, "rate", "share", "turn", "memory", "added")
    return page


def _table(labels: list[str], rows: Mapping[str, Mapping[str, Any]], *fields: str) -> str:
    """Return the rows that there are, in the order of the labels, each with the machine that it is of."""
    return "".join(
        f"| {' | '.join([label, *(_cell(rows[label][field]) for field in fields), _on(rows[label])])} |\n"
        for label in labels
        if label in rows
    )


def _cell(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _on(row: Mapping[str, Any]) -> str:
    """Return the machine, commit, date and load that a row has."""
    load = row.get("load_before")
    rest = [row.get("commit"), row.get("date"), None if load is None else f"load {load}"]
    return ", ".join([f"{row['cores']} cores of {row['cpu']}", *(each for each in rest if each)])


def _peer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of another program."""
    if "not_run" in row:
        return {"rate": f"not run: {row['not_run']}", **dict.fromkeys(("share", "turn", "memory", "added"), ""), **row}
    return {
        "rate": f"{row['value']:,}",
        "share": row["of_threads"],
        "turn": f"{row['cpu_ms']:.3g} ms ({row['cpu_of_threads']:g} times)",
        "memory": f"{row['rss_mib']:.0f} MiB",
        "added": f"{row['added_p50_s']:.2f} s",
        **row,
    }


def render_readme(readme: str, document: Document) -> str:
    """Return the README with the figures of the document."""
    old = "".join(line for line in section(readme, HEADING).splitlines(keepends=True) if line.startswith("|"))
    figures = document["figures"]
    rows = (f"| {each.label} | {figures[each.label]['measured']} |\n" for each in FIGURES if each.in_readme)
    return readme.replace(old, "| figure | measured |\n|---|---|\n" + "".join(rows))


def render_cluster(page: str, document: Document) -> str:
    """Return the page about clusters with the figures of the document."""
    shown = {name: _node(row) for name, row in document["cluster"].items()}
    page = page.replace(_tables(page, CLUSTER_HEADING)[0], CLUSTER_HEAD + _table(list(shown), shown, *_NODE_CELLS))
    faults, pauses = _tables(page, FAULTS_HEADING)
    goals, labels = document["goals"], [goal.label for goal in GOALS if goal.label in FAULT_GOALS]
    page = page.replace(faults, FAULTS_HEAD + _table(labels, goals, "wanted", "measured", "reached"))
    return page.replace(pauses, PAUSES_HEAD + _table(list(document["pauses"]), document["pauses"], "times", "pause"))


def _tables(page: str, heading: str) -> list[str]:
    """Return the tables of a section."""
    lines = section(page, heading).splitlines(keepends=True)
    return ["".join(rows) for is_row, rows in groupby(lines, lambda line: line.startswith("|")) if is_row]


_NODE_CELLS = ("rate", "turn", "passing", "database", "writes", "idle")


def _node(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of some nodes, or of another program."""
    if "not_run" in row:
        return {**dict.fromkeys(_NODE_CELLS, ""), **row, "rate": f"not run: {row['not_run']}"}
    return {
        **row,
        "rate": f"{row['value']:.0f}",
        "turn": _milliseconds(row, "cpu_ms"),
        "passing": _milliseconds(row, "forwarding_cpu_ms"),
        "database": _milliseconds(row, "database_cpu_ms"),
        "writes": row.get("commits", ""),
        "idle": f"{row['idle_percent']:.0f} %",
    }


def _milliseconds(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:.2g} ms" if name in row else ""


def _report(name: str) -> dict[str, Any]:
    path = REPORTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _faults() -> tuple[dict[str, Any], dict[str, Any]]:
    return _report("cluster-faults"), _report("cluster-soak")


def main() -> None:
    known = json.loads(DATA.read_text(encoding="utf-8"))
    document = collected(known, _report("bench"), _report("peers"), _report("cluster"), *_faults())
    DATA.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(render(document), encoding="utf-8")
    README.write_text(render_readme(README.read_text(encoding="utf-8"), document), encoding="utf-8")
    CLUSTER.write_text(render_cluster(CLUSTER.read_text(encoding="utf-8"), document), encoding="utf-8")


if __name__ == "__main__":
    main()
