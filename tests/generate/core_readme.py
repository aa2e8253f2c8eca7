"""Write actors/core/README.md from what `transition` does: `python -m tests.generate.core_readme`.

Every state of the machine, in every variant that the tests know, is asked about every event; nothing in the matrix
or the diagram is written by hand.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from actors.core import states
from actors.core.content import Delivery, Usage
from actors.core.context import Mode
from actors.core.errors import ErrorKind, Rejected
from actors.core.events import (
    Beside,
    CancelTimeout,
    GridEvent,
    InternalFault,
    JobChanged,
    McpRestarted,
    SetMode,
    UsageReported,
    UserMessage,
    WithdrawMessage,
)
from actors.core.summary import DIAGRAM_EDGES, EXTENSION_EDGES, ContextState
from actors.core.transition import transition
from tests.machine.columns import BASH_1, BASH_2, NOW, Column, agent, parent_columns, sub_agent_columns
from tests.machine.rows import ROWS, Case

TARGET = Path(__file__).parents[2] / "actors" / "core" / "README.md"
STATES = tuple(one.__name__ for one in get_args(states.State))
EVENTS = tuple(one.__name__ for one in (*get_args(GridEvent), *get_args(Beside)))
IGNORED, STAYS = "·", "stays"
WAITING = states.QueuedInput("m8", "next", (), NOW)

HEAD = """\
# The pure core

The state machine of a conversation: its data (`states.py`, `content.py`, `context.py`), what can happen (`events.py`),
what the machine orders (`effects.py`, `notifications.py`) and how it moves (`transition.py`, which begins with the
theory of operation). `rules/` has one function per state, `steps/` what several states do alike.

Beside the machine: `request_cycles.py` (the Request Cycle Model), `history/` (validity of a history, and the provider's
view of it), `approval.py` (approval rules and tool calls), `invariants.py` (a check of what a log says against the
rules), `tool_run.py` (the tool runner's own small machine), `summary.py` (a state as clients see it, and its path
through the Context Manager FSM).

Nothing in here waits, reads a clock, draws a random number, logs or does I/O; `lint-imports` and ruff enforce that.

Everything below is generated from the code by `make core-readme`; a test fails when it is out of date.
"""

LEFT_OUT = """\
Restart (to Idle, a sub-agent to Failed) and a fault of the server itself (to Error or Failed) are left out.
"""

MATRIX_NOTE = f"""\
One row per event, one column per state. A cell lists every next state that the event can lead to, depending on its
payload, the queues, the limits and whether the conversation is a sub-agent; *{STAYS}*: the same state with effects;
`{IGNORED}`: ignored, the very same state without effects; capitals: the reasons with which a command is refused.
AwaitingLlm, Cancelling of a model request, and Idle or Error with a queue never rest: the settle events BeginLlm,
FinishCancel and PromoteFollowUp follow in the same commit.
"""


def _variants() -> Iterator[Column]:
    """The grid's columns, those that differ from them in a count, and some with something in the queues."""
    for one in (*parent_columns(), *sub_agent_columns()):
        yield one
        match one.state:
            case states.AwaitingContinuation():
                tried = replace(one.state, attempt=one.context.limits.max_attempts)
                yield replace_state(one, tried)
                yield replace_state(
                    one, replace(tried, before=states.Error(states.Ledger(), "no route", ErrorKind.NETWORK))
                )
            case states.AwaitingLlm():
                yield replace_state(one, replace(one.state, error="three times the same"))
            case states.AwaitingSubAgents() if one.state.tool_use_id:
                last = replace(one.state, pending=(agent(1),), remaining_tool_ids=("t2",), calls=(BASH_1, BASH_2))
                yield replace_state(one, last)
            case states.ToolExecuting() if one.state.deadline:
                yield replace_state(one, replace(one.state, remaining_tool_ids=()))
            case states.Cancelling() if one.state.pending_agents:
                yield replace_state(one, replace(one.state, pending_agents=(agent(1), agent(2))))
            case _:
                pass
        if one.context.is_sub_agent or isinstance(one.state, states.TERMINAL):
            continue
        books = one.state.ledger
        full = (WAITING,) * one.context.limits.max_queue
        for steers, follows in (((WAITING,), ()), ((), (WAITING,)), (full, ())):
            queued = replace(books, steers=steers, follows=follows)
            yield replace_state(one, replace(one.state, ledger=queued))


