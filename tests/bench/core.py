"""The pure core: transitions a second over a whole turn with two tools."""

import time

from actors.core.content import Text, ToolSuccess, ToolUse, Usage
from actors.core.context import ConvContext
from actors.core.events import Event, LlmResponse, LlmStreamStarted, ToolComplete, UserMessage
from actors.core.states import Idle, LlmRequesting, State, ToolExecuting
from actors.core.transition import run_chain
from tests.bench.figures import Report

CONTEXT = ConvContext("bench", "/tmp", "demo", 190_000)
CALLS = (ToolUse("t1", "think", "{}"), ToolUse("t2", "think", "{}"))


def following(state: State, turn: int) -> Event:
    """What comes next in the turn; tool ids are made unique by the turn's number."""
    match state:
        case LlmRequesting(phase="connecting"):
            return LlmStreamStarted(0, state.request_id, state.attempt)
        case LlmRequesting(ledger=ledger) if ledger.rounds == 1:
            calls = tuple(ToolUse(f"{call.id}-{turn}", call.name, call.input) for call in CALLS)
            return LlmResponse(0, state.request_id, state.attempt, (Text("ok"), *calls), False, Usage(100, 60))
        case LlmRequesting():
            return LlmResponse(0, state.request_id, state.attempt, (Text("done"),), True, Usage(100, 60))
        case ToolExecuting():
            result = ToolSuccess(state.current_tool_id, "Thought noted.")
            return ToolComplete(0, state.current_tool_id, state.execution_id, result)
        case _:
            return UserMessage(0, f"m{turn}", "go on")


def run(report: Report) -> None:
    """Whole turns for two seconds of CPU."""
    state: State = Idle()
    transitions, turns = 0, 0
    began = time.process_time()
    while time.process_time() - began < 2:
        steps = run_chain(state, CONTEXT, following(state, turns))
        state = steps[-1].new_state
        transitions += len(steps)
        turns += isinstance(state, Idle)
    seconds = time.process_time() - began
    report.add("core: transitions", "1/s of CPU", value=round(transitions / seconds))
    report.add("core: CPU per turn with two tools", "µs", value=round(seconds / turns * 1e6, 1))
