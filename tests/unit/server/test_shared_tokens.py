"""Tokens that several servers share: followed in the background, and read again for a token that is not known."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from actors.ports import StoreUnavailableError
from actors.ports.sandbox import Permissions
from server.auth import tokens
from server.auth.authentication import Authentication
from server.auth.principals import Caller, Principal, Role
from server.auth.tokens import PrincipalTokens, SharedTokens, TokenUnusableError
from tests.support.patience import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ADA = Principal("ada", Permissions(roots=("/srv/ada",)), Role.USER)


class Database:
    """A document that can be away, or damaged."""

    shown = "tokens.json in the database"

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.away = False
        self.reads = 0
        self._guard = threading.Lock()

    def read(self) -> bytes | None:
        self.reads += 1
        if self.away:
            raise StoreUnavailableError("the database does not answer")
        return self.content

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        with self._guard:
            self.content = change(self.read()) or self.content


class World:
    def __init__(self) -> None:
        self.database = Database()
        self.tokens = PrincipalTokens(self.database)
        self.shared = SharedTokens(PrincipalTokens(self.database))
        self.authentication = Authentication("t" * 43, self.shared, {"ada": ADA})

    def caller(self, text: str) -> Caller | None:
        """Who calls, as an interceptor asks for it."""

        async def ask() -> Caller | None:
            metadata = [("authorization", f"Bearer {text}")]
            known = self.authentication.caller_of(metadata)
            return known or await self.authentication.caller_after_refresh(metadata)

        return asyncio.run(ask())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(tokens, "PAUSE_SECONDS", 0.001)
    before = threading.active_count()
    made = World()
    yield made
    made.shared.close()
    made.shared.close()
    assert threading.active_count() <= before


def test_a_token_is_known_from_its_creation_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "FOLLOW_SECONDS", 3600.0)
    assert world.caller("bedrock_00000000_none") is None
    token, text = world.tokens.create("ada", Role.USER, 1)
    assert world.caller(text) == Caller("ada", Role.USER, token.id, secret=token.digest[:16])


def test_nothing_is_read_for_what_is_no_token_of_a_principal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "FOLLOW_SECONDS", 3600.0)
    assert world.caller("bedrock_00000000_none") is None  # the thread waits for such calls only, from now on
    reads = world.database.reads
    assert world.caller("secret") is None
    assert world.database.reads == reads


def test_a_revoked_token_ends_without_a_call_that_asks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "FOLLOW_SECONDS", 0.01)
    token, text = world.tokens.create("ada", Role.USER, 1)
    who = world.caller(text)
    assert who is not None
    assert world.authentication.accepts(who)
    assert world.tokens.revoke(token.id)
    eventually(lambda: not world.authentication.accepts(who), "it is refused")


def test_while_the_database_is_away_tokens_stay_as_they_were(world: World) -> None:
    token, text = world.tokens.create("ada", Role.USER, 1)
    assert world.caller(text) is not None
    world.database.away = True
    assert world.caller("bedrock_00000000_none") is None, "read, in vain"
    assert world.caller(text) is not None
    with pytest.raises(TokenUnusableError, match="does not answer"):
        world.tokens.revoke(token.id)


def test_what_is_no_list_of_tokens_opens_to_nobody(world: World) -> None:
    _, text = world.tokens.create("ada", Role.USER, 1)
    who = world.caller(text)
    assert who is not None
    kept, world.database.content = world.database.content, b"{"
    eventually(lambda: not world.authentication.accepts(who), "nobody has a token")
    assert world.caller(text) is None
    world.database.content = kept
    eventually(lambda: world.authentication.accepts(who), "it is mended")


def test_a_server_does_not_start_without_them() -> None:
    database = Database()
    database.away = True
    with pytest.raises(StoreUnavailableError):
        SharedTokens(PrincipalTokens(database))
    database.away, database.content = False, b"{"
    with pytest.raises(TokenUnusableError, match=r"tokens\.json in the database is not a valid list of tokens"):
        SharedTokens(PrincipalTokens(database))
