"""Whatever a conversation does, the events of an AG-UI run are in order, and add up to what is stored."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from bedrock import v1
from hypothesis import given
from hypothesis import strategies as some

from server.contract.errors import MalformedRequestError
from server.gateway.ag_ui.run_events import RunEvents
from server.gateway.ag_ui.thread_messages import converted, news_in


class Reader:
    """A strict reader: it folds events into what a front end knows, and fails at what breaks the protocol's order."""

    def __init__(self, messages: list[dict[str, Any]] | None = None) -> None:
        self.messages = deepcopy(messages or [])
        self.state: Any = None
        self.begun = False
        self.open: set[tuple[str, str]] = set()
        self.outcome: dict[str, Any] | None = None
        self.error = ""

    @property
    def interrupts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (self.outcome or {}).get("interrupts", [])
        return found

    def read(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        assert self.outcome is None, f"{kind} after the end"
        assert not self.error, f"{kind} after an error"
        assert self.begun == (kind != "RUN_STARTED"), f"{kind} is out of order"
        key = (kind.rpartition("_")[0], _id(event))
        match kind.rpartition("_"):
            case ("RUN", _, "STARTED"):
                self.begun = True
            case ("RUN", _, "FINISHED"):
                assert not self.open, f"still open: {self.open}"
                self.outcome = event["outcome"]
            case ("RUN", _, "ERROR"):
                self.error = event["message"]
            case ("MESSAGES", _, "SNAPSHOT"):
                self.messages = deepcopy(event["messages"])
            case ("STATE", _, "SNAPSHOT"):
                self.state = event["snapshot"]
            case (of, _, "START" | "STARTED"):
                assert key not in self.open, f"{key} is open already"
                self.open.add(key)
                self._begin(of, event)
            case (of, _, "CONTENT" | "ARGS"):
                assert key in self.open, f"{key} is not open"
                self._add(of, event)
            case (_, _, "END" | "FINISHED"):
                self.open.remove(key)
            case ("TOOL_CALL", _, "RESULT"):
                self.messages.append(
                    {"id": event["messageId"], "role": "tool"} | {key: event[key] for key in ("toolCallId", "content")}
                )
            case _:
                assert kind == "CUSTOM", kind

    def _begin(self, of: str, event: dict[str, Any]) -> None:
        if of in {"TEXT_MESSAGE", "REASONING_MESSAGE"}:
            if not any(each["id"] == event["messageId"] for each in self.messages):
                self.messages.append({"id": event["messageId"], "role": event["role"], "content": ""})
        elif of == "TOOL_CALL":
            parent = next((each for each in self.messages if each["id"] == event["parentMessageId"]), None)
            if parent is None:
                parent = {"id": event["parentMessageId"], "role": "assistant"}
                self.messages.append(parent)
            known = [each["id"] for each in parent.setdefault("toolCalls", [])]
            assert event["toolCallId"] not in known, "a call that is known would have its arguments twice"
            function = {"name": event["toolCallName"], "arguments": ""}
            parent["toolCalls"].append({"id": event["toolCallId"], "type": "function", "function": function})

    def _add(self, of: str, event: dict[str, Any]) -> None:
        if of == "TOOL_CALL":
            calls = [each for message in self.messages for each in message.get("toolCalls", [])]
            next(each for each in calls if each["id"] == event["toolCallId"])["function"]["arguments"] += event["delta"]
        else:
            next(each for each in self.messages if each["id"] == event["messageId"])["content"] += event["delta"]


def _id(event: dict[str, Any]) -> str:
    found: str = event.get("messageId") or event.get("toolCallId") or event.get("stepName", "")
    return found


NAME = "conversations/c"
RUN = f"{NAME}/requestCycles/1"
INPUT = RunAgentInput(thread_id="t", run_id="r", messages=[])
CALL = v1.ToolCall(tool_use_id="toolu_1", tool="bash", raw_input="{}")


def message(number: int, role: int, *blocks: v1.ContentBlock, request: str = "") -> v1.Message:
    made = v1.Message(name=f"{NAME}/messages/c:1:{number}", sequence=number, role=role, content=blocks)  # type: ignore[arg-type]
    made.llm_request_id, made.attempt = request, int(bool(request))
    return made


def delta(text: str, offset: int, *, reasoning: bool = False, attempt: int = 1) -> v1.Event:
    made = v1.Event.TextDelta(llm_request_id="c:r1", attempt=attempt, offset=offset, text=text, reasoning=reasoning)
    return v1.Event(text_delta=made)


def state(kind: int, **detail: Any) -> v1.Event:
    busy = kind not in {v1.STATE_KIND_IDLE, v1.STATE_KIND_ERROR}
    made = v1.ConversationState(kind=kind, busy=busy, run=RUN if busy else "", **detail)  # type: ignore[arg-type]
    return v1.Event(state_changed=v1.Event.StateChanged(state=made))


def began(*partial: v1.Event) -> v1.Event:
    made = v1.Event.Snapshot(conversation=v1.Conversation(name=NAME), partial=[each.text_delta for each in partial])
    made.conversation.state.CopyFrom(state(v1.STATE_KIND_LLM_REQUESTING).state_changed.state)
    return v1.Event(snapshot=made)


CAUGHT_UP = v1.Event(caught_up=v1.Event.CaughtUp())
ANSWER = message(
    2, v1.ROLE_AGENT, v1.ContentBlock(reasoning="Hmm."), v1.ContentBlock(text="Hello, world."), request="c:r1"
)
CALLS = message(2, v1.ROLE_AGENT, v1.ContentBlock(text="See."), v1.ContentBlock(tool_call=CALL), request="c:r1")
HI = v1.ToolResult(tool_use_id="toolu_1", outcome=v1.TOOL_OUTCOME_OK, output="hi")
RESULT = message(3, v1.ROLE_TOOL, v1.ContentBlock(tool_result=HI))


def added(what: v1.Message) -> v1.Event:
    return v1.Event(message_added=what)


def stopped(reason: int = v1.STOP_REASON_COMPLETED, detail: str = "", **more: Any) -> v1.Event:
    return v1.Event(run_stopped=v1.Event.RunStopped(request_cycle=RUN, reason=reason, detail=detail, **more))  # type: ignore[arg-type]


def told(*batches: Sequence[v1.Event], history: Sequence[v1.Message] = ()) -> tuple[Reader, RunEvents]:
    """What a front end knows after these batches."""
    run, reader = RunEvents(INPUT, RUN, (), ()), Reader()

    def events() -> Iterator[Any]:
        run.remember(history)
        for batch in batches:
            for event in batch:
                yield from () if run.over else run.of(event)
            yield from run.end_of_batch()

    reader.read({"type": "RUN_STARTED"})
    reader.read({"type": "MESSAGES_SNAPSHOT", "messages": _dumped(converted(history, ()))})
    for event in events():
        reader.read(event.model_dump(mode="json", by_alias=True))
    return reader, run


def _dumped(found: Any) -> list[dict[str, Any]]:
    return [each.model_dump(mode="json", by_alias=True) for each in found]


@given(some.lists(some.integers(0, 13), max_size=6), some.integers(0, 13), some.booleans())
def test_a_text_is_told_once_however_it_was_cut(cuts: list[int], missed: int, early: bool) -> None:
    """By deltas, by what had come before, by the message alone, or by all of them."""
    text, places = "Hello, world.", sorted({*cuts, 13})
    deltas = [delta(text[start:end], start) for start, end in zip([0, *places], places, strict=False)]
    first = [began(delta("Hm", 0, reasoning=True), delta(text[:missed], 0))] if early else [began()]
    rest = [each for each in deltas if not early or each.text_delta.offset + len(each.text_delta.text) > missed]
    reader, run = told(
        first, [CAUGHT_UP], *([each] for each in rest), [added(ANSWER), stopped(), state(v1.STATE_KIND_IDLE)]
    )
    contents = {each["role"]: each["content"] for each in reader.messages}
    assert (contents["assistant"], run.stale, reader.outcome) == (text, False, {"type": "success"})
    assert contents["reasoning"] == "Hmm."


def test_a_call_is_told_when_it_begins() -> None:
    reader, _ = told([began(), CAUGHT_UP], [added(CALLS)])
    assert "toolCalls" not in reader.messages[0]
    running = state(v1.STATE_KIND_TOOL_EXECUTING, tool_executing=v1.ConversationState.ToolExecuting(current=CALL))
    reader, _ = told([began(), CAUGHT_UP], [added(CALLS), running], [added(RESULT), stopped()])
    assert [each["role"] for each in reader.messages] == ["assistant", "tool"]
    assert reader.messages[0]["toolCalls"][0]["function"] == {"name": "bash", "arguments": "{}"}
    after, _ = told([began(), running, CAUGHT_UP], [added(RESULT), stopped()], history=[CALLS])
    assert after.messages == reader.messages


def test_text_that_is_void_needs_all_messages_again() -> None:
    void = v1.Event(stream_discarded=v1.Event.StreamDiscarded(llm_request_id="c:r1", attempt=1))
    _, run = told([began(), CAUGHT_UP], [delta("Hel", 0)], [void])
    assert run.stale
    _, run = told([began(), CAUGHT_UP], [delta("Bye", 0)], [added(ANSWER)])
    assert run.stale
    _, run = told([began(), CAUGHT_UP], [void])
    assert not run.stale


@pytest.mark.parametrize(
    ("end", "outcome", "error"),
    [
        (stopped(), {"type": "success"}, ""),
        (stopped(v1.STOP_REASON_INTERRUPTED), {"type": "cancelled"}, ""),
        (stopped(v1.STOP_REASON_INTERRUPTED, "budget"), {"type": "cancelled"}, ""),
        (stopped(v1.STOP_REASON_INTERRUPTED, "restart"), None, "the server was restarted during the run"),
        (stopped(v1.STOP_REASON_ERROR, "auth", error=v1.RunError(message="no key")), None, "no key"),
        (v1.Event(deleted=v1.Event.Deleted()), None, "the conversation was deleted"),
    ],
)
def test_how_a_run_ends(end: v1.Event, outcome: Any, error: str) -> None:
    reader, _ = told([began(delta("Hel", 0)), CAUGHT_UP], [end, state(v1.STATE_KIND_IDLE)])
    assert (reader.outcome, reader.error) == (outcome, error)


def test_what_a_run_waits_for_is_told_at_its_end() -> None:
    pending = v1.PendingApproval(name=f"{NAME}/approvals/toolu_1", tool_call=CALL)
    asked = v1.Question(name=f"{NAME}/questions/1", message="Which?", tool_use_id="toolu_1", mcp_server="git")
    waits = v1.ConversationState.AwaitingApproval(pending=[pending])
    asks = v1.ConversationState.ToolExecuting(current=CALL, questions=[asked])
    client = v1.ConversationState.ToolExecuting(current=CALL)
    client.deadline.GetCurrentTime()
    for change, ids in (
        (state(v1.STATE_KIND_AWAITING_TOOL_APPROVAL, awaiting_approval=waits), [pending.name]),
        (state(v1.STATE_KIND_TOOL_EXECUTING, tool_executing=asks), [asked.name]),
        (state(v1.STATE_KIND_TOOL_EXECUTING, tool_executing=client), []),
    ):
        reader, _ = told([began(), CAUGHT_UP], [added(CALLS), change])
        assert [each["id"] for each in reader.interrupts] == ids
        assert reader.messages[0]["toolCalls"][0]["id"] == "toolu_1"
        assert ids or reader.outcome == {"type": "success", "pendingToolCallIds": ["toolu_1"]}


def test_the_end_of_a_run_that_was_missed_is_looked_up() -> None:
    idle = state(v1.STATE_KIND_IDLE)
    _, run = told([began(), idle, CAUGHT_UP])
    assert run.missed
    output = v1.RequestCycle(name=RUN, stop_reason=v1.STOP_REASON_COMPLETED)
    output.output.number_value = 7
    (end,) = [each for each in run.missed_end(output) if each.type.value == "RUN_FINISHED"]
    assert end.model_dump()["result"] == 7


def given_messages(*messages: dict[str, Any]) -> RunAgentInput:
    return RunAgentInput.model_validate({"threadId": "t", "runId": "r", "messages": messages})


def test_only_what_follows_the_last_known_message_is_new() -> None:
    user = [{"id": str(number), "role": "user", "content": f"{number}"} for number in range(3)]
    known = {"id": "c:r1.1", "role": "assistant", "content": "Yes."}
    void = {"id": "c:r2.1", "role": "assistant", "content": "Half a"}
    system = {"id": "s", "role": "system", "content": "Be kind."}
    news = news_in(given_messages(system, user[0], known, void, user[1], user[2]), {"c:r1.1"}, "c")
    assert [index for index, _ in news.said] == [4, 5]
    assert news.instructions == ["Be kind."]
    with pytest.raises(MalformedRequestError, match=r"messages\[1\]: the agent never wrote this message"):
        news_in(given_messages(user[0], void), (), "d")
