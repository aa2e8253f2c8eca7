"""The machine as a whole: the specification's tables of states, events and effects, its diagrams, its laws."""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.core import states
from actors.core.content import Text, ToolSuccess, ToolUse, Usage
from actors.core.context import ConvContext, Mode
from actors.core.effects import Effect, ExecuteTool, PersistMessage, PersistState, RequestContinuation, RequestLlm
from actors.core.errors import Rejected
from actors.core.events import ApprovalResponse, Event, FinishCancel, LlmStreamChunk, UserCancel
from actors.core.invariants import InvariantChecker
from actors.core.notifications import CallStatus, ClientToolCall, RunStop, StateChanged, StopReason, UsageChanged
from actors.core.steps import texts
from actors.core.summary import DIAGRAM_EDGES, EDGES, EXTENSION_EDGES, ChatContext, ContextState, project, stray_edge
from actors.core.transition import Step, run_chain, settle_event, transition
from tests.generate.core_readme import EVENTS, STATES, TARGET, render, verdicts
from tests.machine.columns import NOW, UPGRADE_1, Column, column, parent_columns, sub_agent_columns
from tests.machine.notation import cell, code, effect_text
from tests.machine.rows import ROWS, TASKS, Case
from tests.machine.talk import Talk, bash, notes

# The matrix of states and events, cell by cell: `grid.md` holds the specification's own tables.


GRID = (Path(__file__).parent / "grid.md").read_text(encoding="utf-8")


def _tables() -> list[list[list[str]]]:
    """The tables of grid.md as rows of cells, header first."""
    tables: list[list[list[str]]] = []
    previous = ""
    for line in GRID.splitlines():
        if line.startswith("|"):
            if not previous.startswith("|"):
                tables.append([])
            if not line.startswith("|---"):
                tables[-1].append([part.strip() for part in line.strip("|").split("|")])
        previous = line
    return tables


def _rows() -> list[tuple[bool, str, dict[str, str]]]:
    """(sub-agent?, event, {column: expected}) of every row."""
    return [
        (sub_agent, event, dict(zip(header[1:], cells, strict=True)))
        for sub_agent, (header, *rows) in zip((False, True), _tables(), strict=True)
        for event, *cells in rows
    ]


@pytest.mark.parametrize(
    ("sub_agent", "event", "expected"),
    [pytest.param(*row, id=f"{'sub-agent: ' if row[0] else ''}{row[1]}") for row in _rows()],
)
def test_every_cell_of_the_grid_holds(sub_agent: bool, event: str, expected: dict[str, str]) -> None:
    happened = {name: set(map(cell, ROWS[event](column(name, sub_agent=sub_agent)))) for name in expected}

    assert happened == {name: {one} for name, one in expected.items()}


def test_the_grid_has_the_size_that_the_specification_states() -> None:
    sizes = {False: 0, True: 0}
    for sub_agent, _, cells in _rows():
        sizes[sub_agent] += len(cells)

    assert sizes == {False: 1_608, True: 1_005}


@pytest.mark.parametrize("columns", [parent_columns(), sub_agent_columns()], ids=["conversation", "sub-agent"])
def test_the_tables_name_every_column(columns: tuple[Column, ...]) -> None:
    headers = [table[0][1:] for table in _tables()]

    assert [one.name for one in columns] in headers


# The effects of the machine, cell by cell: `effects.txt` holds the specification's own list.
#
# Effects are compared in the listed order, which the specification states for commit, publish and act together. The
# places where the list is narrower than the specification's prose are in DEVIATIONS, with the reason; everything else
# is compared as it stands.


LINES = (Path(__file__).parent / "effects.txt").read_text(encoding="utf-8").splitlines()


class Cell(NamedTuple):
    """What the list says of one cell."""

    next_code: str
    effects: tuple[str, ...]
    settle: str


class Deviation(NamedTuple):
    """Effects that the prose demands and the generated list leaves out."""

    reason: str
    concerns: Callable[[str, str], bool]
    """(column, event) → whether the deviation holds there."""
    pattern: str
    """What the effect looks like."""


