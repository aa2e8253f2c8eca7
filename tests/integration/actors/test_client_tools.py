"""Tools of clients through real actors: they wait, are answered once, and leave nothing behind."""

import contextlib
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from actors import messages
from actors.core.content import ToolOutcome, ToolResult, ToolSuccess, ToolUse, is_tool_result
from actors.core.context import ClientTool, Mode, Profile, ToolGroup
from actors.core.errors import Reason, Rejected
from actors.core.notifications import CallStatus, ClientToolCall, ConversationUpdated, MessageAdded
from actors.core.states import Idle, LlmRequesting, ToolExecuting
from tests.integration.actors.test_modes import Cell
from tests.support.patience import PATIENCE, eventually
from tests.support.stores import new_store

World = Any

CANCELS = int(os.environ.get("BEDROCK_CLIENT_CANCELS", "40"))
SCHEMA = '{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}'
FIND = ClientTool("find_order", "Finds an order.", SCHEMA, ToolGroup.READ, 60_000, read_only=True)
SHIP = ClientTool("ship_order", "Ships an order.", SCHEMA, ToolGroup.WRITE, 60_000)
CALL = ToolUse("t1", "find_order", '{"id": 7}')
SHIPPING = ToolUse("t1", "ship_order", '{"id": 7}')


def submit(talk: Any, call_id: str = "t1", output: str = "shipped", **fields: Any) -> messages.SubmitToolResultResult:
    answer: messages.SubmitToolResultResult = talk.ask(
        messages.SubmitToolResultCommand(call_id, ToolSuccess(call_id, output), **fields)
    )
    return answer


def refused(cause: str) -> Any:
    return pytest.raises(
        Rejected, check=lambda error: (error.reason, error.cause) == (Reason.UNKNOWN_OR_DECIDED, cause)
    )


def asking(world: World, call: ToolUse = CALL) -> Any:
    """A conversation whose model has called a tool of clients."""
    talk = world.create(profile=Profile(client_tools=(FIND, SHIP)))
    talk.asks("go").call(call)
    talk.until(lambda: isinstance(talk.state, ToolExecuting))
    return talk


def statuses(talk: Any) -> list[CallStatus]:
    return [told.status for told in talk.found(ClientToolCall)]


def results(talk: Any) -> list[ToolResult]:
    added = [told.message for told in talk.found(MessageAdded)]
    return [block for message in added for block in message.content if is_tool_result(block)]


def test_the_model_is_offered_them_after_ours_and_an_answer_goes_on_with_the_run(world: World) -> None:
    talk = world.create(profile=Profile(client_tools=(FIND, SHIP)))
    first = talk.asks("go")
    assert [spec.name for spec in first.request.tools][-2:] == ["find_order", "ship_order"]
    assert first.request.tools[-1].input_schema["required"] == ["id"]
    first.call(CALL)
    talk.until(lambda: isinstance(talk.state, ToolExecuting))

    answer = submit(talk)

    assert not answer.duplicate
    assert [result.output for result in results(talk)] == ["shipped"]
    talk.answer("done")
    assert statuses(talk) == [CallStatus.PENDING, CallStatus.ANSWERED]
    talk.check()


def test_the_same_answer_again_is_accepted_and_another_one_refused_as_answered(world: World) -> None:
    talk = asking(world)
    first = submit(talk)

    again = submit(talk)

    assert (again.duplicate, again.message) == (True, first.message)
    with refused("answered"):
        submit(talk, output="lost")
    assert len(results(talk)) == 1


def test_a_request_id_that_is_repeated_gets_the_same_answer_and_is_not_for_another(world: World) -> None:
    talk = asking(world)
    first = submit(talk, request_id="r", body_hash="a")

    assert submit(talk, request_id="r", body_hash="a").message == first.message
    with pytest.raises(Rejected, check=lambda error: error.reason is Reason.REQUEST_ID_REUSED):
        submit(talk, request_id="r", body_hash="b")


