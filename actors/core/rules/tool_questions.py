"""The rules for questions that a running tool call asks a person, on behalf of an MCP server.

Each question ends in exactly one way, and clients are notified of it: answered, declined, timed out, or withdrawn
because the call ended or no longer wants an answer. A later or second answer is refused. The call itself continues, and
its tool decides what to do with the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.core.effects import AnswerTool, AwaitAnswer
from actors.core.errors import Reason, Rejected
from actors.core.notifications import QuestionChanged
from actors.core.result import TransitionResult, ignored
from actors.core.states import Question, QuestionStatus, State, ToolExecuting, ToolPhase
from actors.core.steps import texts
from actors.core.steps.tool_rounds import current_call, end_question
from actors.core.steps.transition_builder import TransitionBuilder

if TYPE_CHECKING:
    from actors.core.context import ConvContext
    from actors.core.events import AnswerQuestion, AskQuestion, QuestionOver


def ask_question(state: State, context: ConvContext, event: AskQuestion) -> TransitionResult:
    """Notify clients of a question of the running call. Ignored if the call is not running or the question is repeated.

    Sub-agents cannot ask: their questions are ignored, too.
    """
    running = _asking(state, event)
    if running is None or event.place <= running.asked or context.is_sub_agent:
        return ignored(state)
    builder = TransitionBuilder(running, context, event.at)
    ledger = builder.ledger = replace(builder.ledger, questions=builder.ledger.questions + 1)
    deadline = event.at + event.timeout_ms
    question = Question(
        ledger.questions, event.place, event.asker, event.message, event.at, deadline, event.schema, event.url
    )
    builder.notify(QuestionChanged(current_call(running), question, QuestionStatus.PENDING))
    builder.add_effect(AwaitAnswer(running.current_tool_id, running.execution_id, event.place, deadline))
    return builder.stay(replace(running, ledger=ledger, questions=(*running.questions, question), asked=event.place))


def drop_question(state: State, context: ConvContext, event: QuestionOver) -> TransitionResult:
    """End a question that was not answered in time, or that the tool withdrew. Ignored if no such question waits."""
    running = _asking(state, event)
    question = next((each for each in running.questions if each.place == event.place), None) if running else None
    if running is None or question is None:
        return ignored(state)
    status = QuestionStatus.TIMED_OUT if event.timed_out else QuestionStatus.WITHDRAWN
    return _end(TransitionBuilder(running, context, event.at), running, question, status)


def take_decision(state: State, context: ConvContext, event: AnswerQuestion) -> TransitionResult:
    """Give a person's answer to the tool. Raises Rejected, with the reason, if the question awaits no answer."""
    question = open_question(state, event.number)
    if question is None or not isinstance(state, ToolExecuting):
        cause = _cause(state, event.number)
        raise Rejected(Reason.UNKNOWN_OR_DECIDED, texts.NO_SUCH_QUESTION[cause], cause)
    status = QuestionStatus.ANSWERED if event.accept else QuestionStatus.DECLINED
    return _end(TransitionBuilder(state, context, event.at), state, question, status, event.content)


def open_question(state: State, number: int) -> Question | None:
    """Return the question with this number if it waits for an answer, else None."""
    asked = state.questions if isinstance(state, ToolExecuting) else ()
    return next((question for question in asked if question.number == number), None)


def _asking(state: State, event: AskQuestion | QuestionOver) -> ToolExecuting | None:
    """Return `state` if the call that the event names is running on the server (not in a client), else None."""
    if not isinstance(state, ToolExecuting) or state.phase is not ToolPhase.RUNNING or state.deadline:
        return None
    mine = (state.current_tool_id, state.execution_id) == (event.tool_use_id, event.execution_id)
    return state if mine else None


def _end(
    builder: TransitionBuilder, state: ToolExecuting, question: Question, status: QuestionStatus, content: str = ""
) -> TransitionResult:
    if status is not QuestionStatus.WITHDRAWN:
        identity = state.current_tool_id, state.execution_id, question.place
        builder.add_effect(AnswerTool(*identity, status, content if status is QuestionStatus.ANSWERED else ""))
    end_question(builder, state, question, status)
    left = tuple(each for each in state.questions if each is not question)
    return builder.stay(replace(state, ledger=builder.ledger, questions=left))


def _cause(state: State, number: int) -> str:
    past = state.ledger.past_questions
    return next((each.status.value for each in past if each.number == number), "unknown")
