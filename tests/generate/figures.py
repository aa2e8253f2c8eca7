"""Write docs/figures.md, and the figures of README.md, from reports/bench.json: `make figures`.

A figure that the report lacks keeps what the page says of it, with the machine it was measured on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.documents.pages import README, ROOT, section, table

TARGET = ROOT / "docs" / "figures.md"
HEADING = "## Figures"
HEAD = """\
# Figures

`make bench` measures all of this on your machine in about ten minutes, clients and a model provider on the same cores,
prints a line each with its percentiles, and writes `reports/bench.json`. `make figures` writes this page and the
figures of the [README](../README.md) from that. A row says which machine and commit it is of.

| figure | measured | on |
|---|---|---|
"""

WAYS = {
    "PID namespace": "unrestricted",
    "subreaper": "unrestricted",
    "Tier A": "restricted by namespaces",
    "Tier B": "restricted by Landlock and seccomp",
}
"""The ways to run a tool: as reports name them, and in words."""

Reported = Mapping[str, Mapping[str, Any]]
"""The figures of a report by their names."""


class Figure(NamedTuple):
    """A row of the page."""

    label: str
    say: Callable[[Reported], str]
    """What was measured, in words. Raises KeyError where the report lacks it."""
    in_readme: bool = False


def _spread(figure: Mapping[str, Any]) -> str:
    return f"p50 {figure['p50']:,.3g} ms, p99 {figure['p99']:,.3g} ms"


def _store(reported: Reported) -> str:
    one, many = (reported[f"store: durable transitions, {count} conversations"] for count in (1, 64))
    return f"1 conversation: {one['value']:,}/s, {_spread(one)}; 64: {many['value']:,}/s, {_spread(many)}"


def _turns(reported: Reported) -> str:
    turns = reported["turns: 50 conversations"]
    above = reported["turns: CPU per turn above floor, 50"]["value"]
    return f"{turns['value']}/s, {turns['ratio_to_floor']} of bare threads and requests; {above} ms CPU above them"


def _added(reported: Reported) -> str:
    added = reported["turns: added latency, 100 streaming"]
    return f"p50 {added['p50'] / 1000:.2f} s (bare threads: {added['floor_p50'] / 1000:.2f} s)"


def _killed(*ways: str) -> Callable[[Reported], str]:
    def say(reported: Reported) -> str:
        rows = ((way, reported[f"tool killed → tree verified dead, {way}"]) for way in ways)
        return "; ".join(
            f"{WAYS[way]}: {_spread(row)}, {row['survivors']} survivors of {row['n']:,}" for way, row in rows
        )

    return say


def _started(reported: Reported) -> str:
    ways = ("PID namespace", "Tier A", "Tier B")
    return "; ".join(f"{WAYS[way]} {_spread(reported[f'tool start to end, {way}'])}" for way in ways)


def _aborts(reported: Reported) -> str:
    rows = [row for name, row in reported.items() if name.startswith("abort of a model request")]
    if not rows:
        raise KeyError("abort")
    slowest, hangs, times = (
        max(row["max"] for row in rows),
        sum(row["hangs"] for row in rows),
        sum(r["n"] for r in rows),
    )
    return f"p50 ≤ {max(row['p50'] for row in rows):.2g} ms, slowest {slowest:.3g} ms, {hangs} hangs of {times:,}"


def _flood(reported: Reported) -> str:
    cancel, memory = (
        reported["flood: cancel → idle seen, 100 watchers"],
        reported["flood: memory while three read nothing"],
    )
    return f"cancel → idle seen {_spread(cancel)}; {memory['most']:.3g} MiB more memory"


def _stored(reported: Reported) -> str:
    name = "100,000 stored"
    memory = reported[f"{name}: start to ready"]["rss_mib"]
    parked, awake = (reported[f"{name}: a change of {which}"]["p50"] for which in ("a parked one", "one that is awake"))
    return f"{memory:.0f} MiB; a change of a parked one p50 {parked:.2g} ms, of one that is awake {awake:.2g} ms"


def _memory(reported: Reported) -> str:
    name, row = next(((name, row) for name, row in reported.items() if name.startswith("memory after")), ("", {}))
    return f"{row['at_first']:.0f} MiB at first, {row['value']:.0f} MiB after {name.split()[2]}"


FIGURES = (
    Figure(
        "the pure core",
        lambda of: (
            f"{of['core: transitions']['value']:,} transitions/s of CPU; "
            f"{of['core: CPU per turn with two tools']['value']:.0f} µs for a turn with two tools"
        ),
    ),
    Figure("durable transitions, `synchronous=FULL`", _store, in_readme=True),
    Figure("turns (two streamed answers, two tools, a watcher on each), 50 conversations", _turns),
    Figure("added latency per turn, 100 conversations at 20 ms a chunk", _added),
    Figure(
        "one conversation's events to 100 watchers",
        lambda of: (
            f"live {of['fan-out: live, 100 watchers']['value']:,}/s, "
            f"from the log {of['fan-out: replay, 100 watchers']['value']:,}/s"
        ),
    ),
    Figure("a change → 100 watchers, ten a second", lambda of: _spread(of["fan-out: paced, change → watcher"])),
    Figure(
        "cancel → idle seen by a watcher",
        lambda of: (
            f"model streaming: {_spread(of['cancel → idle seen, model streaming'])}; "
            f"tool running: {_spread(of['cancel → idle seen, tool running'])}"
        ),
        in_readme=True,
    ),
    Figure("the same behind 500 waiting messages", lambda of: _spread(of["cancel → idle seen, 500 messages waiting"])),
    Figure(
        "tool killed → whole tree verified dead, fork storms and daemons included",
        _killed("PID namespace", "Tier A"),
        in_readme=True,
    ),
    Figure("the same where namespaces are forbidden", _killed("subreaper", "Tier B")),
    Figure("tool start to end, `bash -c :`", _started),
    Figure("abort of a model request in any phase, plain and TLS", _aborts, in_readme=True),
    Figure(
        "ten sub-agents at the same time, against one",
        lambda of: (
            f"{of['agents: ten at the same time, 20 ms a piece']['longer_percent']:.0f} % longer "
            "at 20 ms a chunk of text"
        ),
    ),
    Figure("5,000 text deltas a second to 100 watchers, 3 of them not reading", _flood),
    Figure("5,000 idle watchers", lambda of: f"{of['watchers: memory of one of 5,000']['value']:.0f} KiB each"),
    Figure("100,000 stored conversations", _stored, in_readme=True),
    Figure("memory after many short conversations", _memory),
    Figure(
        "start to ready; memory at rest",
        lambda of: f"{of['start to ready']['p50']:.2f} s; {of['resident memory, idle']['p50']:.0f} MiB",
        in_readme=True,
    ),
)

Cells = Mapping[str, tuple[str, str]]
"""Of each figure by its label: what was measured, and where."""


def stored(page: str) -> Cells:
    """Return the figures that the page has."""
    return {label: (measured, where) for label, measured, where in table(page)}


def reported(report: Mapping[str, Any]) -> Cells:
    """Return those figures that a report of `make bench` holds."""
    named = {each["name"]: each for each in report["figures"]}
    where = f"{report['cores']} cores of {report['cpu']}, {report['commit']}"
    found: dict[str, tuple[str, str]] = {}
    for figure in FIGURES:
        try:
            found[figure.label] = (figure.say(named), where)
        except KeyError:
            continue
    return found


def render(cells: Cells) -> str:
    """Return the whole page."""
    return HEAD + "".join(f"| {figure.label} | {' | '.join(cells[figure.label])} |\n" for figure in FIGURES)


def render_readme(readme: str, cells: Cells) -> str:
    """Return the README with its figures as `cells` say."""
    old = "".join(line for line in section(readme, HEADING).splitlines(keepends=True) if line.startswith("|"))
    rows = (f"| {each.label} | {cells[each.label][0]} |\n" for each in FIGURES if each.in_readme)
    return readme.replace(old, "| figure | measured |\n|---|---|\n" + "".join(rows))


def main() -> None:
    cells = dict(stored(TARGET.read_text(encoding="utf-8")))
    report = ROOT / "reports" / "bench.json"
    if report.exists():
        cells |= reported(json.loads(report.read_text(encoding="utf-8")))
    TARGET.write_text(render(cells), encoding="utf-8")
    README.write_text(render_readme(README.read_text(encoding="utf-8"), cells), encoding="utf-8")


if __name__ == "__main__":
    main()