DEVIATIONS = (
    Deviation(
        "every response with usage emits UsageChanged; the list shows only its ContextWarning",
        lambda name, event: "≥" in event and not name.startswith("Cancelling"),
        r"NotifyClient\(UsageChanged\)",
    ),
    Deviation(
        "every question that was asked ends in one ApprovalResolved; the list shows only the questions",
        lambda name, event: (
            name.startswith("Approval")
            and event
            in {"Approval approve t1", "Approval deny t1", "Restart", "UserCancel", "UserCancel discard_queued"}
        ),
        r"NotifyClient\(ApprovalResolved .*\)",
    ),
    Deviation(
        "I2: a mode message takes a sequence from the ledger, so the state is persisted with it; "
        "nothing that clients see of the state changes, so there is no StateChanged",
        lambda name, event: event == "SetMode other mode",
        r"PersistState",
    ),
    Deviation(
        "C28: the end of every sub-agent is told, that of the last one too, before the results of all",
        lambda name, event: (
            name.endswith("last)")
            and name.startswith("AwaitSub")
            and event in {"SubAgentResult known", "SubAgentTimeout known"}
        ),
        r"NotifyClient\(SubAgents \d+ 0\)",
    ),
)


def _split(text: str, separator: str) -> list[str]:
    """Split at the top level: neither in parentheses nor in quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, char in enumerate(text):
        quoted ^= char == '"'
        depth += 0 if quoted else (char == "(") - (char == ")")
        if not depth and not quoted and text.startswith(separator, i):
            parts.append(text[start:i])
            start = i + len(separator)
    return [*parts, text[start:]]


def _listed() -> dict[tuple[bool, str, str], Cell]:
    """(sub-agent?, column, event) → what the list says; a sub-agent's cell falls back to the parent's line."""
    cells: dict[tuple[bool, str, str], Cell] = {}
    for line in LINES:
        sub_agent = line.startswith("[sub] ")
        where, what = line.removeprefix("[sub] ").split(" → ", 1)
        names, events = where.split(" + ", 1)
        next_code, rest = what.split(": ", 1)
        effects, _, settle = rest.partition(" » ")
        for name in names.split(", "):
            for event in events.split(" / "):
                key = (sub_agent, name, event)
                assert key not in cells, key
                cells[key] = Cell(next_code, tuple(_split(effects, ", ")), settle)
    return cells


LISTED = _listed()


def _expected(sub_agent: bool, name: str, event: str) -> Cell | None:
    listed = LISTED.get((sub_agent, name, event))
    return LISTED.get((False, name, event)) if listed is None and sub_agent else listed


def _happened(sub_agent: bool, name: str, event: str) -> Cell | None:
    """What the code does; None if it refuses or ignores the event."""
    cells = set()
    for state, context, told in ROWS[event](column(name, sub_agent=sub_agent)):
        try:
            result = transition(state, context, told)
        except Rejected:
            return None
        if result.new_state is state and not result.effects:
            return None
        settle = settle_event(result.new_state, told.at)
        cells.add(
            Cell(
                code(result.new_state), tuple(map(effect_text, result.effects)), type(settle).__name__ if settle else ""
            )
        )
    (only,) = cells
    return only


def _without_deviations(name: str, event: str, effects: tuple[str, ...], listed: tuple[str, ...]) -> tuple[str, ...]:
    """The effects as the list has them: what a deviation adds is taken out, and must be there."""
    for deviation in DEVIATIONS:
        if deviation.concerns(name, event) and not any(re.fullmatch(deviation.pattern, one) for one in listed):
            kept = tuple(one for one in effects if not re.fullmatch(deviation.pattern, one))
            assert len(kept) < len(effects), f"{event}: {deviation.reason}"
            effects = kept
    return effects


COLUMNS = [
    (sub_agent, one.name)
    for sub_agent, columns in ((False, parent_columns()), (True, sub_agent_columns()))
    for one in columns
]


@pytest.mark.parametrize(
    ("sub_agent", "name"), [pytest.param(*one, id=f"{'sub-agent: ' if one[0] else ''}{one[1]}") for one in COLUMNS]
)
def test_every_cell_has_the_effects_of_the_list(sub_agent: bool, name: str) -> None:
    for event in ROWS:
        expected, happened = _expected(sub_agent, name, event), _happened(sub_agent, name, event)
        if happened is None:
            assert (sub_agent, name, event) not in LISTED
            continue
        assert expected is not None, (event, happened)
        effects = _without_deviations(name, event, happened.effects, expected.effects)
        assert (event, happened._replace(effects=effects)) == (event, expected)


def test_the_list_has_no_line_that_no_cell_used() -> None:
    assert set(LISTED) <= {(*column, event) for column in COLUMNS for event in ROWS}


# Seed 3's Context Manager FSM: `seed_diagram.mmd` holds the seed's own diagram.


DIAGRAM = (Path(__file__).parent / "seed_diagram.mmd").read_text(encoding="utf-8")
SEED_EDGES = re.findall(r"^ *(\w+) --> (\w+)(?::|$)", DIAGRAM, re.MULTILINE)
SEED_STATES = (
    "Idle",
    "ProcessingUserMessage",
    "AwaitingLLMResponse",
    "StreamingLLMResponse",
    "ProcessingLLMResponse",
    "AwaitingToolApproval",
    "ExecutingTools",
    "ProcessingToolResults",
    "GeneratingResponse",
    "TransientFailure",
    "Failed",
)
S = ContextState


def test_the_seeds_eleven_states_have_their_names() -> None:
    assert tuple(ContextState)[:11] == SEED_STATES
    assert set(ContextState) - set(SEED_STATES) == {"Cancelling", "ContextExhausted"}


@pytest.mark.parametrize(("here", "there"), SEED_EDGES)
def test_every_arrow_of_the_seeds_diagram_is_an_edge(here: str, there: str) -> None:
    assert (S(here), S(there)) in DIAGRAM_EDGES
    assert ChatContext(S(here)).handle_event((S(there),)) == ChatContext(S(there))


def test_the_diagram_has_no_other_arrow() -> None:
    assert len(SEED_EDGES) == len(DIAGRAM_EDGES) == 21
    assert re.search(r"\[\*\] --> Idle", DIAGRAM)
    assert ChatContext().state is S.IDLE


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (S.IDLE, S.AWAITING_LLM_RESPONSE),
        (S.IDLE, S.EXECUTING_TOOLS),
        (S.AWAITING_LLM_RESPONSE, S.EXECUTING_TOOLS),
        (S.EXECUTING_TOOLS, S.AWAITING_LLM_RESPONSE),
        (S.AWAITING_TOOL_APPROVAL, S.AWAITING_LLM_RESPONSE),
        (S.FAILED, S.PROCESSING_USER_MESSAGE),
        (S.CONTEXT_EXHAUSTED, S.IDLE),
        (S.CANCELLING, S.CANCELLING),
        (S.TRANSIENT_FAILURE, S.STREAMING_LLM_RESPONSE),
    ],
)
def test_a_step_that_no_diagram_has_is_refused(here: ContextState, there: ContextState) -> None:
    assert stray_edge([there], here) == (here, there)
    with pytest.raises(ValueError, match=f"{here} --> {there}"):
        ChatContext(here).handle_event((there,))


def test_the_extensions_add_to_the_diagram_and_repeat_nothing() -> None:
    assert not DIAGRAM_EDGES & EXTENSION_EDGES
    assert DIAGRAM_EDGES | EXTENSION_EDGES == EDGES


def test_an_empty_walk_stays_where_it_is() -> None:
    here = ChatContext(S.EXECUTING_TOOLS)

    assert here.handle_event(()) is here


def test_a_walk_is_folded_step_by_step() -> None:
    walk = (S.PROCESSING_LLM_RESPONSE, S.EXECUTING_TOOLS, S.PROCESSING_TOOL_RESULTS, S.GENERATING_RESPONSE)

    assert ChatContext(S.STREAMING_LLM_RESPONSE).handle_event(walk) == ChatContext(S.GENERATING_RESPONSE)
    assert stray_edge((*walk, S.IDLE, S.EXECUTING_TOOLS), S.STREAMING_LLM_RESPONSE) == (S.IDLE, S.EXECUTING_TOOLS)


@pytest.mark.parametrize(
    "one",
    [*parent_columns(), *sub_agent_columns()],
    ids=lambda one: f"{'sub-agent ' if one.context.is_sub_agent else ''}{one.name}",
)
def test_every_transition_of_the_grid_walks_the_diagram_to_where_its_state_is(one: Column) -> None:
    for row, make in ROWS.items():
        for case in make(one):
            try:
                steps = run_chain(*case)
            except Rejected:
                continue
            here = ChatContext(project(case.state))
            for step in steps:
                for change in notes(list(step.effects), StateChanged):
                    here = here.handle_event(change.fsm_path)
                assert here.state is project(step.new_state), row


# Seed 2's State Transition Matrix, row by row: `seed_matrix.md` holds the seed's own table.


TABLE = (Path(__file__).parent / "seed_matrix.md").read_text(encoding="utf-8").splitlines()[2:]
SEED_ROWS = [tuple(part.strip() for part in line.strip("|").split("|")) for line in TABLE]

CASES = (
    (("Idle", "UserMessage reject"),),
    (("AwaitingLlm", "BeginLlm (settle)"),),
    (("LlmReq/conn", "LlmResponse text end"), ("LlmReq/stream", "LlmResponse text end")),
    (("LlmReq/conn", "LlmResponse tools auto"), ("LlmReq/stream", "LlmResponse tools auto")),
    (("LlmReq/conn", "LlmError retryable"), ("LlmReq/stream", "LlmError retryable")),
    (("LlmReq/backoff", "RetryTimeout match"),),
    (("LlmReq3/stream", "LlmError retryable"),),
    (("LlmReq/conn", "LlmError non-retryable"), ("LlmReq/stream", "LlmError non-retryable")),
    (("LlmReq/conn", "UserCancel"), ("LlmReq/stream", "UserCancel")),
    (("LlmReq/conn", "UserMessage reject"), ("LlmReq/backoff", "UserMessage reject")),
    (("ToolExec(last)", "ToolComplete match"),),
    (("ToolExec", "ToolComplete match"),),
    (("ToolExec", "UserCancel"), ("ToolExec(last)", "UserCancel")),
    (("ToolExec", "UserMessage reject"),),
    (("Cancelling/llm", "LlmResponse text end"),),
    (("Cancelling/llm", "UserMessage reject"), ("Cancelling/sub", "UserMessage reject")),
    (("Error", "UserMessage reject"),),
    (("Idle", "SpawnSubAgents"),),
    (("AwaitSub(last)", "SubAgentResult known"), ("AwaitSub(cmd,last)", "SubAgentResult known")),
    (("AwaitSub", "UserMessage reject"),),
)
"""Where each of the seed's rows is lived through, in the seed's order: (column, event) of the core's matrix."""

