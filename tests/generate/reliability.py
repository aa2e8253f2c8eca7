"""Write docs/reliability.md: what is promised, against which faults, by which suite, and how much of it was run.

The figures are those of reports/soak.json, reports/cluster-soak.json and reports/fault.json. A suite without a report
keeps the figures that the page has of it.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "reliability.md"
NOT_RUN = "not run at length for this page"

HEAD = """\
# Reliability

Bedrock's promises under failure, and the suites that test them. `make test` runs a short version of every suite on each
change, `make cluster-e2e` that for nodes. `make soak`, `make cluster` and `make fault` are the long runs, with results
below. `make reliability` writes this page from their reports.

| promise | faults | suite | long run | found wrong | date | commit |
|---|---|---|---|---|---|---|
"""

TAIL = """
## What a soak does

`make soak` (ten minutes; `MINUTES=60`, `SEED=7`; it continues an earlier one, `FRESH=1` starts over) works in rounds.
In each, clients of every kind work at the same time: the Python client, blocking and with asyncio, plain gRPC, `bedrock
ask`, `bedrock chat` at a terminal, and the Node client where its packages are installed. They send, steer, queue,
cancel, approve and deny, change modes and titles, delete, start sub-agents, and run tools that fork away. Meanwhile the
server is killed with SIGKILL every two to six seconds and started again over the same data. Each client records its
calls and the server's answers in its own file.

Then the soak waits until everything is idle, and compares the records with the server's data, using only public calls:

* every accepted message exists once, in order, or has a fate; refused ones do not exist;
* every event that a watcher received is in the log, unchanged; revisions have no gap;
* titles are the acknowledged ones; deleted conversations are unknown and not listed;
* every conversation and sub-agent is idle, its history is valid, `VerifyConversation` and `ReplayConversation` find
  nothing;
* the provider never got an invalid request, or the same message twice;
* no tool call ran twice, and no process outlives a kill of the server, a cancel or the stop.

At the end of a run all rounds are checked once more.

## What no suite covers

