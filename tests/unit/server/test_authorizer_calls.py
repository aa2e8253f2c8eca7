"""The authorizer of the settings: how it is named and made, and that calls of it are bounded."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from actors.ports.settings_checks import read
from server.auth.authorizer import authorizer_calls
from server.auth.authorizer.authorizer_calls import AuthorizerCalls, made_authorizer
from server.auth.authorizer.authorizer_port import Authorizer, Decision, Identity, Peer
from server.auth.principals import Role
from server.contract.errors import AuthorizerUnavailableError
from server.settings.config import AuthorizerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

PEER = Peer("unix:")


class Picky:
    """Cannot be made, and says a secret."""

    def __init__(self, *, secret: str) -> None:
        raise OSError(secret)

    authenticate = authorize = __init__


class Gated:
    """Answers once it may."""

    def __init__(self, reason: str = "") -> None:
        self.open = threading.Event()
        self.threads: set[str] = set()
        self._reason = reason

    def authenticate(self, metadata: Mapping[str, str], peer: Peer) -> Identity | None:
        assert peer == PEER
        self.threads.add(threading.current_thread().name)
        self.open.wait(60)
        return Identity(metadata["x-user"])

    def authorize(self, principal: str, role: Role, method: str, resource: str) -> Decision:
        del principal, role, method, resource
        return Decision(False, self._reason)


def test_one_that_hangs_refuses_and_answers_again_when_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer_calls, "MAX_CALLS", 2)
    rules: Authorizer = (gated := Gated())

    async def story() -> None:
        calls = AuthorizerCalls(rules, 0.05)
        asked = [calls.identity([("x-user", "ada"), ("x-bin", b"1")], PEER) for _ in range(5)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in answers] == [AuthorizerUnavailableError] * 5
        gated.open.set()
        calls._seconds = 60
        asked = [calls.identity([("x-user", "ada")], PEER) for _ in range(5)]
        assert await asyncio.gather(*asked) == [Identity("ada")] * 5
        assert gated.threads == {"bedrock-authorizer"}

    asyncio.run(story())


def test_strangers_who_are_asked_for_keep_no_caller_waiting_who_is_known() -> None:
    gated = Gated("no")

    async def story() -> None:
        calls = AuthorizerCalls(gated, 60)
        strangers = [asyncio.create_task(calls.identity([("x-user", "eve")], PEER)) for _ in range(50)]
        while not gated.threads:
            await asyncio.sleep(0.01)
        assert await calls.refusal("ada", Role.USER, "/m", "conversations/c") == "no"
        gated.open.set()
        await asyncio.gather(*strangers)

    asyncio.run(story())


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration])
def test_what_is_no_usual_error_refuses_and_keeps_no_place(error: type[BaseException]) -> None:
    class Ends(Gated):
        def authenticate(self, metadata: Mapping[str, str], peer: Peer) -> Identity | None:
            if not metadata:
                raise error
            return Identity("ada")

    async def story() -> None:
        calls = AuthorizerCalls(Ends(), 0.05)
        for _ in range(authorizer_calls.MAX_CALLS):
            with pytest.raises(AuthorizerUnavailableError):
                await calls.identity([], PEER)
        calls._seconds = 60
        assert await calls.identity([("x-user", "ada")], PEER) == Identity("ada")

    asyncio.run(story())


def test_a_flood_of_calls_that_fail_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorizer_calls, "LOG_SECONDS", 3_600)

    async def story() -> None:
        gated = Gated()
        gated.open.set()
        calls = AuthorizerCalls(gated, 60)
        for _ in range(5):  # without a user
            with pytest.raises(AuthorizerUnavailableError):
                await calls.identity([], PEER)

    asyncio.run(story())
    assert [record.message for record in caplog.records] == ["the authorizer failed: KeyError"]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("", "the authorizer of this server does not allow that"), ("a\x1b[31m\nb", "a [31m b"), ("x" * 900, "x" * 500)],
)
def test_a_reason_is_shown_as_plain_text(reason: str, shown: str) -> None:
    async def refusal() -> str | None:
        calls = AuthorizerCalls(Gated(reason), 60)
        return await calls.refusal("ada", Role.USER, "/m", "conversations/c")

    assert asyncio.run(refusal()) == shown


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "authorizer.class: needed; must be package.module:Class"),
        ({"class": "os.path"}, "authorizer.class: must be package.module:Class"),
        ({"class": ".x:Y"}, "authorizer.class: must be package.module:Class"),
        ({"class": "a:b", "timeout_seconds": 0}, "authorizer.timeout_seconds: must be more than 0, and at most 30"),
        ({"class": "a:b", "options": 1}, "authorizer.options: must be a table"),
        ({"class": "a:b", "token": 1}, "authorizer.token: unknown; there are: class, timeout_seconds, options"),
        (
            {"class": "no_such_module_here:X"},
            "authorizer.class: no_such_module_here:X cannot be imported: there is no module no_such_module_here",
        ),
        ({"class": "os:No"}, "authorizer.class: os:No cannot be imported: AttributeError"),
        ({"class": "os:sep"}, "authorizer.class: os:sep is not a class"),
        ({"class": "threading:Thread"}, "authorizer.class: threading:Thread has no method authenticate"),
        ({"class": "functools:partial", "options": {"f": 1}}, "authorizer.class: functools:partial has no method"),
        ({"class": f"{__name__}:Picky", "options": {"secret": "s3"}}, ":Picky cannot be created: OSError"),
    ],
)
def test_a_wrong_table_is_refused_with_the_reason(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="authorizer") as refusal:
        made_authorizer(read(AuthorizerSettings, "authorizer", table))
    assert said in str(refusal.value)
    assert "s3" not in str(refusal.value)
