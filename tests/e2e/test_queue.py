"""Every accepted message ends in exactly one fate, and anybody can ask which; and what waits for a person is found."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from bedrock import AgentBusy, Run, RunInterrupted
from bedrock.errors import UnknownOrDecided
from bedrock.types import Fate

from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, held, says, stalls
from tests.support.patience import only, together, within
from tests.support.server_process import ServerProcess, Servers, provider

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


# Messages are accepted exactly once, whoever sends them, however often and at the same time.


ROUNDS = 30


def test_of_two_messages_at_once_exactly_one_is_accepted(open_chat: Callable[..., Chat], server: ServerProcess) -> None:
    chat = open_chat()
    with server.client() as one, server.client() as other:
        for number in range(ROUNDS):
            chat.part.then(held(says("Yes.")))
            sends = [
                functools.partial(
                    each.conversation(chat.name).send, f"{name} {number} {chat.part.key}", delivery="direct"
                )
                for each, name in ((one, "one"), (other, "other"))
            ]
            answers = together(*sends)
            accepted = only([answer for answer in answers if isinstance(answer, Run)])
            refusal = only([answer for answer in answers if isinstance(answer, BaseException)])
            assert isinstance(refusal, AgentBusy)
            assert (refusal.code, refusal.reason) == ("FAILED_PRECONDITION", "AGENT_BUSY")
            assert "busy" in refusal.message
            chat.part.next_reached().go.set()
            assert accepted.answer() == "Yes."
    said = chat.said()
    assert [role for role, _ in said] == ["user", "agent"] * ROUNDS
    assert len({text for role, text in said if role == "user"}) == ROUNDS
    chat.assert_valid()