MATRIX_STATES: dict[str, type[states.State]] = {
    "Idle": states.Idle,
    "AwaitingLlm": states.AwaitingLlm,
    "LlmRequesting": states.LlmRequesting,
    "AwaitingToolApproval": states.AwaitingToolApproval,
    "ToolExecuting": states.ToolExecuting,
    "Cancelling": states.Cancelling,
    "Error": states.Error,
    "AwaitingSubAgents": states.AwaitingSubAgents,
}


def test_the_table_is_the_seeds_with_all_its_rows() -> None:
    assert len(SEED_ROWS) == len(CASES) == 20


@pytest.mark.parametrize(
    ("seed_row", "name", "event"),
    [
        pytest.param(row, *where, id=f"{number}: {row[0]} + {row[1]} ({where[0]})")
        for number, (row, places) in enumerate(zip(SEED_ROWS, CASES, strict=True), 1)
        for where in places
    ],
)
def test_every_row_of_the_seeds_matrix_holds(seed_row: tuple[str, str, str, str], name: str, event: str) -> None:
    current, _, following, effects = seed_row
    (case,) = ROWS[event](column(name))
    assert isinstance(case.state, MATRIX_STATES[re.split(r"[{(]", current)[0]])

    if following == "**REJECT**":
        with pytest.raises(Rejected, match=re.findall(r'"(.*)"', effects)[0]):
            transition(*case)
        return
    result = transition(*case)

    _check_state(following, case.state, result.new_state)
    for wanted in effects.split(", "):
        _check_effect(wanted, case, result.effects)


