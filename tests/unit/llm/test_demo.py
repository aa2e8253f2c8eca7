"""The demo model: the same conversation, the same scene; no network, and as cancellable as any."""

import json
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.demo import DemoModel
from actors.core.content import Content, Reasoning, Text, ToolCancelled, ToolError, ToolOutcome, ToolSuccess, ToolUse
from actors.core.context import ToolGroup, ToolTraits
from actors.core.errors import ErrorKind
from actors.core.history import Turn
from actors.ports import CancelToken, ModelAbortedError, ModelAnswer, ModelFailedError, Purpose, ToolSpec
from tests.support.model_requests import RequestThread, Sink, ask, assistant, request, tool, user

TOOLS = (
    tool("bash", cmd="string"),
    tool("read_file", path="string"),
    tool("keyword_search", query="string", search_terms="array"),
    tool("think", thoughts="string"),
    tool("spawn_sub_agent", tasks="array"),
    tool("request_mode_upgrade", reason="string"),
)
CHILD_TOOLS = (
    tool("bash", cmd="string"),
    tool("think", thoughts="string"),
    tool("submit_result", result="string"),
    tool("submit_error", error="string"),
    tool("read_file", path="string"),
)
SEEN_BEFORE = (user("Hi"), assistant("Hello!"))


def said_to_demo(
    *turns: Turn, tools: tuple[ToolSpec, ...] = TOOLS, sink: Sink | None = None, attempt: int = 1
) -> ModelAnswer:
    return ask(DemoModel(pace=0), *turns, sink=sink, tools=tools, attempt=attempt)


def text_of(answer: ModelAnswer) -> str:
    return "".join(block.text for block in answer.content if isinstance(block, Text))


def call_of(answer: ModelAnswer) -> tuple[str, Any]:
    (call,) = (block for block in answer.content if isinstance(block, ToolUse))
    return call.name, json.loads(call.input)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the demo model used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_first_message_is_greeted_and_leads_to_a_read_only_command() -> None:
    sink = Sink()
    answer = said_to_demo(user("Hello there"), sink=sink)
    assert "demo model" in text_of(answer)
    assert call_of(answer) == ("bash", {"cmd": "ls -A | head -n 20"})
    assert not answer.end_turn
    assert "".join(sink.said) == text_of(answer)
    assert len(sink.said) > 10
    assert sink.begun == 1


def test_the_result_is_reported_and_the_turn_ends() -> None:
    first = said_to_demo(user("Hello"))
    call = first.content[-1]
    assert isinstance(call, ToolUse)
    answer = said_to_demo(
        user("Hello"), Turn("assistant", first.content), user(ToolSuccess(call.id, "  a.txt\n  b.txt\n"))
    )
    assert "bash answered with 2 lines:\n  a.txt\n  b.txt" in text_of(answer)
    assert answer.end_turn


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ToolError("t", "Denied by user", ToolOutcome.DENIED), "You said no"),
        (ToolError("t", "exit code 2"), "failed. It says:\nexit code 2"),
        (ToolSuccess("t", "\n".join("abcdefghijk")), "and 3 more lines"),
        (ToolSuccess("t", ""), "with 0 lines"),
    ],
)
def test_every_kind_of_result_gets_an_answer(result: ToolError | ToolSuccess, said: str) -> None:
    answer = said_to_demo(user("run x"), assistant(ToolUse("t", "bash", "{}")), user(result))
    assert said in text_of(answer)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("run echo  a\necho b", ("bash", {"cmd": "echo  a\necho b"})),
        ("Read README.md please", ("read_file", {"path": "README.md"})),
        ("search the needle", ("keyword_search", {"query": "the needle", "search_terms": ["the", "needle"]})),
        ("sleep 5", ("bash", {"cmd": "sleep 5"})),
        ("please sleep", ("bash", {"cmd": "sleep 25"})),
        ("write", ("bash", {"cmd": "echo written by the demo model > ./demo.txt && cat ./demo.txt"})),
        ("write a-b.md", ("bash", {"cmd": "echo written by the demo model > ./a-b.md && cat ./a-b.md"})),
    ],
)
@pytest.mark.parametrize("before", [(), SEEN_BEFORE], ids=["first", "later"])
def test_words_that_lead_to_a_tool(message: str, call: tuple[str, Any], before: tuple[Turn, ...]) -> None:
    assert call_of(said_to_demo(*before, user(message))) == call


def test_agents_and_upgrade_lead_to_their_tools() -> None:
    name, arguments = call_of(said_to_demo(user("agents")))
    assert name == "spawn_sub_agent"
    assert [set(task) for task in arguments["tasks"]] == [{"task"}] * 3
    assert call_of(said_to_demo(user("upgrade")))[0] == "request_mode_upgrade"