def replace_state(one: Column, state: states.State) -> Column:
    """The same column in another state."""
    return Column(one.name, state, one.context)


def _more(one: Column) -> Iterator[Case]:
    """Events that have no row in the grid."""
    state, context = one.state, one.context
    yield Case(state, context, WithdrawMessage(NOW, WAITING.message_id))
    yield Case(state, context, InternalFault(NOW, "see the log"))
    yield Case(state, context, UsageReported(NOW, Usage(1), aside=True))
    yield Case(state, context, McpRestarted(NOW, ("files",)))
    yield Case(state, context, JobChanged(NOW, states.BackgroundJob("b-1", "t1", "serve")))
    yield Case(state, context, UserMessage(NOW, "m9", "hi", delivery=Delivery.STEER, expected_run="c:99"))
    yield Case(state, context, CancelTimeout(NOW, "c:99"))
    elsewhere = replace(context, mode=Mode.UNRESTRICTED, restriction_available=False)
    yield Case(state, elsewhere, SetMode(NOW, Mode.RESTRICTED))


def _verdict(case: Case) -> str:
    try:
        result = transition(*case)
    except Rejected as rejected:
        return rejected.reason.value
    if result.new_state is case.state and not result.effects:
        return IGNORED
    before, after = type(case.state).__name__, type(result.new_state).__name__
    return STAYS if before == after else after


def verdicts() -> dict[tuple[str, str], set[str]]:
    """(event, state) → everything that can come of it."""
    found: dict[tuple[str, str], set[str]] = {(event, state): set() for event in EVENTS for state in STATES}
    for one in _variants():
        for case in (*(case for make in ROWS.values() for case in make(one)), *_more(one)):
            found[type(case.event).__name__, type(case.state).__name__].add(_verdict(case))
    return found


def _cell(found: set[str]) -> str:
    """Moves first, in the order of the states, then stays, refusals, ignored."""
    moves = [state for state in STATES if state in found]
    stays = [f"*{STAYS}*"] if STAYS in found else []
    refusals = sorted(found - set(STATES) - {STAYS, IGNORED})
    ignored = [IGNORED] if IGNORED in found else []
    return "<br>".join([*moves, *stays, *refusals, *ignored])


def _matrix(found: dict[tuple[str, str], set[str]]) -> str:
    lines = [f"| event | {' | '.join(STATES)} |", "|---" * (len(STATES) + 1) + "|"]
    for event in EVENTS:
        cells = " | ".join(_cell(found[event, state]) for state in STATES)
        lines.append(f"| {event} | {cells} |")
    return "\n".join(lines)


def _diagram(found: dict[tuple[str, str], set[str]]) -> str:
    """One arrow per pair of states, with the events that take it; Restart and faults would only hide the rest."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (event, state), verdict in found.items():
        for after in STATES:
            if after in verdict and event not in {"Restart", "InternalFault"}:
                arrows.setdefault((state, after), []).append(event)
    lines = ["stateDiagram-v2", "    [*] --> Idle"]
    lines += [f"    {before} --> {after}: {', '.join(events)}" for (before, after), events in sorted(arrows.items())]
    lines += [f"    {state} --> [*]" for state in STATES if state in {"ContextExhausted", "Completed", "Failed"}]
    return "\n".join(lines)


def _projection() -> str:
    """The Context Manager FSM: the seed's arrows, and those that Bedrock adds."""
    lines = ["| from | the seed's diagram | added |", "|---|---|---|"]
    for here in ContextState:
        cells = [
            ", ".join(there for there in ContextState if (here, there) in edges)
            for edges in (DIAGRAM_EDGES, EXTENSION_EDGES)
        ]
        lines.append(f"| {here} | {' | '.join(cells)} |")
    return "\n".join(lines)


def render() -> str:
    """The whole README."""
    found = verdicts()
    return "\n".join(
        [
            HEAD,
            "## States\n",
            LEFT_OUT,
            f"```mermaid\n{_diagram(found)}\n```\n",
            "## States and events\n",
            MATRIX_NOTE,
            _matrix(found),
            "\n## The Context Manager FSM\n",
            "Every StateChanged carries its walk through these states (`fsm_path`).\n",
            _projection(),
            "",
        ]
    )


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