def _check_state(wanted: str, before: states.State, after: states.State) -> None:
    assert isinstance(after, MATRIX_STATES[re.split(r"[{(]", wanted)[0]])
    if isinstance(after, states.LlmRequesting):
        earlier = before.attempt if isinstance(before, states.LlmRequesting) else 0
        attempts = {"{1}": 1, "{n}": earlier, "{n+1}": earlier + 1}
        assert after.attempt == attempts[wanted.removeprefix("LlmRequesting")]


def _check_effect(wanted: str, case: Case, effects: tuple[Effect, ...]) -> None:
    counts = Counter(type(effect).__name__ for effect in effects)
    started = [effect.tool_use_id for effect in effects if isinstance(effect, ExecuteTool)]
    match wanted:
        case "ExecuteTool(first)":
            assert started == ["t1"]
        case "ExecuteTool(next)":
            assert started == ["t2"]
        case "PersistMessage(synthetic)":
            assert isinstance(case.state, states.ToolExecuting)
            assert counts["PersistMessage"] == 1 + len(case.state.remaining_tool_ids)
        case _ if wanted.startswith("SpawnSubAgent"):
            assert counts["SpawnSubAgent"] == len(TASKS)
        case _:
            assert counts[wanted] >= 1


# Chains, identity and purity (REQ-BED-001; C51; I1, I2, I22, I39), over every column and row of the grid.