WRITE = assistant(ToolUse("t", "bash", '{"cmd": "echo x > y"}'))
IN_THE_WAY = user(ToolSuccess("t", "y: Read-only file system\n[exit code 1]\n[call request_mode_upgrade]"))


def test_what_the_mode_forbids_is_asked_for_and_then_done() -> None:
    begun = (user("write y"), WRITE, IN_THE_WAY)
    answer = said_to_demo(*begun)
    name, arguments = call_of(answer)
    assert name == "request_mode_upgrade"
    assert "echo x > y" in arguments["reason"]
    asked = (*begun, assistant(ToolUse("u", name, "{}")))
    granted = said_to_demo(*asked, user(ToolSuccess("u", "Approved"), NOTICE))
    assert call_of(granted) == ("bash", {"cmd": "echo x > y"})
    denied = said_to_demo(*asked, user(ToolError("u", "Denied by user", ToolOutcome.DENIED)))
    assert denied.end_turn
    assert "You said no" in text_of(denied)
    done = said_to_demo(*asked, user(ToolSuccess("u", "Approved")), WRITE, user(ToolSuccess("t2", "x")))
    assert done.end_turn


@pytest.mark.parametrize("mode", ["restricted", "workspace"])
def test_it_names_the_mode_that_is_in_the_way_and_asks_for_the_one_that_it_is_told_to(mode: str) -> None:
    stopped = user(ToolSuccess("t", f"y: Read-only\n[The mode is {mode}: call request_mode_upgrade]"))
    assert f"The mode is {mode}, so bash" in text_of(said_to_demo(user("write y"), WRITE, stopped))
    assert call_of(said_to_demo(user("workspace")))[1]["mode"] == "workspace"
    assert call_of(said_to_demo(user("upgrade")))[1]["mode"] == "unrestricted"


def test_where_it_cannot_ask_it_says_so() -> None:
    answer = said_to_demo(user("write y"), WRITE, IN_THE_WAY, tools=TOOLS[:2])
    assert answer.end_turn
    assert "cannot ask" in text_of(answer)


def test_a_long_command_is_waited_for() -> None:
    patient = (tool("bash", cmd="string", wait_seconds="integer"),)
    assert call_of(said_to_demo(user("sleep 60"), tools=patient)) == ("bash", {"cmd": "sleep 60", "wait_seconds": 85})
    assert call_of(said_to_demo(user("sleep 5"), tools=patient)) == ("bash", {"cmd": "sleep 5"})


NOTICE = Text("<system-notice>\nThe mode is now restricted. help\n</system-notice>")


def test_notices_are_not_taken_for_the_user() -> None:
    assert call_of(said_to_demo(*SEEN_BEFORE, user("sleep 1", NOTICE))) == ("bash", {"cmd": "sleep 1"})
    result = user(ToolSuccess("t", "x"), NOTICE)
    assert "Meanwhile" not in text_of(said_to_demo(user("a"), assistant(ToolUse("t", "bash", "{}")), result))


def test_a_steer_between_two_steps_is_heard() -> None:
    result = user(ToolSuccess("t", "x"), "be quick")
    answer = said_to_demo(user("a"), assistant(ToolUse("t", "bash", "{}")), result)
    assert 'Meanwhile you said: "be quick"' in text_of(answer)


@pytest.mark.parametrize("outcome", [ToolOutcome.CANCELLED, ToolOutcome.SKIPPED])
def test_what_is_said_after_a_cancelled_tool_is_a_request_of_its_own(outcome: ToolOutcome) -> None:
    begun = (user("sleep"), assistant(ToolUse("t", "bash", "{}")))
    cancelled = ToolCancelled("t", "Cancelled by user", outcome)
    assert call_of(said_to_demo(*begun, user(cancelled, "run ls"))) == ("bash", {"cmd": "ls"})
    assert "Cancelled by user" in text_of(said_to_demo(*begun, user(cancelled)))


def test_help_names_only_what_can_be_shown_here() -> None:
    everything = text_of(said_to_demo(user("help")))
    few = text_of(said_to_demo(user("help"), tools=TOOLS[:2]))
    assert "agents" in everything
    assert "upgrade" in everything
    assert "agents" not in few
    assert "upgrade" not in few
    assert "sleep" in few


def test_a_tool_that_is_not_offered_is_not_called() -> None:
    answer = said_to_demo(user("run ls"), tools=(tool("think", thoughts="string"),))
    assert answer.end_turn
    assert "not available" in text_of(answer)