Power loss is not among the faults here: every commit is synced to the disk (`synchronous=FULL`), the rest is up to the
disk. The suites find tool processes by a mark in their environment or arguments, which a tool could erase;
[security.md](security.md) explains what confines such tools.
"""


class Suite(Struct, frozen=True):
    """A row of the page."""

    key: str
    """In the report; empty for one that has no long run."""
    promise: str
    faults: str
    where: tuple[str, ...]
    """Files or folders of the tests."""
    make: str = ""
    """What runs it at length."""


SUITES = (
    Suite(
        "soak",
        "nothing acknowledged is lost, doubled, reordered or left running",
        "SIGKILL of the server every few seconds, under clients of every kind",
        ("tests/soak/test_soak.py",),
        "make soak",
    ),
    Suite(
        "cluster",
        "nodes that share a database lose nothing acknowledged, and none writes what it does not own",
        "SIGKILL, SIGSTOP, lost packets, cut and slow connections, late commits, set clocks; PostgreSQL crashes, is "
        "locked, or has no room",
        ("tests/soak/test_cluster.py", "tests/e2e/test_cluster.py"),
        "make cluster",
    ),
    Suite(
        "machine",
        "the laws of the machine hold from every state, along every walk",
        "events in any order: late, twice, or never",
        ("tests/property",),
        "make fault PARTS=machine",
    ),
    Suite(
        "kill",
        "nothing that a tool started survives its cancel, or the server",
        "process trees that try to get away; SIGKILL of the server",
        ("tests/integration/sandbox/test_kill_many.py", "tests/e2e/test_server_killed.py"),
        "make fault PARTS=kill",
    ),
    Suite(
        "watch",
        "a resumed stream has no gap and no duplicate",
        "cut streams, slow readers, killed servers, pruned logs, commits at the same moment",
        ("tests/integration/server/test_watch_laws.py", "tests/e2e/test_watch_laws.py"),
        "make fault PARTS=watch",
    ),
    Suite(
        "agents",
        "no sub-agent outlives its parent's run",
        "cancels and SIGKILL at any instant",
        ("tests/integration/actors/test_sub_agents_stopped.py", "tests/e2e/test_sub_agents.py"),
        "make fault PARTS=agents",
    ),
    Suite(
        "mcp",
        "a cancelled call of an MCP server's tool has one result, and the server continues",
        "cancels at random moments",
        ("tests/integration/mcp/test_servers.py", "tests/e2e/test_mcp.py"),
        "make fault PARTS=mcp",
    ),
    Suite(
        "client-tools",
        "a call of a client's tool has one end and one result",
        "cancels at any instant, while a client answers",
        ("tests/integration/actors/test_client_tools.py",),
        "make fault PARTS=client-tools",
    ),
    Suite(
        "principals",
        "nothing of one principal comes to another through any call, nor to its tools",
        "calls of every method whose fields name what is another one's; tools that try to read, change and signal it",
        ("tests/e2e/test_principals.py", "tests/integration/sandbox/test_separation.py"),
        "make fault PARTS=principals",
    ),
    Suite(
        "races",
        "patch writes nothing outside of its directory, and of parallel patches that were applied none is lost",
        "directories exchanged for links meanwhile; eight writers on two nodes, in each mode",
        ("tests/integration/tools/test_patch_race.py", "tests/integration/tools/test_parallel_patches.py"),
        "make fault PARTS=races",
    ),
    Suite(
        "sandbox",
        "a restricted tool changes nothing and has no network",
        "attacks from inside, as root and as another user",
        ("tests/fault",),
        "make fault PARTS=sandbox",
    ),
    Suite(
        "aborts",
        "a cancelled model request ends in every phase, and its connection serves no other",
        "cancels while connecting, sending and reading, plain, TLS and through proxies, on kept connections too",
        ("tests/unit/llm/test_abort.py",),
        "make fault PARTS=aborts",
    ),
    Suite(
        "providers",
        "a provider that does harm affects only its own run: memory is bounded, and others continue",
        "64 kinds of answers, eight at a time: broken, endless, slow, huge, compressed, nested, contradictory",
        ("tests/e2e/test_hostile_providers.py",),
        "make fault PARTS=providers",
    ),
    Suite(
        "http",
        "a stream over HTTP that is resumed has no gap and no duplicate, and no call is answered with 5xx",
        "streams cut at any byte, SIGKILL of gateway and server; made-up calls; attacks of strangers",
        ("tests/e2e/test_http.py", "tests/peers/test_front_ends.py"),
        "make fault PARTS=http",
    ),
    Suite(
        "suite",
        "a test run that is killed leaves nothing that troubles the next one",
        "SIGKILL of the test run at random moments",
        ("tests/fault/interrupted_suite.py", "tests/unit/test_leftovers.py"),
        "make fault PARTS=suite",
    ),
    Suite(
        "",
        "a commit is whole or not at all, and durable before it is acknowledged",
        "SIGKILL while committing, full disks, damaged files, failing reads",
        ("tests/integration/store/test_peewee_store.py", "tests/integration/store/test_writer.py"),
    ),
    Suite(
        "",
        "nothing is acknowledged into a removed file, and no second server starts",
        "database, log, directory or lock file removed or replaced while the server runs",
        ("tests/integration/store/test_files_taken_away.py",),
    ),
    Suite(
        "",
        "a deletion blocks no other work, survives a crash, and frees a full disk",
        "stops and failures between its slices, a disk without room",
        ("tests/integration/store/test_removal.py",),
    ),
    Suite(
        "",
        "a backup is whole and proven, a restore puts back what was written",
        "SIGKILL of either, writers meanwhile, damaged rows",
        ("tests/integration/store/test_backup.py", "tests/e2e/test_backup.py"),
    ),
)

Figures = tuple[str, str, str, str]
"""The last four cells: long run, found wrong, date, commit."""


def render(figures: Mapping[str, Figures]) -> str:
    """The page, with the figures of each suite that has any."""
    return HEAD + "".join(_row(suite, figures.get(suite.key)) for suite in SUITES) + TAIL


def _row(suite: Suite, figures: Figures | None) -> str:
    links = ", ".join(f"[{where.removeprefix('tests/').removesuffix('.py')}](../{where})" for where in suite.where)
    how = f"{links}; `{suite.make}`" if suite.make else links
    cells = figures if suite.key and figures else (NOT_RUN if suite.key else "in `make test` only", "", "", "")
    return f"| {' | '.join((suite.promise, suite.faults, how, *cells))} |\n"


def stored(page: str) -> dict[str, Figures]:
    """The figures that a page has."""
    found: dict[str, Figures] = {}
    for suite in SUITES:
        row = re.search(rf"^\| {re.escape(suite.promise)} \|(.*)\|$", page, re.MULTILINE)
        cells = tuple(cell.strip() for cell in row[1].split("|")[2:]) if row else ()
        if suite.key and len(cells) == 4 and cells[0] != NOT_RUN:
            found[suite.key] = (cells[0], cells[1], cells[2], cells[3])
    return found


def reported(reports: Path) -> dict[str, Figures]:
    """The figures of the reports that are there."""
    found: dict[str, Figures] = {}
    if (reports / "soak.json").exists():
        found["soak"] = _soak(json.loads((reports / "soak.json").read_text()))
    if (reports / "cluster-soak.json").exists():
        found["cluster"] = _cluster(json.loads((reports / "cluster-soak.json").read_text()))
    if (reports / "fault.json").exists():
        for part, each in json.loads((reports / "fault.json").read_text()).items():
            amounts = ", ".join(f"{count:,} {name.lower()}" for name, count in each["amounts"].items()) or "all"
            found[part] = (amounts, "0", each["date"], each["commit"])
    return found


def _soak(report: dict[str, Any]) -> Figures:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report["accepted"].items()))
    return _worked(report, f"{report['kills']:,.0f} kills", f"messages acknowledged ({kinds})")


def _cluster(report: dict[str, Any]) -> Figures:
    happened = ", ".join(f"{count:,.0f} {kind}" for kind, count in sorted(report["disturbances"].items()))
    without = "; ".join(f"without {what}: {why}" for what, why in report["without"].items() if why)
    pause = max(report["longest_pause_seconds"].values(), default=0.0)
    told = f"longest pause of a conversation {pause:.1f} s; load {report['load_before']}"
    amount, *rest = _worked(
        report, f"{sum(report['disturbances'].values()):,.0f} times ({happened})", "messages acknowledged"
    )
    return "; ".join(each for each in (amount, told, without) if each), rest[0], rest[1], rest[2]


def _worked(report: dict[str, Any], troubles: str, messages: str) -> Figures:
    """`troubles`: what was done to the servers; `messages`: what these were."""
    amount = (
        f"{report['rounds']} rounds, {report['seconds'] / 60:.0f} min of work; {troubles}; "
        f"{sum(report['accepted'].values()):,.0f} {messages} in {report['conversations']:,.0f} "
        f"conversations and {report['sub_agents']:,.0f} sub-agents; {report['deleted']:,.0f} deleted; "
        f"{report['requests']:,.0f} requests; {report['events']:,.0f} events compared; {report['steps']:,.0f} steps "
        f"replayed; seed {report['seed']}"
    )
    return amount, str(len(report["wrong"])), report["date"], report["commit"]


def main() -> None:
    before = stored(TARGET.read_text(encoding="utf-8")) if TARGET.exists() else {}
    TARGET.write_text(render({**before, **reported(ROOT / "reports")}), encoding="utf-8")


if __name__ == "__main__":
    main()