ALL_COLUMNS = [
    pytest.param(one, id=f"{'sub-agent: ' if one.context.is_sub_agent else ''}{one.name}")
    for one in (*parent_columns(), *sub_agent_columns())
]
STARTING = (RequestLlm, RequestContinuation, ExecuteTool)


def chain(case: Case) -> tuple[Step, ...]:
    """The steps; none if it was refused."""
    try:
        return run_chain(*case)
    except Rejected:
        return ()


@pytest.mark.parametrize("one", ALL_COLUMNS)
def test_every_step_keeps_the_laws_of_the_machine(one: Column) -> None:
    for make in ROWS.values():
        for case in make(one):
            steps = chain(case)
            assert chain(case) == steps
            _check_steps(case.state, steps)
            if steps:
                assert settle_event(steps[-1].new_state, 0) is None
            started = [effect for step in steps for effect in step.effects if isinstance(effect, STARTING)]
            assert len(started) <= 1


def _check_steps(state: states.State, steps: tuple[Step, ...]) -> None:
    """The state is persisted if and only if it changed; counters only grow; messages are numbered without a gap."""
    for step in steps:
        persisted = [effect.new_state for effect in step.effects if isinstance(effect, PersistState)]
        assert persisted == ([step.new_state] if step.new_state != state else [])
        before, after = state.ledger, step.new_state.ledger
        for counter in ("run", "req", "xid", "seq", "agents", "turns"):
            assert getattr(after, counter) >= getattr(before, counter)
        said = [effect.message.sequence for effect in step.effects if isinstance(effect, PersistMessage)]
        assert said == list(range(before.seq + 1, after.seq + 1))
        state = step.new_state


@pytest.mark.parametrize("one", ALL_COLUMNS)
def test_everything_survives_the_way_to_the_database_and_back(one: Column) -> None:
    assert _there_and_back(one.context, ConvContext) == one.context
    for make in ROWS.values():
        for case in make(one):
            assert _there_and_back(case.event, Event) == case.event
            for step in chain(case):
                assert _there_and_back(step.new_state, states.State) == step.new_state
                assert [_there_and_back(effect, Effect) for effect in step.effects] == list(step.effects)


def _there_and_back(value: object, kind: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value), type=kind)


