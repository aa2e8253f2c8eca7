"""`make soak`: rounds of work, kills and checks for so many minutes; goes on where an earlier one stopped.

Prints a line for each round and writes reports/soak.json. Ends with 1 if anything was wrong, and keeps the state then.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from pathlib import Path

from msgspec import to_builtins

from tests.bench.figures import ROOT, machine
from tests.soak.rounds import ServerOutcome, Soak

ROUND_SECONDS = 45.0
KILL_EVERY = (2.0, 6.0)
STATE = ROOT / ".soak"
REPORT = ROOT / "reports" / "soak.json"


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit("soak: interrupted; `make soak` goes on after the last whole round"))
    options = _options()
    state: Path = options.state
    done = state / "soak.json"
    if options.fresh:
        shutil.rmtree(state, ignore_errors=True)
    before = json.loads(done.read_text()) if done.exists() else {"seed": options.seed, "rounds": []}
    soak = Soak(state, before["seed"])
    rounds = [*before["rounds"]]
    until = time.monotonic() + options.minutes * 60
    while time.monotonic() < until:
        outcome = soak.round(len(rounds) + 1, min(ROUND_SECONDS, max(5.0, until - time.monotonic())), KILL_EVERY)
        rounds.append(to_builtins(outcome))
        _show(outcome)
        done.write_text(json.dumps({"seed": before["seed"], "rounds": rounds}))
    last = soak.check_everything()
    wrong = [text for each in rounds for text in each["wrong"]] + last.wrong
    _write(before["seed"], rounds, wrong)
    print(f"soak: {len(rounds)} rounds, {last.conversations} conversations looked at again, {len(wrong)} things wrong")
    for text in wrong[:50]:
        print(f"  {text}")
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--state", type=Path, default=STATE, help="where it goes on from")
    parser.add_argument("--fresh", action="store_true", help="begin from nothing")
    return parser.parse_args()


def _show(outcome: ServerOutcome) -> None:
    print(
        f"round {outcome.number}: {outcome.seconds:.0f} s, {outcome.kills} kills, {sum(outcome.accepted.values())} "
        f"messages in {outcome.conversations} conversations, {outcome.deleted} deleted, {outcome.sub_agents} "
        f"sub-agents, {outcome.requests} requests, {outcome.steps} steps replayed: {len(outcome.wrong)} wrong",
        flush=True,
    )
    for text in outcome.wrong[:20]:
        print(f"  {text}", flush=True)


def _write(seed: int, rounds: list[dict[str, object]], wrong: list[str]) -> None:
    def total(name: str) -> float:
        return round(sum(each[name] for each in rounds), 1)  # type: ignore[misc]

    counted = ("seconds", "kills", "requests", "conversations", "sub_agents", "deleted", "events", "steps")
    accepted: dict[str, int] = {}
    for each in rounds:
        for kind, count in each["accepted"].items():  # type: ignore[attr-defined]
            accepted[kind] = accepted.get(kind, 0) + count
    report = {
        **machine(),
        "date": time.strftime("%Y-%m-%d"),
        "seed": seed,
        "rounds": len(rounds),
        **{name: total(name) for name in counted},
        "accepted": accepted,
        "wrong": wrong,
    }
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