def test_an_answer_to_no_such_call_is_refused_as_unknown(world: World) -> None:
    talk = asking(world)
    with refused("unknown"):
        submit(talk, "t9")
    submit(talk)
    exchange = talk.exchange()
    exchange.call(ToolUse("t2", "bash", "{}"))
    talk.tool().reap.set()
    with refused("unknown"):  # a tool of ours, which runs
        submit(talk, "t2")
    talk.cancel()
    talk.rest(Idle)
    with refused("unknown"):
        submit(talk, "t2")


def test_a_call_that_nobody_answers_times_out_and_the_run_goes_on(world: World) -> None:
    talk = world.create(profile=Profile(client_tools=(ClientTool("find_order", input_schema=SCHEMA, timeout_ms=1),)))
    talk.asks("go").call(CALL)
    talk.until(lambda: isinstance(talk.state, LlmRequesting) and len(results(talk)) == 1)

    assert statuses(talk) == [CallStatus.PENDING, CallStatus.TIMED_OUT]
    assert results(talk)[0].outcome is ToolOutcome.TIMED_OUT
    with refused("timed_out"):
        submit(talk)
    talk.answer("nobody is there")


def test_restricted_mode_offers_those_that_read_and_stop_running_withdraws_the_others(
    make_world: Callable[..., World],
) -> None:
    cell = make_world(sandbox=Cell())
    talk = cell.create(profile=Profile(client_tools=(FIND, SHIP)), mode=Mode.RESTRICTED)
    exchange = talk.asks("go")
    assert [spec.name for spec in exchange.request.tools if spec.traits.client] == ["find_order"]
    talk.ask(messages.SetModeCommand(Mode.UNRESTRICTED))
    exchange.call(ToolUse("t0", "find_order", '{"id": 1}'))
    talk.until(lambda: isinstance(talk.state, ToolExecuting))
    submit(talk, "t0")
    second = talk.exchange()
    assert [spec.name for spec in second.request.tools if spec.traits.client] == ["find_order"], "frozen for the run"
    second.call(SHIPPING)
    talk.until(lambda: isinstance(talk.state, ToolExecuting))
    assert talk.ask(messages.SetModeCommand(Mode.RESTRICTED)).surviving_calls == ()

    answer = talk.ask(messages.SetModeCommand(Mode.RESTRICTED, stop_running=True))

    assert answer.stopped_calls == ("t1",)
    assert statuses(talk)[-1] is CallStatus.WITHDRAWN
    talk.answer("stopped")


def test_what_the_mode_does_not_offer_is_refused_if_asked_and_nothing_is_changed(
    make_world: Callable[..., World],
) -> None:
    cell = make_world(sandbox=Cell())
    not_offered = pytest.raises(
        Rejected, match="ship_order would not be", check=lambda error: error.reason is Reason.TOOL_NOT_OFFERED
    )
    both = Profile(client_tools=(FIND, SHIP))
    with not_offered:
        cell.create(profile=both, refuse_unoffered_tools=True)
    assert cell.store.unsettled() == ()
    talk = cell.create(profile=Profile(client_tools=(FIND,)), refuse_unoffered_tools=True)
    before = talk.record
    with not_offered:
        talk.ask(messages.UpdateConversationCommand(title="new", client_tools=(SHIP,), refuse_unoffered_tools=True))
    assert talk.record == before
    talk.ask(messages.UpdateConversationCommand(client_tools=(SHIP,)))
    assert talk.record.profile.client_tools == (SHIP,)
    assert cell.create(profile=both, mode=Mode.UNRESTRICTED, refuse_unoffered_tools=True).record.profile == both