def test_a_retry_is_staged_once_and_says_so() -> None:
    sink = Sink()
    with pytest.raises(ModelFailedError) as raised:
        said_to_demo(user("show me a retry"), sink=sink)
    assert raised.value.failure.kind is ErrorKind.SERVER_ERROR
    assert "staged" in raised.value.failure.message
    assert sink.said
    assert "attempt 2" in text_of(said_to_demo(user("show me a retry"), attempt=2))


def test_thinking_is_streamed_apart() -> None:
    sink = Sink()
    answer = said_to_demo(user("think about it"), sink=sink)
    assert isinstance(answer.content[0], Reasoning)
    assert "".join(sink.thought) == answer.content[0].text
    assert "".join(sink.said) == text_of(answer)


def test_help_and_everything_else_say_how_to_get_a_real_model() -> None:
    for turns in ((user("help"),), (*SEEN_BEFORE, user("What is love?"))):
        answer = said_to_demo(*turns)
        assert answer.end_turn
        for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
            assert variable in text_of(answer)
    assert "scripted" in text_of(said_to_demo(user("help")))


def test_without_tools_it_writes_a_summary() -> None:
    answer = said_to_demo(user("Build a boat"), assistant("Yes."), user("Summarise, please."), tools=())
    assert "Build a boat" in text_of(answer)
    assert answer.end_turn
    assert len(answer.content) == 1


def test_a_command_is_obeyed_also_right_behind_a_result() -> None:
    """As when the answer to the result was cancelled: nothing of it is in the history."""
    begun = (user("sleep"), assistant(ToolUse("t", "bash", "{}")))
    assert call_of(said_to_demo(*begun, user(ToolSuccess("t", "x"), "run ls"))) == ("bash", {"cmd": "ls"})


def test_the_results_of_sub_agents_that_a_person_started_are_reported() -> None:
    results = Text('<system-notice>\nTask: "run ls"\nResult: a.txt\n</system-notice>')
    answer = said_to_demo(user("run ls", results))
    assert answer.end_turn
    assert text_of(answer).endswith('Task: "run ls"\nResult: a.txt')


# --- as a sub-agent -------------------------------------------------------------------------------------------------


def lived(task: str, *results: ToolError | ToolSuccess, tools: tuple[ToolSpec, ...] = CHILD_TOOLS) -> list[Any]:
    """The calls of a sub-agent whose tools answer with these results."""
    turns, made = [user(task)], []
    for result in (*results, None):
        answer = said_to_demo(*turns, tools=tools)
        call = next(block for block in answer.content if isinstance(block, ToolUse))
        made.append((call.name, json.loads(call.input)))
        if result is not None:
            turns += [Turn("assistant", answer.content), user(replace(result, tool_use_id=call.id))]
    return made


@pytest.mark.parametrize(
    ("task", "call"),
    [
        ("Count them: run ls | wc -l", ("bash", {"cmd": "ls | wc -l"})),
        ("run ls\nand say what is there", ("bash", {"cmd": "ls"})),
        ("See: read a.txt", ("read_file", {"path": "a.txt"})),
        ("Say one good thing", ("think", {"thoughts": "My task: Say one good thing"})),
    ],
)
def test_a_sub_agent_does_what_its_task_says_and_submits_what_came_of_it(task: str, call: tuple[str, Any]) -> None:
    assert lived(task, ToolSuccess("", "\n  4\n[exit code 0]")) == [call, ("submit_result", {"result": "  4"})]


def test_a_sub_agent_whose_tool_fails_submits_why() -> None:
    assert lived("read a.txt", ToolError("", "no such file"))[-1] == ("submit_error", {"error": "no such file"})


def test_a_sub_agent_that_has_no_tool_for_it_or_is_reminded_submits() -> None:
    assert lived("x", tools=CHILD_TOOLS[2:4]) == [("submit_result", {"result": "Done, by script: x"})]
    token_count = said_to_demo(user("count"), tools=CHILD_TOOLS)
    assert token_count.end_turn
    reminded = said_to_demo(user("count"), Turn("assistant", token_count.content), user(NOTICE), tools=CHILD_TOOLS)
    assert call_of(reminded)[0] == "submit_result"


def test_the_sub_agents_of_the_demo_use_their_tools() -> None:
    tasks = call_of(said_to_demo(user("agents")))[1]["tasks"]
    first = [lived(task["task"])[0][0] for task in tasks]
    assert first == ["bash", "bash", "read_file"]


def test_it_can_be_cancelled_while_it_speaks() -> None:
    asking = RequestThread(DemoModel(pace=3600))
    assert not asking.sink.heard.is_set()
    assert asking.cancelled(), asking.outcome
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(ModelAbortedError):
        DemoModel(pace=0).respond(request(), Sink(), cancel)


