"""Questions of running tools through real actors: asked once, ended once, and the tool is told."""

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from actors.core.content import ToolUse
from actors.core.context import Mode
from actors.core.errors import Reason, Rejected
from actors.core.notifications import QuestionChanged
from actors.core.states import Idle, QuestionStatus, ToolExecuting
from actors.messages import AnswerQuestionCommand, InvalidFieldError, SetModeCommand
from actors.ports import PersonAnswer, PersonQuestion, ToolOutput, TooManyQuestionsError
from actors.runners.tool_runner import MAX_OPEN, MAX_PER_CALL
from tests.integration.actors.test_client_tools import refused
from tests.integration.actors.test_modes import Cell
from tests.support.patience import PATIENCE, eventually
from tests.support.stores import new_store

World = Any

CANCELS = 30
SCHEMA = """{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
"required": ["name"], "additionalProperties": false}"""
WHO = PersonQuestion("files", "Who are you?", 60_000, schema=SCHEMA)
VISIT = PersonQuestion("files", "Log in.", 60_000, url="https://example.com/login")
PENDING, ANSWERED, DECLINED = QuestionStatus.PENDING, QuestionStatus.ANSWERED, QuestionStatus.DECLINED
TIMED_OUT, WITHDRAWN = QuestionStatus.TIMED_OUT, QuestionStatus.WITHDRAWN


def running(world: World, **fields: Any) -> tuple[Any, Any]:
    """A conversation whose tool runs, and that tool."""
    talk = world.create(**fields)
    talk.asks("go").call(ToolUse("t1", "bash", "{}"))
    return talk, talk.tool()


def ask(talk: Any, tool: Any, question: PersonQuestion = WHO) -> Any:
    """Let the tool ask; return the future of the answer once clients have been told."""
    before = len(statuses(talk))
    future = tool.context.ask(question)
    talk.until(lambda: len(statuses(talk)) > before)
    return future


def statuses(talk: Any) -> list[tuple[int, QuestionStatus]]:
    return [(told.question.number, told.status) for told in talk.found(QuestionChanged)]


def answer(talk: Any, number: int = 1, content: str = '{"name": "Ann"}', **fields: Any) -> QuestionChanged:
    fields.setdefault("accept", True)
    told: QuestionChanged = talk.ask(AnswerQuestionCommand(number, content=content, **fields))
    return told


def end(talk: Any, tool: Any) -> None:
    tool.reap.set()
    tool.finish.put(ToolOutput("done"))
    talk.answer("bye")


def test_an_answer_reaches_the_tool_and_the_call_goes_on(world: World) -> None:
    talk, tool = running(world)
    waiting = ask(talk, tool)
    assert isinstance(talk.state, ToolExecuting)
    (question,) = talk.state.questions
    assert (question.number, question.asker, question.message) == (1, "files", "Who are you?")

    told = answer(talk)

    assert (told.status, told.call.id) == (ANSWERED, "t1")
    assert waiting.result(PATIENCE) == PersonAnswer(ANSWERED, '{"name": "Ann"}')
    assert talk.state.questions == ()
    end(talk, tool)
    assert statuses(talk) == [(1, PENDING), (1, ANSWERED)]