def test_an_ignored_event_returns_the_very_same_state() -> None:
    for one in (*parent_columns(), *sub_agent_columns()):
        for case in ROWS["any LLM outcome, stale id"](one):
            assert transition(*case).new_state is case.state


def test_message_ids_come_from_counters_and_are_never_used_again() -> None:
    talk = Talk()
    for number in range(3):
        talk.say(f"m{number}")
        talk.call(bash(f"t{number}"))
        talk.result(ToolSuccess(f"t{number}", "ok"))
        talk.text("done")

    ids = [message.id for message in talk.messages]
    assert len(set(ids)) == len(ids)
    assert ids[:5] == ["m0", "c:1:2", "c:1:3", "c:1:4", "m1"]


def test_a_later_step_of_a_chain_sees_the_mode_that_an_earlier_one_set() -> None:
    talk = Talk(replace(column("Idle").context, mode=Mode.RESTRICTED))
    talk.say("go")
    talk.call(UPGRADE_1)
    talk.tell(ApprovalResponse(talk.at(), "t1", True))

    talk.result(ToolSuccess("t1", "granted"))

    assert [step.context.mode for step in talk.steps] == [Mode.RESTRICTED, Mode.UNRESTRICTED]


def test_a_cancelled_request_passes_through_cancelling_in_one_commit() -> None:
    talk = Talk()
    talk.say("go")

    talk.tell(UserCancel(talk.at()))

    assert [type(step.event) for step in talk.steps] == [UserCancel, FinishCancel]
    assert talk.walk == ["Cancelling", "Idle"]


@pytest.mark.parametrize("one", [column("Idle"), column("Error")], ids=lambda one: one.name)
def test_a_state_with_a_queue_is_never_idle(one: Column) -> None:
    waiting = states.QueuedInput("m1", "next", (), NOW)
    books = replace(one.state.ledger, follows=(waiting,))

    assert type(settle_event(replace(one.state, ledger=books), 5)).__name__ == "PromoteFollowUp"


def test_a_chunk_of_a_stream_that_runs_writes_nothing() -> None:
    one = column("LlmReq/stream")

    (step,) = run_chain(one.state, one.context, LlmStreamChunk(1, "c:r7", 1, Text("more"), True))

    assert step.new_state is one.state
    (delta,) = step.effects
    assert msgspec.json.decode(msgspec.json.encode(delta))["data"] == {
        "type": "text_delta",
        "request_id": "c:r7",
        "attempt": 1,
        "text": "more",
        "reasoning": True,
    }


# What an audit says of a log that begins in the middle, and of tokens that do not add up.


STOP = RunStop("c:1", StopReason.COMPLETED)
FIND = ToolUse("t1", "find_order", "{}")


def awaited(status: CallStatus) -> ClientToolCall:
    return ClientToolCall(FIND, status, 9_000)


def test_a_log_that_begins_late_may_end_a_run_that_it_does_not_begin_but_once() -> None:
    whole, late = InvariantChecker("c"), InvariantChecker("c")
    late.begin_mid_log()
    assert list(whole.check(STOP)) == ["run c:1 ended but had not begun"]
    assert list(late.check(STOP)) == []
    assert list(late.check(STOP)) == ["run c:1 ended twice"]


@pytest.mark.parametrize(
    ("used", "total", "wrong"),
    [(7, Usage(5, 2), False), (8, Usage(5, 2), True), (7, Usage(5, 3), True), (7, Usage(5, 2, 0, 0, 1), True)],
)
def test_the_tokens_reported_last_are_those_of_the_state(used: int, total: Usage, wrong: bool) -> None:
    audit = InvariantChecker("c")
    ledger = replace(states.Ledger(), used_tokens=7, total_usage=Usage(5, 2))
    assert list(audit.check_end(states.Idle(ledger), Mode.UNRESTRICTED)) == []
    assert list(audit.check(UsageChanged(1, 100, Usage(1), False))) == []
    assert list(audit.check(UsageChanged(used, 100, total, False))) == []
    said = ["the tokens that the state counts differ from those last reported"]
    assert list(audit.check_end(states.Idle(ledger), Mode.UNRESTRICTED)) == said * wrong


