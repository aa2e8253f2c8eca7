"""Messages are accepted exactly once, whoever sends them, however often and at the same time."""

import functools
from collections.abc import Callable

from bedrock import AgentBusy, Run

from tests.support.chat import Chat
from tests.support.fake_provider import held, says
from tests.support.patience import only, together
from tests.support.server_process import ServerProcess

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
