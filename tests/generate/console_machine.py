"""Write clients/console/machine.json, the state diagram of the console, from the core: `make core-readme`."""

import json
from pathlib import Path

from tests.generate.core_readme import STATES, verdicts

TARGET = Path(__file__).parents[2] / "clients" / "console" / "machine.json"
HIDDEN = frozenset({"Restart", "InternalFault"})
"""Events that lead from nearly everywhere to the same states: arrows for them would hide the others."""


def render() -> str:
    """Return the states, the arrows between them with their events, and the whole matrix."""
    matrix: dict[str, dict[str, list[str]]] = {}
    arrows: dict[tuple[str, str], list[str]] = {}
    for (event, state), found in verdicts().items():
        matrix.setdefault(event, {})[state] = sorted(found)
        for after in STATES:
            if after in found and event not in HIDDEN:
                arrows.setdefault((state, after), []).append(event)
    edges = [{"from": before, "to": after, "events": events} for (before, after), events in sorted(arrows.items())]
    return json.dumps({"states": STATES, "edges": edges, "matrix": matrix}, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
