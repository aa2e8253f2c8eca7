"""The rows of docs/figures.md, each a text made from the figures of a report."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.bench.goals import Reported

WAYS = {
    "PID namespace": "unrestricted",
    "subreaper": "unrestricted",
    "Tier A": "restricted by namespaces",
    "Tier B": "restricted by Landlock and seccomp",
}
"""The ways to run a tool: as reports name them, and in words."""


class Figure(NamedTuple):
    """A row of the page."""

    label: str
    say: Callable[[Reported], str]
    """Return the measured values as text. Raises KeyError where the report lacks one."""
    in_readme: bool = False


def _spread(figure: Mapping[str, Any]) -> str:
    return f"p50 {figure['p50']:,.3g} ms, p99 {figure['p99']:,.3g} ms"


def _beside_bare(figure: Mapping[str, Any]) -> str:
    """A spread, and that of a gRPC server that does nothing else."""
    bare = f"p50 {figure['floor_p50']:,.3g} ms, p99 {figure['floor_p99']:,.3g} ms"
    return f"{_spread(figure)} (a bare grpc.aio server: {bare})"


def _store(reported: Reported) -> str:
    one, many = (
        reported[f"store: durable transitions, {count} conversation{'s' if count > 1 else ''}"] for count in (1, 64)
    )
    return (
        f"1 conversation: {one['value']:,}/s, {_spread(one)}; 64: {many['value']:,}/s, {_spread(many)}, "
        f"{many['of_bare']} of a bare group commit of the same rows"
    )


def _turns(reported: Reported) -> str:
    turns = reported["turns: 50 conversations"]
    cpu = reported["turns: a turn's CPU, 50 conversations"]
    return (
        f"{turns['value']:.0f}/s, {turns['of_floor']} of bare threads and requests ({turns['floor']:.0f}/s); "
        f"{cpu['value']:.2g} ms CPU, {cpu['of_floor']:.2g} times theirs"
    )


def _sizes(reported: Reported) -> str:
    sizes = (1, 10, 50, 100, 200, 500)
    names = ((size, f"turns: {size} conversation{'s' if size > 1 else ''}") for size in sizes)
    return "; ".join(f"{size}: {reported[name]['value']:.0f}/s" for size, name in names)


def _added(reported: Reported) -> str:
    added = reported["turns: added latency, 100 streaming"]
    return f"p50 {added['p50'] / 1000:.2f} s (bare threads: {added['floor_p50'] / 1000:.2f} s)"


def _encrypted(reported: Reported) -> str:
    added = reported["turns: added latency, 100 streaming over TLS"]
    return f"p50 {added['p50'] / 1000:.2f} s, {added['cpu_ms']:.3g} ms CPU a turn"


def _bash(reported: Reported) -> str:
    turns = reported["turns: 50 conversations, bash for think"]
    return f"{turns['value']:.0f}/s, {turns['cpu_ms']:.2g} ms CPU"


def _history(reported: Reported) -> str:
    cpu = [reported[f"history: CPU per turn after {turns:,} turns"]["value"] for turns in (10, 100, 1_000, 2_000)]
    return ", ".join(f"{each:.3g}" for each in cpu) + " ms"


def _program(reported: Reported) -> str:
    return "; ".join(f"`{name}` {reported[name]['p50']:.0f} ms" for name in ("bedrock --help", "bedrock list"))


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


def _storm(name: str) -> Callable[[Reported], str]:
    """Return what says how callers fare during a storm, and how much memory the server takes."""

    def say(reported: Reported) -> str:
        ways = ("without a front", "behind Envoy")
        return "; ".join(f"{way}: {_fared(reported[f'way in: {name}, {way}'])}" for way in ways)

    return say


def _fared(row: Mapping[str, Any]) -> str:
    return (
        f"p50 {row['p50']:.1f} ms, p99 {row['p99']:,.0f} ms, new connections without an answer for at most "
        f"{row['outage_s']:.1f} s, {max(0, row['memory_mib']):.0f} MiB more memory, "
        f"{max(0, row['memory_left_mib']):.0f} MiB after 5 s"
    )


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
    Figure("the same, with other numbers of conversations", _sizes),
    Figure("the same with two processes (`bash -c :`) instead of two tools that only compute", _bash),
    Figure("added latency per turn, 100 conversations at 20 ms a chunk", _added),
    Figure("the same over TLS", _encrypted),
    Figure(
        "pieces of text a second, before half of the turns are 0.5 s late",
        lambda of: f"{of['pieces: most a second']['value']:,}",
    ),
    Figure("CPU of a turn after 10, 100, 1,000 and 2,000 turns of history", _history),
    Figure(
        "first turn after a restart, 5,000 messages of history",
        lambda of: f"{of['history: first turn after loading 5,000 messages']['value']:,.3g} ms",
    ),
    Figure(
        "one conversation's events to 100 watchers",
        lambda of: (
            f"live {of['fan-out: live, 100 watchers']['value']:,}/s "
            f"(a bare grpc.aio server: {of['fan-out: live, 100 watchers']['floor']:,}/s), "
            f"from the log {of['fan-out: replay, 100 watchers']['value']:,}/s"
        ),
    ),
    Figure("a change → 100 watchers, ten a second", lambda of: _beside_bare(of["fan-out: paced, change → watcher"])),
    Figure(
        "cancel → idle seen by a watcher",
        lambda of: (
            f"model streaming: {_spread(of['cancel → idle seen, model streaming'])}; "
            f"tool running: {_spread(of['cancel → idle seen, tool running'])}"
        ),
        in_readme=True,
    ),
    Figure(
        "the same behind 500 waiting messages", lambda of: _beside_bare(of["cancel → idle seen, 500 messages waiting"])
    ),
    Figure(
        "tool killed → whole tree verified dead, fork storms and daemons included",
        _killed("PID namespace", "Tier A"),
        in_readme=True,
    ),
    Figure("the same where namespaces are forbidden", _killed("subreaper", "Tier B")),
    Figure("tool start to end, `bash -c :`", _started),
    Figure("server killed → no process of its tools left", lambda of: _spread(of["server killed → no process left"])),
    Figure("abort of a model request in any phase, plain and TLS", _aborts, in_readme=True),
    Figure("5,000 text deltas a second to 100 watchers, 3 of them not reading", _flood),
    Figure("100,000 stored conversations", _stored, in_readme=True),
    Figure("memory after many short conversations", _memory),
    Figure(
        "start to ready; memory at rest",
        lambda of: f"{of['start to ready']['p50']:.2f} s; {of['resident memory, idle']['p50']:.0f} MiB",
        in_readme=True,
    ),
    Figure("memory with 100 conversations", lambda of: f"{of['resident memory, 100 conversations']['value']:.0f} MiB"),
    Figure("start-up of the program", _program),
    Figure("calls of clients while strangers reset calls at once", _storm("rapid reset")),
    Figure(
        "the same while they hold 1,100 connections that say nothing, at 1,024 open files", _storm("silent connections")
    ),
    Figure("the same with 300 connections that call nothing", _storm("idle connections")),
    Figure("the same with 20 requests of 32 MiB that stop before their end", _storm("stalled uploads")),
    Figure("the same with 5,000 calls whose request never ends", _storm("unfinished streams")),
    Figure("the same with 5,000 watches of the health service", _storm("health watches")),
)