def test_a_question_is_declined_and_the_next_one_answered(world: World) -> None:
    talk, tool = running(world)
    waiting = ask(talk, tool)
    answer(talk, content="", accept=False)
    assert waiting.result(PATIENCE) == PersonAnswer(DECLINED)
    visit = ask(talk, tool, VISIT)
    with pytest.raises(InvalidFieldError, check=lambda error: error.field == "content"):
        answer(talk, 2)
    answer(talk, 2, content="")
    assert visit.result(PATIENCE) == PersonAnswer(ANSWERED)
    end(talk, tool)
    assert statuses(talk) == [(1, PENDING), (1, DECLINED), (2, PENDING), (2, ANSWERED)]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"name": 7}', "`name`"),
        ("{}", "name"),
        ('{"name": "Ann", "age": -1}', "`age`"),
        ('{"name": "Ann", "shoe": 3}', "shoe"),
        ("", "name"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_question_still_waits(world: World, content: str, fault: str) -> None:
    talk, tool = running(world)
    waiting = ask(talk, tool)
    with pytest.raises(InvalidFieldError, check=lambda error: error.field == "content" and fault in str(error)):
        answer(talk, content=content)
    answer(talk)
    assert waiting.result(PATIENCE).status is ANSWERED
    end(talk, tool)


def test_late_and_second_answers_are_refused_with_the_cause(world: World) -> None:
    talk, tool = running(world)
    with refused("unknown"):
        answer(talk)
    ask(talk, tool)
    answer(talk)
    with refused("answered"):
        answer(talk)
    ask(talk, tool)
    answer(talk, 2, "", accept=False)
    with refused("declined"):
        answer(talk, 2)
    ask(talk, tool).cancel()  # the tool takes it back
    talk.until(lambda: statuses(talk)[-1] == (3, WITHDRAWN))
    with refused("withdrawn"):
        answer(talk, 3)
    with refused("unknown"):
        answer(talk, 4)
    end(talk, tool)
    with refused("answered"):
        answer(talk)


def test_a_request_id_that_is_repeated_gets_the_same_answer_and_is_not_for_another(world: World) -> None:
    talk, tool = running(world)
    ask(talk, tool)
    first = answer(talk, request_id="r", body_hash="a")

    assert answer(talk, request_id="r", body_hash="a") == first
    with pytest.raises(Rejected, check=lambda error: error.reason is Reason.REQUEST_ID_REUSED):
        answer(talk, request_id="r", body_hash="b")
    end(talk, tool)


def test_at_its_deadline_the_tool_is_told_and_the_call_goes_on(world: World) -> None:
    talk, tool = running(world)
    waiting = tool.context.ask(PersonQuestion("files", "Quick!", 1, schema=SCHEMA))
    assert waiting.result(PATIENCE) == PersonAnswer(TIMED_OUT)
    talk.until(lambda: statuses(talk) == [(1, PENDING), (1, TIMED_OUT)])
    with refused("timed_out"):
        answer(talk)
    end(talk, tool)


def test_what_still_waits_is_withdrawn_with_the_end_of_the_call(world: World) -> None:
    talk, tool = running(world)
    waiting = [ask(talk, tool), ask(talk, tool)]
    end(talk, tool)
    assert {each.result(PATIENCE).status for each in waiting} == {WITHDRAWN}
    assert statuses(talk)[2:] == [(1, WITHDRAWN), (2, WITHDRAWN)]
    assert tool.context.ask(WHO).result(0).status is WITHDRAWN, "the call is over"


def test_a_cancel_and_a_narrower_mode_withdraw(make_world: Callable[..., World]) -> None:
    world = make_world(sandbox=Cell())
    for stop in ("cancel", "mode"):
        talk, tool = running(world, mode=Mode.UNRESTRICTED)
        waiting = ask(talk, tool)
        if stop == "cancel":
            talk.cancel()
        else:
            assert talk.ask(SetModeCommand(Mode.RESTRICTED, stop_running=True)).stopped_calls == ("t1",)
        assert waiting.result(PATIENCE).status is WITHDRAWN, "before the tool has ended, which may wait for it"
        tool.reap.set()
        assert statuses(talk) == [(1, PENDING), (1, WITHDRAWN)]
        with refused("withdrawn"):
            answer(talk)
        talk.cancel()
        talk.rest(Idle)


def test_after_a_restart_it_is_withdrawn(make_world: Callable[..., World]) -> None:
    store = new_store()
    first = make_world(store)
    talk, tool = running(first)
    ask(talk, tool)
    again = type(talk)(make_world(store), talk.record.id)
    with refused("withdrawn"):
        answer(again)
    assert statuses(again) == [(1, PENDING), (1, WITHDRAWN)]
    tool.reap.set()


def test_a_tool_asks_few_questions_at_once_and_not_many_in_all(world: World) -> None:
    talk, tool = running(world)
    first = [ask(talk, tool) for _ in range(MAX_OPEN)]
    with pytest.raises(TooManyQuestionsError):
        tool.context.ask(WHO)
    for number in range(1, MAX_OPEN + 1):
        answer(talk, number)
    assert all(each.result(PATIENCE).status is ANSWERED for each in first)
    for number in range(MAX_OPEN + 1, MAX_PER_CALL + 1):
        ask(talk, tool)
        answer(talk, number)
    with pytest.raises(TooManyQuestionsError):
        tool.context.ask(WHO)
    end(talk, tool)


def test_a_cancel_and_an_answer_at_any_instant_leave_one_end_of_each_question_and_no_thread(world: World) -> None:
    before, seed = threading.active_count(), random.randrange(2**32)
    talk, rng = world.create(), random.Random(seed)
    for number in range(1, CANCELS + 1):
        talk.send("go")
        while (exchange := talk.exchange()).cancel.cancelled:
            pass
        exchange.call(ToolUse(f"t{number}", "bash", "{}"))
        tool = talk.tool()
        tool.reap.set()
        waiting = ask(talk, tool)
        latest = statuses(talk)[-1][0]
        answering = threading.Thread(target=_answer_after, args=(talk, latest, rng.random() * 0.01))
        answering.start()
        threading.Event().wait(rng.random() * 0.01)
        talk.cancel()
        talk.until(lambda: isinstance(talk.state, Idle))
        answering.join(PATIENCE)
        assert not answering.is_alive(), f"seed {seed}, round {number}"
        assert waiting.result(PATIENCE).status in (ANSWERED, WITHDRAWN), f"seed {seed}, round {number}"
    asked = [number for number, status in statuses(talk) if status is PENDING]
    ended = [number for number, status in statuses(talk) if status is not PENDING]
    assert asked == ended == list(range(1, CANCELS + 1)), f"seed {seed}"
    talk.check()
    world.close()
    eventually(lambda: threading.active_count() <= before, "the end of all threads")


def _answer_after(talk: Any, number: int, pause: float) -> None:
    """Answer a question after some seconds; what it is too late for is refused."""
    threading.Event().wait(pause)
    with contextlib.suppress(Rejected):
        answer(talk, number)
