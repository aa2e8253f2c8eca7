"""Small requests of running tools: answered, bounded, cancelled at once, paid for; and what abandoned requests cost."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from actors import ports
from actors.core.content import Text, ToolCancelled, ToolUse, Usage
from actors.core.context import ToolTraits
from actors.core.errors import ErrorKind
from actors.core.notifications import UsageChanged
from actors.core.states import Error, Idle
from actors.messages import TriggerContinuationCommand
from actors.runners import side_queries
from actors.runners.side_queries import MAX_BYTES
from tests.integration.actors.conftest import Box, Exchange, Hold, ScriptedModel, Talk, World
from tests.support.patience import PATIENCE

ASIDE = ports.SideQuery(ports.Purpose.EXCERPTS, "Pick.", "much text", 500)
CALL = ToolUse("t1", "sift", "{}")


class Sift:
    """A tool that asks an aside and shows what came of it."""

    def __init__(self, aside: ports.SideQuery = ASIDE) -> None:
        self.spec = ports.ToolSpec("for tests", {"type": "object"}, ToolTraits("sift", "read-group", retry_safe=True))  # type: ignore[arg-type]
        self.aside = aside
        self.started = 0

    def run(self, arguments: Mapping[str, Any], context: ports.ToolContext) -> ports.ToolOutput:
        self.started += 1
        try:
            return ports.ToolOutput(context.make_side_query(self.aside))
        except ports.SideQueryError as why:
            return ports.ToolOutput(f"unanswered: {why}")


@pytest.fixture
def sift() -> Sift:
    return Sift()


@pytest.fixture
def small() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
def talk(make_world: Callable[..., World], sift: Sift, small: ScriptedModel) -> Talk:
    box = Box()
    box.tools["sift"] = sift  # type: ignore[assignment]
    return make_world(box=box, small=small).create()


def asked(talk: Talk) -> Exchange:
    """Send a message whose answer calls the tool; what the tool asks."""
    talk.asks("look").call(CALL)
    exchange: Exchange = talk.world.small.exchanges.get(timeout=PATIENCE)
    return exchange


def result(talk: Talk) -> str:
    """What the model reads of the call."""
    return str(talk.exchange().request.turns[-1].content[0].output)  # type: ignore[union-attr]


def test_a_tool_gets_its_answer_and_the_conversation_pays_for_it(talk: Talk) -> None:
    aside = asked(talk)
    request = aside.request
    assert (request.system, request.tools, request.max_output, request.purpose) == ("Pick.", (), 500, ASIDE.purpose)
    assert [block.text for turn in request.turns for block in turn.content if isinstance(block, Text)] == ["much text"]
    assert request.conversation_id != talk.id, "it must not take the place of the conversation's turns in caches"
    aside.say("the best of it", usage=Usage(100, 10, cost_micros=7))
    answer = talk.exchange()
    assert answer.request.turns[-1].content[0].output == "the best of it"  # type: ignore[union-attr]
    answer.say("Done.", usage=Usage(20, 2))
    ledger = talk.rest(Idle).ledger
    assert ledger.aside_usage == Usage(100, 10, cost_micros=7)
    assert (ledger.total_usage, ledger.run_usage, ledger.used_tokens) == (Usage(20, 2), Usage(20, 2), 22)
    assert (ledger.req, ledger.rounds) == (2, 2), "an aside is no request of the conversation"
    assert len(talk.found(UsageChanged)) == 2
    assert talk.world.truth.verify(talk.id) == ()


def test_a_cancel_ends_the_aside_and_its_cost_is_reported(talk: Talk) -> None:
    aside = asked(talk)
    aside.counted = Usage(80)
    talk.cancel()
    assert aside.cancel.wait(PATIENCE)
    assert isinstance(talk.state, Idle)
    talk.until(lambda: talk.record.state.ledger.aside_usage == Usage(80))
    (cut,) = [block for message in history(talk) for block in message.content if isinstance(block, ToolCancelled)]
    assert cut.tool_use_id == "t1"
    talk.check()


def history(talk: Talk) -> Any:
    return talk.world.truth.history(talk.id, talk.record.state.ledger.seq)


def test_a_failure_is_reported_to_the_tool_and_its_usage_counted(talk: Talk) -> None:
    asked(talk).fail(ErrorKind.SERVER_ERROR, "it broke", usage=Usage(30))
    assert result(talk) == "unanswered: it broke"
    assert talk.record.state.ledger.aside_usage == Usage(30)


def test_while_the_small_model_is_busy_the_tool_is_tried_again_and_then_does_without(talk: Talk, sift: Sift) -> None:
    asked(talk).fail(ErrorKind.RATE_LIMIT, "slow down")
    for _ in range(2):
        talk.world.small.exchanges.get(timeout=PATIENCE).fail(ErrorKind.RATE_LIMIT, "slow down")
    assert result(talk) == "unanswered: slow down"
    assert sift.started == 3


def test_an_aside_has_its_time(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_queries, "TIMEOUT_MS", 1)
    aside = asked(talk)
    assert aside.cancel.wait(PATIENCE)
    assert result(talk) == "unanswered: it took too long"


def test_a_bug_in_the_small_model_is_no_bug_of_the_tool(talk: Talk) -> None:
    asked(talk).crash()
    assert result(talk) == "unanswered: internal error; see the server log"


@pytest.mark.parametrize("answer", [{"refusal": True}, {}])
def test_an_answer_that_says_nothing_is_none(talk: Talk, answer: dict[str, Any]) -> None:
    asked(talk).say("no" if answer else "  ", usage=Usage(5), **answer)
    assert result(talk) == "unanswered: the small model gave no answer"
    assert talk.record.state.ledger.aside_usage == Usage(5)


def test_what_is_too_long_is_not_asked(talk: Talk, sift: Sift, small: ScriptedModel) -> None:
    sift.aside = ports.SideQuery(ports.Purpose.EXCERPTS, "Pick.", "x" * MAX_BYTES, 500)
    talk.asks("look").call(CALL)
    assert result(talk) == "unanswered: the text is too long for the small model"
    assert small.asked == 0


@pytest.fixture
def narrow(make_world: Callable[..., World], sift: Sift, small: ScriptedModel) -> World:
    """A world for one model request at a time."""
    box = Box()
    box.tools["sift"] = sift  # type: ignore[assignment]
    return make_world(box=box, small=small, max_llm_requests=1)


def test_an_aside_takes_the_place_of_a_request(narrow: World) -> None:
    talk, other = narrow.create(), narrow.create()
    aside = asked(talk)
    other.send("me too")
    assert "1 model requests in flight" in other.rest(Error).message
    aside.say("this")
    talk.answer("Done.")
    other.turn("now?", "Done.")


def test_where_there_is_no_place_an_aside_is_not_asked(narrow: World, small: ScriptedModel, hold: Hold) -> None:
    talk, other = narrow.create(), narrow.create()
    narrow.faults.arm("tool.before", hold)
    talk.asks("look").call(CALL)
    hold.wait()
    first = other.asks("me first")
    hold.release()
    talk.rest(Error)  # it gets no place either
    first.say("Done.")
    other.rest(Idle)
    assert small.asked == 0
    assert "unanswered: this server has reached its limit of 1 model requests in flight" in talk.texts()


def test_without_a_small_model_there_is_no_answer(make_world: Callable[..., World]) -> None:
    box = Box()
    box.tools["sift"] = Sift()  # type: ignore[assignment]
    talk = make_world(box=box).create()
    talk.asks("look").call(CALL)
    assert result(talk) == "unanswered: no small model is configured"


# --- requests that were abandoned -------------------------------------------------------------------------------------


def test_a_cancelled_request_is_paid_for_once(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("long")
    exchange.counted = Usage(400, 3)
    talk.cancel()
    talk.until(lambda: talk.record.state.ledger.total_usage == Usage(400, 3))
    ledger = talk.rest(Idle).ledger
    assert (ledger.run_usage, ledger.used_tokens, ledger.aside_usage) == (Usage(), 0, Usage())
    talk.asks("again").say("Done.", usage=Usage(10))
    assert talk.rest(Idle).ledger.total_usage == Usage(410, 3)


class Deaf(ScriptedModel):
    """Answers although it was cancelled."""

    def respond(
        self, request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken
    ) -> ports.ModelAnswer:
        exchange = Exchange(request, sink, ports.CancelToken())
        self.exchanges.put(exchange)
        return exchange.wait()


def test_an_answer_that_came_too_late_is_paid_for(make_world: Callable[..., World]) -> None:
    talk = make_world(model=Deaf()).create()
    exchange = talk.asks("long")
    talk.cancel()
    exchange.say("too late", usage=Usage(6, 6))
    talk.until(lambda: talk.record.state.ledger.total_usage == Usage(6, 6))
    assert "too late" not in talk.texts()


def test_the_usage_of_an_unrequested_abort_counts_for_its_run(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("hello")
    exchange.counted = Usage(9)
    exchange.cancel.cancel()
    talk.exchange().say("Done.", usage=Usage(1))
    assert talk.rest(Idle).ledger.run_usage == Usage(10)


def test_a_summary_that_was_cancelled_is_paid_for(world: World) -> None:
    talk = world.create()
    talk.ask(TriggerContinuationCommand())
    exchange = talk.exchange()
    exchange.counted = Usage(70)
    talk.cancel()
    talk.until(lambda: talk.record.state.ledger.total_usage == Usage(70))


def test_the_cost_of_an_abandoned_request_waits_for_a_store_that_fails(shaky: World) -> None:
    talk = shaky.create()
    exchange = talk.asks("long")
    exchange.counted = Usage(5)
    talk.cancel()
    talk.until(lambda: talk.record.state.ledger.total_usage == Usage(5))
    exchange = talk.asks("again")
    exchange.counted = Usage(5)
    shaky.store.lies = 2  # the cancel's commit, and the cost's, are carried out and told to have failed
    assert not talk.cancel().recorded
    talk.until(lambda: talk.record.state.ledger.total_usage == Usage(10))
    talk.check()
