"""Tokens of principals: made, known, rotated, expired, revoked; and who calls with which role."""

from __future__ import annotations

import errno
import os
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from actors.core.context import Mode
from actors.core.errors import Rejected
from actors.ports.sandbox import NO_PERMISSIONS, Permissions
from actors.ports.settings_checks import Named, read
from server.auth import tokens
from server.auth.authentication import OWN_USER, Authentication
from server.auth.authorization import check_role
from server.auth.principals import Caller, Principal, PrincipalTable, Role, principals_from_tables
from server.auth.tokens import PRINCIPALS_TOKENS, TokenFile, TokenUnusableError

if TYPE_CHECKING:
    from pathlib import Path

OWN = "t" * 43
ADA = Principal("ada", Permissions(roots=("/srv/ada",)), Role.USER)


class World:
    """A token file, and a server that knows ada."""

    def __init__(self, folder: Path) -> None:
        self.file = TokenFile(folder / PRINCIPALS_TOKENS)
        self.now = 1_000_000
        self.clock = 0.0
        self.authentication = Authentication(
            OWN, self.file, {"ada": ADA}, now_ms=lambda: self.now, monotonic=lambda: self.clock
        )

    def caller(self, text: str) -> Caller | None:
        return self.authentication.caller_of([("authorization", f"Bearer {text}")])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_token_is_known_from_its_creation_on(world: World) -> None:
    assert world.caller(OWN) == OWN_USER
    token, text = world.file.create("ada", Role.USER, world.now)
    assert world.caller(text) == Caller("ada", Role.USER, token.id, secret=token.digest[:16])
    assert text.startswith(f"bedrock_{token.id}_")
    assert text.split("_", 2)[2] not in (token.digest, repr(token))


def test_only_the_whole_secret_opens(world: World) -> None:
    _, text = world.file.create("ada", Role.USER, world.now)
    _, other = world.file.create("ada", Role.USER, world.now)
    crossed = "_".join([*text.split("_", 2)[:2], other.split("_", 2)[2]])
    for wrong in (
        text[:-1],
        text + "x",
        text.upper(),
        text.replace("bedrock", "bedrokk"),
        crossed,
        "bedrock__",
        "bedrock",
        "",
    ):
        assert world.caller(wrong) is None, wrong


def test_a_revoked_token_is_refused_within_a_second(world: World) -> None:
    token, text = world.file.create("ada", Role.USER, world.now)
    who = world.caller(text)
    assert who is not None
    assert world.file.revoke(token.id)
    assert not world.file.revoke(token.id)
    world.clock += 1.0
    assert world.caller(text) is None
    assert not world.authentication.accepts(who)
    assert world.authentication.accepts(OWN_USER)


def test_a_rotated_token_has_one_secret(world: World) -> None:
    token, old = world.file.create("ada", Role.USER, world.now)
    who = world.caller(old)
    assert who is not None
    new = world.file.rotate(token.id)
    assert new is not None
    assert world.file.rotate("none") is None
    world.clock += 1.0
    assert world.caller(old) is None
    assert not world.authentication.accepts(who), "what is served for the secret before ends"
    again = world.caller(new)
    assert again is not None
    assert (again.principal, again.token) == (who.principal, who.token)
    assert world.authentication.accepts(again)


def test_a_token_ends_when_it_expires(world: World) -> None:
    _, text = world.file.create("ada", Role.USER, world.now, expires_at=world.now + 10)
    who = world.caller(text)
    assert who is not None
    world.now += 9
    assert world.authentication.accepts(who)
    world.now += 1
    assert world.caller(text) is None
    assert not world.authentication.accepts(who)


def test_a_principal_that_the_settings_do_not_name_has_nothing(world: World) -> None:
    _, text = world.file.create("eve", Role.OPERATOR, world.now)
    assert world.caller(text) is None
    assert world.authentication.permissions("eve") == NO_PERMISSIONS
    assert world.authentication.permissions("local") == Permissions()
    assert world.authentication.permissions("ada") == ADA.permissions


def test_a_role_is_at_most_that_of_the_principal(world: World) -> None:
    _, operator = world.file.create("ada", Role.OPERATOR, world.now)
    _, reader = world.file.create("ada", Role.READER, world.now)
    assert [who.role for who in (world.caller(operator), world.caller(reader)) if who] == [Role.USER, Role.READER]


@pytest.mark.parametrize("content", ["", "{", "[1]", "[{}]"])
def test_a_file_that_is_no_list_of_tokens_opens_to_nobody(world: World, tmp_path: Path, content: str) -> None:
    _, text = world.file.create("ada", Role.USER, world.now)
    assert world.caller(text)
    (tmp_path / PRINCIPALS_TOKENS).write_text(content)
    world.clock += 1.0
    assert world.caller(text) is None
    assert world.caller(OWN) == OWN_USER
    with pytest.raises(TokenUnusableError, match="is not a valid list of tokens"):
        world.file.create("ada", Role.USER, world.now)


def test_a_file_that_others_can_read_opens_to_nobody(world: World, tmp_path: Path) -> None:
    _, text = world.file.create("ada", Role.USER, world.now)
    (tmp_path / PRINCIPALS_TOKENS).chmod(0o644)
    assert world.caller(text) is None
    with pytest.raises(TokenUnusableError, match="chmod 600"):
        world.file.read()


