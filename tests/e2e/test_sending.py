"""Messages are accepted exactly once, whoever sends them, however often and at the same time."""

import asyncio
import functools
import uuid
from collections import Counter
from collections.abc import Callable

import pytest
from bedrock import AgentBusy, AsyncClient, Run
from bedrock.errors import RequestIdReused

from tests.support.chat import Chat
from tests.support.fake_provider import held, says
from tests.support.patience import only, together
from tests.support.server_process import ServerProcess

ROUNDS = 30
REPEATS = 50


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


def test_a_request_id_makes_a_message_be_stored_once(open_chat: Callable[..., Chat], server: ServerProcess) -> None:
    chat = open_chat(held(says("Once.")))
    identity = str(uuid.uuid4())
    runs = asyncio.run(_send_often(server, chat, identity))
    assert Counter(disposition for _, disposition in runs) == {"direct": 1, "duplicate": REPEATS - 1}
    assert len({message for message, _ in runs}) == 1
    with pytest.raises(RequestIdReused) as raised:
        chat.send("Something else.", request_id=identity)
    assert raised.value.code == "ALREADY_EXISTS"
    chat.part.next_reached().go.set()
    chat.settle()
    assert [role for role, _ in chat.said()] == ["user", "agent"]
    assert len(chat.part.exchanges) == 1
    late = chat.send("Only once.", request_id=identity.upper())
    assert late.disposition == "duplicate"
    assert late.answer() == "Once."
    with pytest.raises(RequestIdReused):
        chat.send("Only once.", request_id=identity, delivery="steer")


async def _send_often(server: ServerProcess, chat: Chat, identity: str) -> list[tuple[str, str]]:
    """The same call over several connections; message and disposition of each answer."""
    clients = [AsyncClient(server.address, token=server.token) for _ in range(5)]
    try:
        runs = await asyncio.gather(
            *(
                clients[number % len(clients)]
                .conversation(chat.name)
                .send(f"Only once. {chat.part.key}", request_id=identity)
                for number in range(REPEATS)
            )
        )
        return [(run.message.name, run.disposition) for run in runs]
    finally:
        await asyncio.gather(*(client.close() for client in clients))
