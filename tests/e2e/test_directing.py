"""Steers, approvals, errors, ends: what people do with a conversation while its agent works."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from bedrock import Approval, AwaitingApproval, Client, NotFound, Run, RunFailed, v1
from bedrock.errors import (
    AgentBusy,
    ContextExhausted,
    ContinuationInProgress,
    FailedPrecondition,
    NotAwaitingApproval,
    Terminal,
    UnknownOrDecided,
)

from tests.support.chat import Chat, question
from tests.support.fake_provider import Play, begins, calls, finishes, held, refuses, says, stalls
from tests.support.patience import PATIENCE, only, together, within
from tests.support.watcher import Watcher

if TYPE_CHECKING:
    from bedrock.conversations import ConversationListEvent
    from bedrock.types import ListEventKind

ECHO = ("bash", {"cmd": "echo tool ran"})
OpenChat = Callable[..., Chat]
Watch = Callable[..., Watcher]


# --- steers ---------------------------------------------------------------------------------------------------------


def test_a_steer_reaches_the_model_with_its_next_request(open_chat: OpenChat, watch: Watch) -> None:
    chat = open_chat(held(calls(ECHO)), says("As you wish."))
    watcher = watch(chat.name)
    run = chat.send("Do it.")
    first = chat.part.next_reached()
    with pytest.raises(AgentBusy) as busy:
        chat.send("Wait.")
    assert "steer" in busy.value.message
    steer = chat.send("Do it gently.", delivery="steer")
    assert (steer.disposition, steer.name) == ("steer_queued", run.name)
    assert [each.message.name for each in watch(chat.name).events[0].snapshot.queue] == [steer.message.name]
    first.go.set()
    assert within(run.answer) == "As you wish."
    second = chat.part.next()
    assert "tool ran" in second.results[0]["content"]
    assert second.question.startswith("Do it gently.")
    assert [role for role, _ in chat.said()] == ["user", "agent", "tool", "user", "agent"]
    stored = chat.messages()[3]
    assert (stored.name, stored.delivery, stored.request_cycle) == (steer.message.name, v1.DELIVERY_STEER, run.name)
    watcher.until("run_stopped")
    assert [each.fate for each in watcher.of("queue_changed")] == [
        v1.QueuedMessage.FATE_QUEUED,
        v1.QueuedMessage.FATE_DELIVERED,
    ]
    chat.assert_valid()


# --- approvals ------------------------------------------------------------------------------------------------------


def asking(open_chat: OpenChat, *plays: Play) -> tuple[Chat, Run, Approval]:
    """A conversation that waits for a person."""
    chat = open_chat(*plays, approval_policy="ask_writes")
    run = chat.send("May you?")
    return chat, run, question(run)


def test_an_approved_tool_runs(open_chat: OpenChat, watch: Watch) -> None:
    chat, run, asked = asking(open_chat, calls(ECHO), says("Thank you."))
    assert (asked.tool, asked.input) == ("bash", {"cmd": "echo tool ran"})
    assert chat.state.kind == "awaiting_tool_approval"
    with pytest.raises(AwaitingApproval):
        chat.send("Well?")
    late = watch(chat.name)
    pending = only(late.events[0].snapshot.pending_approvals)
    assert pending.name == asked.name
    assert pending.tool_call.input["cmd"] == "echo tool ran"
    answered = chat.conversation.approve(pending.name)
    assert answered.state.kind == "tool_executing"
    assert within(run.answer) == "Thank you."
    late.until("run_stopped")
    assert only(late.of("approval_changed")).decision == v1.APPROVAL_DECISION_APPROVE
    with pytest.raises(NotAwaitingApproval):
        chat.conversation.approve(pending.name)


def test_questions_of_all_conversations_are_found_and_their_runs_waited_for(
    open_chat: OpenChat, client: Client
) -> None:
    talks = [asking(open_chat, calls(ECHO, ECHO), says("Done.")) for _ in range(2)]
    for chat, run, asked in talks:
        shown = list(chat.conversation.approvals())
        assert [approval.name for approval in shown] == [question.name for question in chat.state.approvals]
        assert shown[0].proto == chat.conversation.approval(asked.tool_use_id).proto == chat.state.approvals[0].proto
        assert chat.conversation.wait_for_cycle(run.name, timeout=0).end_time is None
    mine = {chat.conversation.get().name for chat, _, _ in talks}
    found = [approval for approval in client.approvals() if approval.conversation in mine]
    assert [approval.name for approval in found] == [q.name for chat, _, _ in talks for q in chat.state.approvals]
    for approval in found:
        client.conversation(approval.conversation).approve(approval)
    for chat, run, _ in talks:
        cycle = within(functools.partial(chat.conversation.wait_for_cycle, run.name))
        assert (cycle.stop_reason, cycle.proto) == ("completed", chat.conversation.cycle(run.name).proto)
        with pytest.raises(NotFound):
            chat.conversation.approval(found[0].tool_use_id)
    assert not [approval for approval in client.approvals() if approval.conversation in mine]


def test_a_denied_tool_does_not_run_and_the_model_hears_why(open_chat: OpenChat) -> None:
    chat, run, asked = asking(open_chat, calls(ECHO, ECHO), says("I see."))
    chat.conversation.deny(asked, "not today")
    within(run.wait)
    assert chat.said()[-1] == ("agent", "I see.")
    denied, other = (message.content[0].tool_result for message in chat.messages()[2:4])
    assert (denied.outcome, denied.output) == (v1.TOOL_OUTCOME_DENIED, "Denied by user: not today")
    assert other.outcome == v1.TOOL_OUTCOME_SKIPPED
    assert [result["content"] for result in chat.part.exchanges[1].results] == [denied.output, other.output]
    chat.assert_valid()


def test_of_two_answers_to_one_question_one_counts(open_chat: OpenChat) -> None:
    for _ in range(10):
        chat, run, asked = asking(open_chat, calls(ECHO), says("All right."))
        answers = together(
            functools.partial(chat.conversation.approve, asked),
            functools.partial(chat.conversation.deny, asked),
        )
        refusal = only([answer for answer in answers if isinstance(answer, BaseException)])
        assert isinstance(refusal, UnknownOrDecided | NotAwaitingApproval)
        assert within(run.answer) == "All right."
        approved = isinstance(answers[1], BaseException)
        outcome = chat.messages()[2].content[0].tool_result.outcome
        assert outcome == (v1.TOOL_OUTCOME_OK if approved else v1.TOOL_OUTCOME_DENIED)
        chat.assert_valid()


def test_a_cancel_withdraws_the_question(open_chat: OpenChat, watch: Watch) -> None:
    chat, _, asked = asking(open_chat, calls(ECHO), says("Fine."))
    watcher = watch(chat.name)
    assert chat.conversation.cancel().state.kind == "idle"
    watcher.until(lambda event: event.approval_changed.decision == v1.APPROVAL_DECISION_WITHDRAWN)
    with pytest.raises(NotAwaitingApproval):
        chat.conversation.approve(asked)
    chat.assert_valid()
    assert chat.ask("Never mind.") == "Fine."


# --- errors ---------------------------------------------------------------------------------------------------------


def test_an_error_is_reported_and_the_next_message_recovers(open_chat: OpenChat, watch: Watch) -> None:
    chat = open_chat(refuses(401, "authentication_error", "invalid x-api-key"), says("Back."))
    watcher = watch(chat.name)
    run = chat.send("Hello?")
    with pytest.raises(RunFailed) as failed:
        within(run.answer)
    assert failed.value.reason == "AUTH"
    assert chat.state.kind == "error"
    assert not chat.state.busy
    told = chat.messages()[-1]
    assert (told.role, told.error_kind) == (v1.ROLE_ERROR, v1.ERROR_KIND_AUTH)
    assert told.content[0].text.startswith("Authentication failed")
    assert "ANTHROPIC_API_KEY" in told.content[0].text
    assert watcher.until("run_stopped").run_stopped.error.kind == v1.ERROR_KIND_AUTH
    assert len(chat.part.exchanges) == 1
    assert chat.ask("And now?") == "Back."
    assert not any("Authentication" in text for text in chat.part.exchanges[1].texts)
    chat.assert_valid()


# --- ends -----------------------------------------------------------------------------------------------------------


def test_a_deleted_conversation_is_not_found_at_once(open_chat: OpenChat, watch: Watch) -> None:
    chat = open_chat(stalls)
    watcher = watch(chat.name)
    chat.send("Go.")
    exchange = chat.part.next_reached()
    with pytest.raises(AgentBusy):
        chat.conversation.delete()
    assert chat.conversation.delete(force=True) == []
    assert watcher.end() == "OK"
    assert watcher.kinds[-1] == "deleted"
    assert exchange.closed.wait(PATIENCE)
    with pytest.raises(NotFound):
        chat.conversation.get()
    with pytest.raises(NotFound):
        chat.conversation.delete()
    chat.conversation.delete(missing_ok=True)


def test_a_conversation_goes_on_in_a_successor(open_chat: OpenChat, watch: Watch) -> None:
    summary = begins("We added ", finishes("numbers."))
    chat = open_chat(calls(ECHO), says("Two and two is four."), summary)
    watcher = watch(chat.name)
    assert chat.ask("Add.") == "Two and two is four."
    with pytest.raises(FailedPrecondition):
        chat.conversation.continue_()
    written = chat.conversation.trigger_continuation()
    assert written.state.kind == "awaiting_continuation"
    summary_request = chat.part.next_reached(summary)
    assert summary_request.tools == []
    with pytest.raises(ContinuationInProgress):
        chat.send("Wait.")
    summary_request.go.set()
    watcher.state(v1.STATE_KIND_CONTEXT_EXHAUSTED)
    assert chat.conversation.get().continuation_summary == "We added numbers."
    with pytest.raises(ContextExhausted):
        chat.send("More.")
    with pytest.raises(Terminal):
        chat.conversation.trigger_continuation()
    successor, again = chat.conversation.continue_(), chat.conversation.continue_()
    assert successor.name == again.name
    assert chat.conversation.get().continued_by == successor.name
    born = successor.get()
    assert (born.continued_from, born.mode, born.working_directory) == (
        chat.name,
        chat.conversation.get().mode,
        chat.conversation.get().working_directory,
    )
    chat.part.then(says("Six."))
    assert within(successor.send(f"And four and two? {chat.part.key}").answer) == "Six."
    assert any("We added numbers." in text for text in chat.part.exchanges[-1].texts)


# --- the list of conversations --------------------------------------------------------------------------------------


def test_the_list_of_conversations_is_followed(open_chat: OpenChat) -> None:
    chat = open_chat(says("Hello."))
    with closing(chat.client.watch_conversations()) as entries:
        shown = {entry.conversation_changed.name for entry in until(entries, "caught_up") if entry.conversation_changed}
        assert chat.name in shown
        chat.send("Hi.")
        for entry in entries:
            changed = entry.conversation_changed
            if changed and changed.name == chat.name and changed.revision > 2 and not changed.state.busy:
                break
        chat.conversation.delete()
        while until(entries, "conversation_deleted")[-1].conversation_deleted != chat.name:
            pass


def until(entries: Iterator[ConversationListEvent], kind: ListEventKind) -> list[ConversationListEvent]:
    """What comes up to an entry of this kind, of other conversations too."""
    seen: list[ConversationListEvent] = []
    while not seen or seen[-1].kind != kind:
        seen.append(within(lambda: next(entries)))
    return seen