def test_a_file_that_can_be_used_again_is(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has read why it is refused mends it, which changes nothing of its content; and descriptors come back."""
    _, text = world.file.create("ada", Role.USER, world.now)
    (tmp_path / PRINCIPALS_TOKENS).chmod(0o644)
    assert world.caller(text) is None
    (tmp_path / PRINCIPALS_TOKENS).chmod(0o600)
    assert world.caller(text)
    world.file.create("ada", Role.USER, world.now)
    with monkeypatch.context() as broken:
        broken.setattr(tokens, "open_secret", _no_descriptors)
        world.clock += 1.0
        assert world.caller(text) is None
    world.clock += 1.0
    assert world.caller(text)


def _no_descriptors(_path: Path) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_no_token_is_lost_when_several_programs_make_one(world: World, tmp_path: Path) -> None:
    made: list[Any] = []

    def make() -> None:
        made.extend(TokenFile(tmp_path / PRINCIPALS_TOKENS).create("ada", Role.USER, world.now)[0] for _ in range(10))

    threads = [threading.Thread(target=make) for _ in range(4)]
    descriptors = len(os.listdir("/proc/self/fd"))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(world.file.read()) == set(made)
    assert len({token.id for token in made}) == 40
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_file_is_read_only_when_it_has_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = world.file.create("ada", Role.USER, world.now)
    assert world.caller(text)
    monkeypatch.setattr(world.file, "read", lambda: pytest.fail("it is read again"))
    for _ in range(5):
        world.clock += 1.0
        assert world.caller(text)


def test_a_method_that_nobody_has_thought_of_is_refused_to_everybody() -> None:
    check_role("/bedrock.v1.ConversationService/GetConversation", Role.READER)
    check_role("/bedrock.v1.ConversationService/SendMessage", Role.OPERATOR)
    with pytest.raises(Rejected, match="it needs the role user"):
        check_role("/bedrock.v1.ConversationService/SendMessage", Role.READER)
    for method in ("CatalogService/ListNodes", "ConversationService/ListAuditEntries"):
        check_role(f"/bedrock.v1.{method}", Role.OPERATOR)
        with pytest.raises(Rejected, match="it needs the role operator"):
            check_role(f"/bedrock.v1.{method}", Role.USER)
    with pytest.raises(Rejected, match="no role may"):
        check_role("/bedrock.v1.ConversationService/NewMethod", Role.OPERATOR)


def principals(tables: dict[str, Any]) -> dict[str, Principal]:
    return principals_from_tables(read(Named[PrincipalTable], "principals", tables))


def test_principals_are_as_the_file_has_them() -> None:
    found = principals(
        {
            "ada": {"roots": ["/srv/ada/"], "models": ["claude-*"], "mcp_servers": ["git"]},
            "dash@x.org": {"roots": [], "role": "reader", "modes": ["restricted", "workspace"]},
        }
    )
    ada, dash = found["ada"].permissions, found["dash@x.org"]
    assert ada == Permissions(frozenset({Mode.RESTRICTED}), ("/srv/ada",), ("claude-*",), ("git",))
    assert ada.allows_model("claude-x")
    assert not ada.allows_model("gpt-x")
    assert (dash.role, dash.permissions.models, dash.permissions.mcp_servers) == (Role.READER, None, ())
    assert dash.permissions.refusal(Mode.WORKSPACE)


@pytest.mark.parametrize(
    ("name", "table", "why"),
    [
        ("Ada", {"roots": []}, "principals.Ada: a name has"),
        ("local", {"roots": []}, "principals.local: this is the server's own user"),
        ("ada", {}, "principals.ada.roots: needed; must be a list of the directories"),
        ("ada", {"roots": "/srv"}, "principals.ada.roots: must be a list"),
        ("ada", {"roots": ["srv"]}, "'srv' must be an absolute path"),
        ("ada", {"roots": ["/srv/.."]}, "and not /"),
        ("ada", {"roots": ["//"]}, "and not /"),
        ("ada", {"roots": ["/proc/self/root"]}, "and not /"),
        ("ada", {"roots": ["/srv\0"]}, "and not /"),
        ("ada", {"roots": ["/proc"]}, "it shows all processes"),
        ("ada", {"roots": ["/dev/shm"]}, "must not be a system directory"),
        ("ada", {"roots": [], "role": "admin"}, "principals.ada.role: must be one of reader, user, operator"),
        ("ada", {"roots": [], "modes": ["all"]}, "must be one of restricted"),
        ("ada", {"roots": [], "modes": "restricted"}, "principals.ada.modes: must be a list"),
        ("ada", {"roots": [], "models": [1]}, "principals.ada.models[1]: must be a text"),
        (
            "ada",
            {"roots": [], "mode": []},
            "principals.ada.mode: unknown; did you mean 'modes'? There are: roots",
        ),
    ],
)
def test_what_is_wrong_with_a_principal_is_said(name: str, table: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        principals({name: table})


def test_roots_are_the_directories_that_links_lead_to_at_the_start(tmp_path: Path) -> None:
    """Whoever may replace the link later does not choose what is read then."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    found = principals({"ada": {"roots": [str(tmp_path / "link")]}})
    assert found["ada"].permissions.roots == (str(tmp_path / "real"),)