def test_they_change_at_rest_only_and_the_next_run_offers_the_new_ones(world: World) -> None:
    talk = asking(world)
    with pytest.raises(Rejected, check=lambda error: error.reason is Reason.AGENT_BUSY):
        talk.ask(messages.UpdateConversationCommand(client_tools=(SHIP,)))
    submit(talk)
    talk.answer("done")

    record = talk.ask(messages.UpdateConversationCommand(client_tools=(SHIP,)))

    assert record.profile.client_tools == (SHIP,)
    assert [told.fields for told in talk.found(ConversationUpdated)][-1] == ("client_tools",)
    talk.send("again")
    assert [spec.name for spec in talk.exchange().request.tools if spec.traits.client] == ["ship_order"]
    talk.cancel()
    talk.rest(Idle)
    talk.check()


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ((ClientTool("bash"),), "client_tools[0].name"),
        ((FIND, ClientTool("mcp__files__read")), "client_tools[1].name"),
        ((FIND, FIND), "client_tools[1].name"),
        ((ClientTool("a", input_schema='{"type":"string"}'),), "client_tools[0].input_schema"),
        ((ClientTool("a", input_schema='{"type":"object","required":7}'),), "client_tools[0].input_schema"),
        ((ClientTool("a", input_schema='{"type":"object","$ref":"http://x/y"}'),), "client_tools[0].input_schema"),
        (
            (ClientTool("a", input_schema='{"type":"object","title":"' + "x" * 16_384 + '"}'),),
            "client_tools[0].input_schema",
        ),
    ],
)
def test_what_cannot_be_offered_is_refused_at_creation_and_at_rest(
    world: World, tools: tuple[ClientTool, ...], field: str
) -> None:
    with pytest.raises(messages.InvalidFieldError, check=lambda error: error.field == field):
        world.create(profile=Profile(client_tools=tools))
    with pytest.raises(messages.InvalidFieldError, check=lambda error: error.field == field):
        world.create().ask(messages.UpdateConversationCommand(client_tools=tools))


def test_after_a_restart_the_call_is_interrupted_like_any_tool(make_world: Callable[..., World]) -> None:
    store = new_store()
    first = make_world(store)
    talk = asking(first)
    second = make_world(store)
    again = type(talk)(second, talk.record.id)

    with refused("withdrawn"):
        submit(again)
    assert [result.output for result in results(again)] == ["Interrupted by server restart"]
    assert statuses(again) == [CallStatus.PENDING, CallStatus.WITHDRAWN]


def test_a_cancel_and_an_answer_at_any_instant_leave_one_result_of_each_call_and_no_thread(world: World) -> None:
    before, seed = threading.active_count(), random.randrange(2**32)
    talk, rng = world.create(profile=Profile(client_tools=(FIND, SHIP))), random.Random(seed)
    for number in range(CANCELS):
        talk.send("go")
        exchange, call = fresh_exchange(talk), ToolUse(f"t{number}", "ship_order", '{"id": 7}')
        answering = threading.Thread(target=answer_when_asked, args=(talk, call.id, rng.random() * 0.01))
        answering.start()
        exchange.call(call)
        threading.Event().wait(rng.random() * 0.02)
        talk.cancel()
        talk.until(lambda: isinstance(talk.state, Idle))
        answering.join(PATIENCE)
        assert not answering.is_alive(), f"seed {seed}, round {number}"
    talk.check()
    made = [told.call.id for told in talk.found(ClientToolCall) if told.status is CallStatus.PENDING]
    ended = [told.call.id for told in talk.found(ClientToolCall) if told.status is not CallStatus.PENDING]
    assert made == ended, f"every call that waited has one end: seed {seed}"
    answered = [result.tool_use_id for result in results(talk)]
    assert len(answered) == len(set(answered)) >= len(made), f"and one result: seed {seed}"
    world.close()
    eventually(lambda: threading.active_count() <= before, "the end of all threads")


def fresh_exchange(talk: Any) -> Any:
    """The next model request of this run, not one that ended with an earlier run."""
    while (exchange := talk.exchange()).cancel.cancelled:
        pass
    return exchange


def answer_when_asked(talk: Any, call_id: str, pause: float) -> None:
    """Answer a call `pause` seconds after it is asked for; what it is too late for is refused."""
    with contextlib.suppress(Rejected):
        talk.until(lambda: isinstance(talk.state, ToolExecuting | Idle))
        threading.Event().wait(pause)
        submit(talk, call_id)


def test_a_fork_keeps_the_tools_of_clients(world: World) -> None:
    talk = asking(world)
    submit(talk)
    talk.answer("done")

    forked = world.supervisor.create(messages.ForkConversationCommand("tester", talk.id)).result(PATIENCE)

    assert forked.profile.client_tools == (FIND, SHIP)
