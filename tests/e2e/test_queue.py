"""Every accepted message ends in exactly one fate, and anybody can ask which; and what waits for a person is found."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from bedrock import Approval, Client, NotFound, Run, RunInterrupted
from bedrock.errors import UnknownOrDecided
from bedrock.types import Fate

from tests.support.chat import Chat, question
from tests.support.fake_provider import FakeProvider, Play, calls, held, says, stalls
from tests.support.patience import only, within
from tests.support.server_process import ServerProcess, Servers, bedrock, provider

OpenChat = Callable[..., Chat]
ECHO = ("bash", {"cmd": "echo tool ran"})


def fates(chat: Chat) -> dict[str, Fate]:
    """By message, what became of everything that waited."""
    listed = list(chat.conversation.queue(include_settled=True))
    found = {each.message.name: each.fate for each in listed}
    assert len(found) == len(listed)
    return found


def waiting(chat: Chat) -> list[str]:
    return [each.message.name for each in chat.conversation.queue()]


def test_what_waits_is_listed_and_taken_back(open_chat: OpenChat) -> None:
    answer = held(says("Answered."))
    chat = open_chat(answer, says("Second."))
    run = chat.send("Go.")
    exchange = chat.part.next_reached(answer)
    steer = chat.send("Left.", delivery="steer")
    dropped = chat.send("Then this.", delivery="follow_up")
    kept = chat.send("And that.", delivery="follow_up")
    assert waiting(chat) == [each.message.name for each in (steer, dropped, kept)]
    assert only([each.message.request_cycle for each in chat.conversation.queue()][:1]) == run.name

    assert chat.conversation.withdraw(steer.message).message.text.startswith("Left.")
    taken = chat.conversation.withdraw(dropped.message.name)
    assert (taken.message.name, taken.message.delivery) == (dropped.message.name, "follow_up")
    assert waiting(chat) == [kept.message.name]
    for gone in (steer.message.name, run.message.name, f"{chat.name}/messages/never"):
        with pytest.raises(UnknownOrDecided) as refusal:
            chat.conversation.withdraw(gone)
        assert refusal.value.code == "ABORTED"

    with pytest.raises(RunInterrupted, match="withdrawn"):
        within(dropped.answer)
    exchange.go.set()
    assert within(run.answer) == "Answered."
    assert within(kept.answer) == "Second."
    assert [role for role, _ in chat.said()] == ["user", "agent", "user", "agent"], "what was withdrawn left a trace"
    assert [cycle.name for cycle in chat.conversation.cycles()] == [run.name, kept.name]
    assert fates(chat) == {
        steer.message.name: "withdrawn",
        dropped.message.name: "withdrawn",
        kept.message.name: "delivered",
    }
    assert waiting(chat) == []


def cancelled(chat: Chat) -> None:
    chat.conversation.cancel()


def _reason(run: Run) -> str:
    with pytest.raises(RunInterrupted) as cut:
        within(run.answer)
    return cut.value.reason


@pytest.mark.one_server("the server is killed and restarted")
def test_fates_survive_a_kill_and_what_waits_gets_one(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    """All five of them, and what a crash makes of what waits."""
    server = start_server(tmp_path, **provider(fake_provider.url))
    answer = held(calls(ECHO))
    with server.client() as client:
        chat = Chat(client, fake_provider.part(answer, says("Steered."), says("Followed."), stalls), tmp_path)
        run = chat.send("One.")
        exchange = chat.part.next_reached(answer)
        steer, follow_up, back = (
            chat.send("Two.", delivery="steer"),
            chat.send("Three.", delivery="follow_up"),
            chat.send("Four.", delivery="follow_up"),
        )
        chat.conversation.withdraw(back.message)
        exchange.go.set()
        assert within(run.answer) == "Steered."
        assert within(follow_up.answer) == "Followed."
        chat.send("Five.")
        chat.part.next_reached(stalls)
        unread, dropped = chat.send("Six.", delivery="steer"), chat.send("Seven.", delivery="follow_up")
        chat.conversation.cancel(discard_queued=True)
        expected = {
            back.message.name: "withdrawn",
            steer.message.name: "delivered",
            follow_up.message.name: "delivered",
            unread.message.name: "returned",
            dropped.message.name: "discarded",
        }
        assert fates(chat) == expected
        chat.part.then(stalls)
        chat.send("Eight.")
        chat.part.next_reached(stalls)
        late, later = chat.send("Nine.", delivery="steer"), chat.send("Ten.", delivery="follow_up")
        assert fates(chat) == expected | {late.message.name: "queued", later.message.name: "queued"}
    server.kill()
    server = start_server(tmp_path, **provider(fake_provider.url))
    with server.client() as client:
        chat.client, chat.conversation = client, client.conversation(chat.name)
        assert fates(chat) == expected | {late.message.name: "returned", later.message.name: "discarded"}


# --- the program --------------------------------------------------------------------------------------------------


def test_the_program_lists_takes_back_and_shows_how_it_went(
    open_chat: OpenChat, server: ServerProcess, tmp_path: Path
) -> None:
    def program(*arguments: str) -> str:
        done = bedrock(tmp_path, *arguments, **server.way)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    answer = held(calls(ECHO, ("read_file", {"path": "no such file"}), text="Let me look."))
    chat = open_chat(answer, says("Done."), says("Followed."))
    slug = chat.conversation.get().slug
    run = chat.send("Go.")
    exchange = chat.part.next_reached(answer)
    chat.send("Gently.", delivery="steer")
    chat.send("Then this.", delivery="follow_up")
    chat.send("Not this.", delivery="follow_up")
    rows = [line.split("\t") for line in program("queue", slug).splitlines()]
    assert [(row[1], row[3], row[4][:6]) for row in rows] == [
        ("steer", "waits", "Gently"),
        ("follow-up", "waits", "Then t"),
        ("follow-up", "waits", "Not th"),
    ]
    assert program("withdraw", slug).startswith("withdrawn: Not this.")
    exchange.go.set()
    chat.settle()
    assert within(run.wait)
    settled = [line.split("\t")[3] for line in program("queue", slug, "--all").splitlines()]
    assert settled == ["taken back", "delivered", "delivered"]

    rows = [line.split("\t")[1:] for line in program("cycles", slug).splitlines()]
    assert [(asked.partition(" #")[0], *rest) for asked, *rest in rows] == [
        ("Go.", "2", "completed"),
        ("Then this.", "1", "completed"),
    ]


def asking(open_chat: OpenChat, *plays: Play) -> tuple[Chat, Run, Approval]:
    """A conversation that waits for a person."""
    chat = open_chat(*plays, approval_policy="ask_writes")
    run = chat.send("May you?")
    return chat, run, question(run)


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
