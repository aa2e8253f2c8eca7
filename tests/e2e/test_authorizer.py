"""A company's own rules: who calls and what they may do is theirs to say, and when they fail nobody gets in."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from tests.support.server_process import ServerProcess, Servers
from tests.unit.test_contract import all_methods

pytestmark = pytest.mark.one_server("its class and its log lie in the folder of one server")

RULES = """
import threading
import time

from server.auth.authorizer.authorizer_port import Decision, Identity
from server.auth.principals import Role


class Rules:
    def __init__(self, *, company):
        self.company = company

    def authenticate(self, metadata, peer):
        assert peer.address
        user = metadata.get("x-user", "")
        if user == "broken":
            raise RuntimeError("what only the company knows")
        if user == "exit":
            raise SystemExit("what only the company knows")
        if user == "slow":
            threading.Event().wait()
        known = {
            "nobody": None,
            "local": Identity("local"),
            "unknown": Identity("eve"),
            "text": "ada",
            "king": Identity("ada", "king"),
            "soon": Identity("ada", expires_at="soon"),
            "admin": Identity("ada", Role.OPERATOR),
            "reader": Identity("ada", Role.READER),
            "past": Identity("ada", expires_at=time.time() - 1),
            "brief": Identity("ada", expires_at=time.time() + 2),
        }
        return known.get(user, Identity(user))

    def authorize(self, principal, role, method, resource):
        if principal == "bob":
            return Decision(False, f"{self.company} wants\\nno {method.rpartition('/')[2]} of {resource!r} by bob")
        if principal == "carol":
            raise RuntimeError("what only the company knows")
        return True if principal == "dave" else Decision(True)
"""
DENIED, FAILS, SLOW = "bob", ("carol", "dave", "broken", "text", "king", "soon", "exit"), "slow"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("authorizer")
    (folder / "company_rules.py").write_text(RULES)
    people = "".join(
        f'[principals.{name}]\nroots = []\nrole = "operator"\n' for name in ("ada", "bob", "carol", "dave")
    )
    (folder / "config.toml").write_text(
        '[authorizer]\nclass = "company_rules:Rules"\ntimeout_seconds = 1\n'
        f'[authorizer.options]\ncompany = "ACME"\n{people}'
    )
    servers = Servers()
    made = servers(folder, "--config", str(folder / "config.toml"))
    yield made
    expected = ("the authorizer failed",)
    made_faults = made.faults
    made.faults = lambda: [each for each in made_faults() if not each["message"].startswith(expected)]  # type: ignore[method-assign]
    servers.close()


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with server.channel() as opened:
        yield opened


def call(channel: grpc.Channel, method: Any, *metadata: tuple[str, str], **fields: Any) -> tuple[str, str]:
    """The code and the text that a caller gets."""
    kind: Any = channel.unary_stream if method.output_type and method.server_streaming else channel.unary_unary
    request = GetMessageClass(method.input_type)(**fields).SerializeToString()
    try:
        answer = kind(f"/{method.containing_service.full_name}/{method.name}")(request, metadata=metadata, timeout=20)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        known: Any = error
        return known.code().name, known.details()
    return "OK", ""


METHODS = {method.name: method for method in all_methods()}


def test_a_caller_is_whom_the_authorizer_names_and_may_no_more_than_the_settings_say(channel: grpc.Channel) -> None:
    assert call(channel, METHODS["ListModels"], ("x-user", "ada")) == ("OK", "")
    code, text = call(
        channel, METHODS["CreateConversation"], ("x-user", "ada"), conversation={"working_directory": "/"}
    )
    assert (code, "outside this principal's directories" in text) == ("INVALID_ARGUMENT", True)
    code, text = call(channel, METHODS["CreateConversation"], ("x-user", "reader"))
    assert (code, "role, reader," in text) == ("PERMISSION_DENIED", True)
    assert call(channel, METHODS["ListModels"], ("x-user", "admin")) == ("OK", "")


@pytest.mark.parametrize("user", ["nobody", "local", "unknown", "past"])
def test_no_call_is_taken_from_somebody_who_is_no_principal(channel: grpc.Channel, user: str) -> None:
    for method in METHODS.values():
        assert call(channel, method, ("x-user", user))[0] == "UNAUTHENTICATED", method.name


def test_no_call_is_taken_that_the_authorizer_denies(channel: grpc.Channel) -> None:
    for method in METHODS.values():
        code, text = call(channel, method, ("x-user", DENIED))
        assert (code, text) == ("PERMISSION_DENIED", f"ACME wants no {method.name} of '' by bob"), method.name
    named = call(channel, METHODS["GetConversation"], ("x-user", DENIED), name="conversations/x")
    assert named[1] == "ACME wants no GetConversation of 'conversations/x' by bob"


@pytest.mark.parametrize("user", FAILS)
def test_no_call_is_taken_while_the_authorizer_fails(channel: grpc.Channel, server: ServerProcess, user: str) -> None:
    for method in METHODS.values():
        code, text = call(channel, method, ("x-user", user))
        assert (code, "the company" in text) == ("UNAVAILABLE", False), (method.name, text)
    assert "RuntimeError" in server.log_text() or "TypeError" in server.log_text()
    assert "what only the company knows" not in server.log_text()


def test_a_stream_ends_when_the_authorizer_said_so(channel: grpc.Channel) -> None:
    assert call(channel, METHODS["WatchConversations"], ("x-user", "brief"))[0] == "UNAUTHENTICATED"


def test_the_servers_own_user_is_not_locked_out_while_the_authorizer_hangs(
    channel: grpc.Channel, server: ServerProcess
) -> None:
    for _ in range(3):
        assert call(channel, METHODS["ListModels"], ("x-user", SLOW))[0] == "UNAVAILABLE"
    assert call(channel, METHODS["ListModels"], *server.metadata) == ("OK", "")
    assert call(channel, METHODS["ListModels"], ("x-user", "ada")) == ("OK", "")
