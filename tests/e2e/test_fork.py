"""A fork over the wire: its requests begin with the bytes of its origin's, and it is a conversation of its own."""

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from bedrock import Conversation
from bedrock.errors import BedrockError
from bedrock.testing import PrivateServer

from tests.support.chat import Chat
from tests.support.fake_provider import calls, echoes, says
from tests.support.patience import PATIENCE, within

SHELL = ("bash", {"cmd": "echo hi"})


def assert_whole(fork: Conversation) -> None:
    """Verify and replay find nothing."""
    assert fork.verify() == []
    assert [step.difference for step in fork.replay() if step.difference] == []


def test_the_requests_of_a_fork_begin_with_those_of_its_origin(open_chat: Callable[..., Chat]) -> None:
    chat = open_chat(title="Flowers", labels={"team": "blue"})
    part = chat.part
    part.then(calls(SHELL, text="Let me look."), says("One."), says("Two."), says("Another two."), says("Three."))
    chat.ask("First.")
    chat.ask("Second.")
    theirs = part.exchanges[-1].received.body
    fork = chat.conversation.fork(title="A fork")
    info = fork.get()
    assert (info.forked_from, info.title, info.labels) == (chat.conversation.get().name, "A fork", {"team": "blue"})
    assert info.forked_at == [cycle.name for cycle in chat.conversation.cycles()][-1]
    assert info.total_usage.total_tokens == 0
    assert within(fork.send("Third.").answer) == "Another two."
    ours = part.exchanges[-1].received.body
    assert ours.startswith(theirs[: theirs.rindex(b"]")])
    assert "files are as they are now" in part.exchanges[-1].question
    assert [cycle.name.rpartition(":")[2] for cycle in fork.cycles()] == ["1", "2", "3"]
    (forked,) = [message for message in fork.messages() if message.system_kind == "forked"]
    assert "forked" in forked.text
    assert chat.ask("Third.") == "Three."
    chat.assert_valid()
    assert_whole(fork)


@pytest.mark.one_server("it starts its own server")
def test_a_fork_is_whole_or_not_there_when_the_server_is_killed(tmp_path: Path) -> None:
    """Every request that was sent is sent again after the restart, and makes one fork however often."""
    with PrivateServer() as server, server.client() as client:
        server.provider.model.otherwise(echoes)
        origin = client.create(tmp_path)
        for number in range(4):
            assert within(partial(origin.ask, f"{number} " + "x" * 50_000)).startswith("re: ")
        sent: dict[str, str] = {}

        def fork_on(stop: threading.Event, some: threading.Event) -> None:
            while not stop.is_set():
                request_id = str(uuid.uuid4())
                sent[request_id] = ""
                with suppress(BedrockError):
                    sent[request_id] = origin.fork(request_id=request_id).get().name
                    some.set()

        for _ in range(2):
            stop, some = threading.Event(), threading.Event()
            forking = [threading.Thread(target=fork_on, args=(stop, some)) for _ in range(3)]
            for thread in forking:
                thread.start()
            assert some.wait(PATIENCE)
            server.kill()
            stop.set()
            server.start()
            for thread in forking:
                thread.join(PATIENCE)
            for request_id, known in sent.items():
                sent[request_id] = origin.fork(request_id=request_id).get().name
                assert known in ("", sent[request_id])
        assert sorted(sent.values()) == sorted(info.name for info in client.conversations() if info.forked_from)
        forks = [client.conversation(name) for name in sent.values()]
        for fork in forks:
            assert len(list(fork.messages())) == 8
            assert_whole(fork)
        assert within(partial(forks[-1].ask, "And now?")).startswith("re: ")