def test_the_catalog_hands_its_pace_on() -> None:
    demo = Catalog(pace=0).get("demo")
    assert demo is not None
    assert ask(demo, user("count")).end_turn


BLOCKS = st.one_of(
    st.builds(Text, st.text(max_size=20)),
    st.sampled_from(["help", "retry", "run", "run ls", "read", "count", "sleep 99999", "think", "agents"]).map(Text),
)


@settings(deadline=None)
@given(st.lists(BLOCKS, max_size=3), st.integers(1, 3), st.sampled_from([TOOLS, CHILD_TOOLS, ()]))
def test_the_same_request_gets_the_same_answer(
    blocks: list[Content], attempt: int, tools: tuple[ToolSpec, ...]
) -> None:
    def once() -> ModelAnswer | str:
        try:
            return said_to_demo(Turn("user", tuple(blocks)), tools=tools, attempt=attempt)
        except ModelFailedError as failed:
            return failed.failure.message

    answer = once()
    assert answer == once()
    if isinstance(answer, ModelAnswer):
        assert answer.usage is not None
        assert answer.usage.output_tokens > 0
        assert text_of(answer)
        assert answer.end_turn == (not any(isinstance(block, ToolUse) for block in answer.content))


@pytest.mark.parametrize(
    ("purpose", "asked", "answered"),
    [
        (Purpose.TITLE, "run ls", "Demo: run ls"),
        (Purpose.TITLE, "one two three four five six", "Demo: one two three four five …"),
        (Purpose.EXCERPTS, "Question: q?\n\nFound:\na-1-x\na:2:term\n--\nb:1:term too\n", "a:2:term\nb:1:term too"),
        (Purpose.EXCERPTS, "Question: a:1:b\n\nFound:\na-1-x\n", "Nothing relevant was found."),
    ],
)
def test_small_requests_are_scripted_too(purpose: Purpose, asked: str, answered: str) -> None:
    aside = replace(request(user(asked), tools=()), purpose=purpose)
    assert text_of(DemoModel(pace=0).respond(aside, Sink(), CancelToken())) == answered


def test_a_run_with_an_output_schema_ends_with_a_made_up_value() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    submit = ToolSpec("Submit.", schema, ToolTraits("submit_output", ToolGroup.OTHER))
    first = DemoModel(0).respond(replace(request(user("hello")), tools=(*TOOLS, submit)), Sink(), CancelToken())
    assert call_of(first)[0] == "bash", "it works first"
    asked = replace(request(user("think about it")), tools=(submit,))
    assert call_of(DemoModel(0).respond(asked, Sink(), CancelToken())) == (
        "submit_output", {"name": "Scripted text."},
    )  # fmt: skip


def test_tools_of_clients_alone_are_each_used_once_with_input_that_fits() -> None:
    traits = ToolTraits("find_order", ToolGroup.OTHER, client=True)
    schema = {"type": "object", "properties": {"number": {"type": "integer", "examples": [7]}}, "required": ["number"]}
    tools = (ToolSpec("Finds it.", schema, traits),)
    calling = said_to_demo(user("Where is it?"), tools=tools)
    assert call_of(calling) == ("find_order", {"number": 7})
    results = Turn("user", (ToolSuccess("r1", "shipped"),))
    ended = said_to_demo(user("Where is it?"), Turn("assistant", calling.content), results, tools=tools)
    assert ended.end_turn
    assert "shipped" in text_of(ended)


def test_tools_of_clients_are_called_beside_others_where_the_words_fit_or_by_name() -> None:
    traits = ToolTraits("find_order", ToolGroup.OTHER, client=True)
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    tools = (*TOOLS, ToolSpec("Finds it.", schema, traits))

    def said(text: str) -> ModelAnswer:
        return said_to_demo(*SEEN_BEFORE, user(text), tools=tools)

    assert call_of(said("Can you find the Order of Ms Miller?")) == ("find_order", {"number": 0})
    assert call_of(said('call find_order {"number": 7}')) == ("find_order", {"number": 7})
    assert call_of(said("call find_order")) == ("find_order", {"number": 0})
    assert call_of(said("call bash")) == ("bash", {"cmd": "Scripted text."})
    assert call_of(said("run find / -name order"))[0] == "bash", "a command goes first"
    assert said("Find it.").end_turn, "one word of two"
    assert "call find_order {…}" in text_of(said("help"))
    assert "not a JSON object" in text_of(said("call find_order {7}"))
    assert "not available" in text_of(said("call lose_order"))
    assert "call" not in text_of(said_to_demo(*SEEN_BEFORE, user("help"))), "it is only said where it helps"
