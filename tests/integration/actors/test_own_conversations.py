"""A conversation is what its creator makes it: what it is told, and which tools it is offered."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from actors import messages
from actors.core.content import ToolError, ToolUse
from actors.core.context import Generation, Profile, ReasoningEffort
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.notifications import RunStop, StopReason
from actors.core.states import ContextExhausted, Error, Idle, RunOptions
from actors.messages import ContinueConversationCommand, TriggerContinuationCommand
from actors.ports import ToolOutput, etag_of
from tests.integration.actors.conftest import Box, ScriptedModel

World = Any

LOOK = ToolUse("t1", "look", "{}")
BASH = ToolUse("t2", "bash", '{"cmd": "ls"}')


def chosen(world: World, **profile: Any) -> Any:
    return world.create(profile=Profile(**profile))


def test_the_model_gets_the_instructions_and_the_chosen_tools(world: World) -> None:
    talk = chosen(world, instructions="Answer in rhymes.", tools=("look",))
    exchange = talk.asks("hello")
    assert "Answer in rhymes." in exchange.request.system
    assert [spec.name for spec in exchange.request.tools] == ["look"]
    exchange.say("Well, …")
    talk.rest(Idle)


def test_a_tool_that_was_not_chosen_does_not_run_when_the_model_calls_it(world: World) -> None:
    talk = chosen(world, tools=("look",))
    talk.asks("hello").call(BASH)
    answered = talk.exchange()
    result = answered.request.turns[-1].content[0]
    assert isinstance(result, ToolError)
    assert result.output == "There is no tool 'bash' in this conversation. The tools are: look."
    assert world.box.tools["bash"].started == 0
    answered.say("Then not.")
    talk.rest(Idle)


def test_none_of_the_tools_is_a_choice_too(world: World) -> None:
    talk = chosen(world, tools=())
    exchange = talk.asks("hello")
    assert exchange.request.tools == ()
    exchange.call(LOOK)
    answered = talk.exchange()
    assert "There are none." in answered.request.turns[-1].content[0].output
    answered.say("Then not.")
    talk.rest(Idle)


def test_tools_are_offered_in_the_order_for_the_model_each_once(world: World) -> None:
    talk = chosen(world, tools=("look", "bash", "look"))
    assert talk.record.profile.tools == ("bash", "look")


def test_an_unknown_tool_is_refused_with_the_names_of_those_that_there_are(world: World) -> None:
    command = messages.CreateConversationCommand("tester", "/tmp", profile=Profile(tools=("look", "juggle")))
    with pytest.raises(messages.InvalidFieldError, match="no tool 'juggle'; available tools: bash, look") as refused:
        world.supervisor.create(command).result(60)
    assert refused.value.field == "tools"


def test_the_log_names_what_was_chosen(world: World) -> None:
    plain, own = world.create(), chosen(world, instructions="Be brief.", replaces_prompt=True, tools=())
    first = world.store.transitions(plain.id, after_step=0, limit=1)[0].event
    assert "profile" not in msgspec.json.decode(first)
    first = world.store.transitions(own.id, after_step=0, limit=1)[0].event
    expected = {"instructions": "Be brief.", "replaces_prompt": True, "tools": []}
    assert msgspec.json.decode(first)["profile"] == expected


def test_the_successor_keeps_what_was_chosen(world: World) -> None:
    talk = chosen(world, instructions="Answer in rhymes.", tools=("look",))
    talk.turn("hello", "Hello.")
    talk.ask(messages.TriggerContinuationCommand())
    talk.answer("They said hello.", ContextExhausted)
    successor = talk.ask(messages.ContinueConversationCommand(include_summary=True))
    assert successor.profile == talk.record.profile
    assert "Answer in rhymes." in successor.system_prompt
    stored = world.store.load(successor.id)
    assert stored.profile == talk.record.profile


def test_sub_agents_are_told_and_offered_the_standard(world: World) -> None:
    """REQ-BED-009."""
    talk = chosen(world, instructions="Answer in rhymes.", tools=())
    talk.ask(messages.SpawnSubAgentsCommand((messages.SpawnSubAgentsTask("count the files"),)))
    child = talk.exchange()
    assert "Answer in rhymes." not in child.request.system
    assert [spec.name for spec in child.request.tools] == ["bash", "look"]
    child.call(ToolUse("s1", "submit_result", '{"result": "7"}'))
    parent = talk.exchange()
    assert parent.request.tools == ()
    parent.say("Seven.")
    talk.rest(Idle)


LOW, HIGH = Generation(ReasoningEffort.LOW), Generation(ReasoningEffort.HIGH)


def asked_for(talk: Any) -> Generation:
    """The settings of the next request, which is answered."""
    exchange = talk.exchange()
    exchange.say("Well.")
    talk.rest(Idle)
    assert exchange.request.max_output == exchange.request.generation.max_output_tokens
    generation = exchange.request.generation
    assert isinstance(generation, Generation)
    return generation


def test_a_message_brings_settings_for_its_run_over_those_of_the_conversation(world: World) -> None:
    talk = chosen(world, generation=Generation(ReasoningEffort.LOW, max_output_tokens=500))
    talk.send("one")
    assert asked_for(talk) == Generation(ReasoningEffort.LOW, max_output_tokens=500)
    talk.send("two", options=RunOptions(generation=HIGH))
    assert asked_for(talk) == Generation(ReasoningEffort.HIGH, max_output_tokens=500)
    talk.send("three")
    assert asked_for(talk) == Generation(ReasoningEffort.LOW, max_output_tokens=500)


def test_a_follow_up_keeps_its_settings_until_its_run(world: World) -> None:
    talk = chosen(world)
    first = talk.asks("one", options=RunOptions(generation=LOW))
    talk.send("two", delivery="follow_up", options=RunOptions(generation=HIGH))
    assert first.request.generation == LOW
    first.say("One.")
    second = talk.exchange()
    assert second.request.generation == HIGH
    second.say("Two.")
    talk.rest(Idle)


def test_new_settings_hold_from_the_next_request_on(world: World) -> None:
    talk = chosen(world, generation=LOW)
    before = etag_of(talk.record)
    first = talk.asks("one")
    talk.ask(messages.UpdateConversationCommand(generation=HIGH))
    assert etag_of(talk.record) != before
    first.call(LOOK)
    talk.tool("look").finish.put(ToolOutput("seen"))
    assert asked_for(talk) == HIGH
    assert world.store.load(talk.id).profile == Profile(generation=HIGH)
    talk.ask(messages.UpdateConversationCommand(some_generation={"max_output_tokens": 99}))
    talk.ask(messages.UpdateConversationCommand(some_generation={"reasoning_effort": None}))
    assert talk.record.profile.generation == Generation(max_output_tokens=99)
    talk.ask(messages.UpdateConversationCommand(title="T"))
    assert talk.record.profile.generation == Generation(max_output_tokens=99)


def test_sub_agents_are_asked_as_their_conversation_is(world: World) -> None:
    talk = chosen(world, generation=LOW)
    talk.ask(messages.SpawnSubAgentsCommand((messages.SpawnSubAgentsTask("count the files"),)))
    child = talk.exchange()
    assert child.request.generation == LOW
    child.call(ToolUse("s1", "submit_result", '{"result": "7"}'))
    assert asked_for(talk) == LOW


WARM, LONG = Generation(temperature=0.5), Generation(ReasoningEffort.MAX, max_output_tokens=8_001)


def test_what_the_model_cannot_do_is_refused_and_changes_nothing(world: World) -> None:
    talk = chosen(world)
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: chosen(world, generation=WARM),
        lambda: talk.send("hello", options=RunOptions(generation=WARM)),
        lambda: talk.ask(messages.UpdateConversationCommand(generation=WARM)),
    )
    for refused in attempts:
        with pytest.raises(Rejected, match=r"generation\.temperature: scripted does not support it") as refusal:
            refused()
        assert refusal.value.reason is Reason.GENERATION_UNSUPPORTED
    with pytest.raises(Rejected) as refusal:
        talk.send("hello", options=RunOptions(generation=LONG))
    assert str(refusal.value) == (
        "generation.reasoning_effort: scripted supports only low, high; "
        "generation.max_output_tokens: scripted allows at most 8000 tokens"
    )
    assert (talk.record.profile, talk.record.state) == (Profile(), Idle())


SCHEMA = '{"type":"object","properties":{"answer":{"type":"integer"}},"required":["answer"]}'


def test_a_run_ends_with_a_value_that_the_server_has_checked(world: World) -> None:
    talk = chosen(world, tools=("look",))
    run = talk.send("hello", options=RunOptions(output_schema=SCHEMA)).run
    first = talk.exchange()
    assert [spec.name for spec in first.request.tools] == ["look", "submit_output"]
    assert first.request.tools[1].input_schema == msgspec.json.decode(SCHEMA)
    first.call(ToolUse("o1", "submit_output", '{"answer": "seven"}'))
    second = talk.exchange()
    assert '"seven" is not of type "integer"' in second.request.turns[-1].content[0].output
    second.call(ToolUse("o2", "submit_output", '{"answer": 7}'))
    talk.rest(Idle)
    (ended,) = world.store.stopped_runs(talk.id, limit=5)
    assert ended.stop == RunStop(run, StopReason.COMPLETED, output='{"answer":7}')
    plain = talk.asks("and now?")
    assert [spec.name for spec in plain.request.tools] == ["look"]
    plain.say("Nothing.")
    talk.rest(Idle)


def test_a_run_without_a_fitting_value_fails_and_says_why(world: World) -> None:
    talk = chosen(world)
    talk.send("hello", options=RunOptions(output_schema=SCHEMA))
    for _ in range(3):
        talk.exchange().say("Seven.")
    failed = talk.rest(Error)
    assert failed.error_kind is ErrorKind.OUTPUT_INVALID
    assert "it is not valid JSON" in failed.message


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"type":"nonsense"}', "nonsense"),
        ('{"$ref":"https://example.com/s"}', "must point to a place within the schema itself"),
        ('{"description":"' + "x" * 65_536 + '"}', "65536 bytes"),
    ],
)
def test_what_is_no_schema_is_refused(world: World, schema: str, why: str) -> None:
    talk = chosen(world)
    with pytest.raises(messages.InvalidFieldError, match=why) as refused:
        talk.send("hello", options=RunOptions(output_schema=schema))
    assert refused.value.field == "output_schema"
    assert talk.record.state == Idle()


# A model that is slow to read is told little first, and offered the essential tools only.


class LeanModel(ScriptedModel):
    info = msgspec.structs.replace(ScriptedModel.info, lean=True)


def test_a_lean_model_is_offered_the_essential_tools_and_a_short_prompt(make_world: Any) -> None:
    box = Box()
    box.tools["look"].spec = msgspec.structs.replace(box.tools["look"].spec, essential=True)
    asked = []
    for model in (ScriptedModel(), LeanModel()):
        talk = make_world(model=model, box=box).create()
        exchange = talk.asks("hello")
        asked.append(exchange.request)
        exchange.say("Hello.")
        talk.rest(Idle)
    full, lean = asked
    assert [spec.name for spec in full.tools] == ["bash", "look"]
    assert [spec.name for spec in lean.tools] == ["look"]
    assert len(lean.system) < len(full.system) / 3


def test_the_successor_of_a_lean_conversation_is_lean(make_world: Any) -> None:
    world = make_world(model=LeanModel())
    talk = world.create()
    talk.turn("hello", "Hello.")
    talk.ask(TriggerContinuationCommand())
    talk.answer("They said hello.", ContextExhausted)
    successor = talk.ask(ContinueConversationCommand(include_summary=True))
    assert len(successor.system_prompt) < 600
