"""What `make cluster-e2e` runs the tests of this folder against: a server that is called through another node."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from bedrock import v1

from tests.e2e.two_nodes import OwnerBehindAnother
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, says
from tests.support.patience import PATIENCE
from tests.support.postgres import PostgresServer
from tests.support.server_process import Servers, provider

SHORTEST_REASON = 10


@pytest.fixture
def behind(fake_provider: FakeProvider, postgres: PostgresServer, tmp_path: Path) -> Iterator[OwnerBehindAnother]:
    servers = Servers(functools.partial(OwnerBehindAnother, postgres=postgres))
    server = servers(tmp_path, **provider(fake_provider.url))
    assert isinstance(server, OwnerBehindAnother)
    yield server
    servers.close()


def test_calls_pass_through_the_node_that_does_not_own(
    behind: OwnerBehindAnother, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    with behind.client() as client:
        chat = Chat(client, fake_provider.part(says("There.")), tmp_path)
        assert chat.ask("Where?") == "There."
    request = v1.GetConversationRequest(name=chat.name)
    with behind.channel() as channel:
        conversations = v1.ConversationServiceStub(channel)
        _, call = conversations.GetConversation.with_call(request, metadata=behind.metadata, timeout=PATIENCE)
        assert ("bedrock-owner", behind.owner) in list(call.trailing_metadata())
        missing = v1.GetConversationRequest(name=f"{chat.name[:-4]}zzzz")
        with pytest.raises(grpc.RpcError) as refused:
            conversations.GetConversation(missing, metadata=behind.metadata, timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "grpc-status-details-bin" in str(refused.value.trailing_metadata())
        assert behind.other.stop() == 0
        with pytest.raises(grpc.RpcError) as gone:
            conversations.GetConversation(request, metadata=behind.metadata, timeout=PATIENCE)
        assert gone.value.code() is grpc.StatusCode.UNAVAILABLE
    behind.address = behind.owner
    with behind.client() as direct:
        assert direct.conversation(chat.name).get().state.kind == "idle"


def test_what_is_left_out_says_why() -> None:
    for file in Path(__file__).parent.glob("test_*.py"):
        tree = ast.walk(ast.parse(file.read_text()))
        marks = reasons = 0
        for node in tree:
            match node:
                case ast.Attribute(attr="one_server"):
                    marks += 1
                case ast.Call(func=ast.Attribute(attr="one_server"), args=[ast.Constant(value=str(why))]):
                    reasons += len(why) >= SHORTEST_REASON
                case _:
                    pass
        assert marks == reasons, f"{file.name}: a mark one_server without a reason"