@pytest.mark.parametrize("end", [status for status in CallStatus if status is not CallStatus.PENDING])
def test_a_wait_for_a_client_ends_once_and_only_if_it_began(end: CallStatus) -> None:
    whole, late = InvariantChecker("c"), InvariantChecker("c")
    late.begin_mid_log()
    not_begun = [f"the wait for the result of t1 ended ({end.value}), but had not begun"]
    assert list(whole.check(awaited(end))) == not_begun
    assert list(late.check(awaited(end))) == []
    assert list(whole.check(awaited(CallStatus.PENDING))) == []
    assert list(whole.check(awaited(CallStatus.PENDING))) == ["a client was asked twice for the result of t1"]
    assert list(whole.check(awaited(end))) == []
    assert list(whole.check(awaited(end))) == not_begun


def test_a_wait_for_a_client_that_the_log_leaves_open_is_that_of_the_state() -> None:
    audit = InvariantChecker("c")
    list(audit.check(awaited(CallStatus.PENDING)))
    waits = states.ToolExecuting(states.Ledger(), "t1", (), (), (FIND,), 1, deadline=9_000)
    about = "calls waiting for a client"
    assert not [text for text in audit.check_end(waits, Mode.UNRESTRICTED) if about in text]
    (found,) = [text for text in audit.check_end(states.Idle(), Mode.UNRESTRICTED) if about in text]
    assert found == f"{about}: the log leaves t1, the state has none"


# Nobody but Bedrock writes the tags by which a model knows Bedrock's words.


PIECES = st.sampled_from(
    ["<", "</", "< / ", "\u200b", "\u00ad", " ", "\n", "\x00", "system", "-notice", "SYSTEM-Notice", "repository-file"]
)
TEXTS = st.lists(PIECES | st.text(max_size=2)).map("".join)
UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")


def bare(text: str) -> str:
    """Without what cannot be seen, in lower case."""
    return "".join(each for each in text if unicodedata.category(each) not in UNSEEN).lower()


def forged(text: str, *names: str) -> bool:
    return any(f"<{slash}{name}" in bare(text) for slash in ("", "/") for name in names)


@given(TEXTS)
def test_no_text_begins_or_ends_what_the_system_says(text: str) -> None:
    assert not forged(texts.escape(text), "system-notice", "repository-file")
    assert texts.escape(texts.escape(text)) == texts.escape(text)
    notice = texts.notice(text)
    assert notice.startswith("<system-notice>\n")
    assert notice.endswith("\n</system-notice>")
    assert bare(notice).count("<system-notice>") == bare(notice).count("</system-notice>") == 1


def test_no_character_that_cannot_be_seen_hides_a_tag() -> None:
    unseen = [each for each in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(each) in UNSEEN]
    assert [each for each in unseen if forged(texts.escape(f"<system{each}-notice>"), "system-notice")] == []


@given(TEXTS)
def test_text_without_such_a_tag_is_left_as_it_is(text: str) -> None:
    if not forged(text, "system-notice", "repository-file"):
        assert texts.escape(text) is text


@pytest.mark.parametrize(
    "text", ["a < b", "<system>", "<div>", "x<<y", "system-notice", "&lt;system-notice>", "<tool-call>"]
)
def test_honest_text_is_left_as_it_is(text: str) -> None:
    assert texts.escape(text) is text


@given(st.lists(st.sampled_from(["<", "</", "tool-", "call", "result", "-", "TOOL", "\u200b", ">"])).map("".join))
def test_no_output_ends_its_result_where_results_are_sent_as_text(text: str) -> None:
    assert not forged(texts.escape_calls(text), "tool-call", "tool-result")


# actors/core/README.md shows what the code does, and the code answers every event in every state.


def test_the_readme_is_what_the_code_does() -> None:
    assert TARGET.read_text(encoding="utf-8") == render(), "out of date: make core-readme"


def test_every_state_has_an_answer_to_every_event() -> None:
    found = verdicts()

    assert (len(EVENTS), len(STATES)) == (35, 12)
    assert not [pair for pair, verdict in found.items() if not verdict]
