"""Tokens of principals, kept in a file or shared by several servers, certificates of clients, and who a call is."""

import asyncio
import errno
import os
import re
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from contextvars import Context
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from actors.common.settings_checks import Named, read
from actors.core.context import Mode
from actors.core.errors import Rejected
from actors.ports import StoreUnavailableError
from actors.ports.sandbox import NO_PERMISSIONS, Permissions
from server.auth import tokens
from server.auth.authentication import OWN_USER, Authentication, ClientCertificates, certificate_details
from server.auth.authorization import check_role
from server.auth.principals import Caller, Principal, PrincipalTable, Role, principals_from_tables
from server.auth.tokens import (
    PRINCIPALS_TOKENS,
    PrincipalTokens,
    SharedTokens,
    TokenFile,
    TokenUnusableError,
    read_or_create_token,
    write_private,
)
from server.certificates import SHOWN_TO_GATEWAY
from server.contract.errors import UnauthenticatedError
from server.services.interceptors import looked_further
from tests.support.patience import eventually

# Tokens of principals: made, known, rotated, expired, revoked; and who calls with which role.


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
    assert len(os.listdir("/proc/self/fd")) <= descriptors


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
    with pytest.raises(Rejected, match="role user is required"):
        check_role("/bedrock.v1.ConversationService/SendMessage", Role.READER)
    for method in ("CatalogService/ListNodes", "ConversationService/ListAuditEntries"):
        check_role(f"/bedrock.v1.{method}", Role.OPERATOR)
        with pytest.raises(Rejected, match="role operator is required"):
            check_role(f"/bedrock.v1.{method}", Role.USER)
    with pytest.raises(Rejected, match="to do that: no role is"):
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
        ("Ada", {"roots": []}, "principals.Ada: must be 1 to 64"),
        ("local", {"roots": []}, "principals.local: this is the server's own user"),
        ("ada", {}, "principals.ada.roots: required; must be a list of the directories"),
        ("ada", {"roots": "/srv"}, "principals.ada.roots: must be a list"),
        ("ada", {"roots": ["srv"]}, "'srv' must be an absolute path"),
        ("ada", {"roots": ["/srv/.."]}, "other than /"),
        ("ada", {"roots": ["//"]}, "other than /"),
        ("ada", {"roots": ["/proc/self/root"]}, "other than /"),
        ("ada", {"roots": ["/srv\0"]}, "other than /"),
        ("ada", {"roots": ["/proc"]}, "shows all processes"),
        ("ada", {"roots": ["/dev/shm"]}, "must not be a system directory"),
        ("ada", {"roots": [], "role": "admin"}, "principals.ada.role: must be one of reader, user, operator"),
        ("ada", {"roots": [], "modes": ["all"]}, "must be one of restricted"),
        ("ada", {"roots": [], "modes": "restricted"}, "principals.ada.modes: must be a list"),
        ("ada", {"roots": [], "models": [1]}, "principals.ada.models[1]: must be a string"),
        ("ada", {"roots": [], "mode": []}, "principals.ada.mode: unknown; did you mean 'modes'? Known keys: roots"),
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


# Tokens that several servers share: followed in the background, and read again for a token that is not known.


class Database:
    """A document that can be away, or damaged."""

    location = "tokens.json in the database"

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.away = False
        self.reads = 0
        self._guard = threading.Lock()

    def read(self) -> bytes | None:
        self.reads += 1
        if self.away:
            raise StoreUnavailableError("the database does not respond")
        return self.content

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        with self._guard:
            self.content = change(self.read()) or self.content


class SharedWorld:
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
def shared_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedWorld]:
    monkeypatch.setattr(tokens, "PAUSE_SECONDS", 0.001)
    before = threading.active_count()
    made = SharedWorld()
    yield made
    made.shared.close()
    made.shared.close()
    assert threading.active_count() <= before


def test_a_shared_token_is_known_from_its_creation_on(
    shared_world: SharedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "FOLLOW_SECONDS", 3600.0)
    assert shared_world.caller("bedrock_00000000_none") is None
    token, text = shared_world.tokens.create("ada", Role.USER, 1)
    assert shared_world.caller(text) == Caller("ada", Role.USER, token.id, secret=token.digest[:16])


def test_nothing_is_read_for_what_is_no_token_of_a_principal(
    shared_world: SharedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "FOLLOW_SECONDS", 3600.0)
    assert shared_world.caller("bedrock_00000000_none") is None  # the thread waits for such calls only, from now on
    reads = shared_world.database.reads
    assert shared_world.caller("secret") is None
    assert shared_world.database.reads == reads


def test_a_revoked_token_ends_without_a_call_that_asks(
    shared_world: SharedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "FOLLOW_SECONDS", 0.01)
    token, text = shared_world.tokens.create("ada", Role.USER, 1)
    who = shared_world.caller(text)
    assert who is not None
    assert shared_world.authentication.accepts(who)
    assert shared_world.tokens.revoke(token.id)
    eventually(lambda: not shared_world.authentication.accepts(who), "it is refused")


def test_while_the_database_is_away_tokens_stay_as_they_were(shared_world: SharedWorld) -> None:
    token, text = shared_world.tokens.create("ada", Role.USER, 1)
    assert shared_world.caller(text) is not None
    shared_world.database.away = True
    assert shared_world.caller("bedrock_00000000_none") is None, "read, in vain"
    assert shared_world.caller(text) is not None
    with pytest.raises(TokenUnusableError, match="does not respond"):
        shared_world.tokens.revoke(token.id)


def test_what_is_no_list_of_tokens_opens_to_nobody(shared_world: SharedWorld) -> None:
    _, text = shared_world.tokens.create("ada", Role.USER, 1)
    who = shared_world.caller(text)
    assert who is not None
    kept, shared_world.database.content = shared_world.database.content, b"{"
    eventually(lambda: not shared_world.authentication.accepts(who), "nobody has a token")
    assert shared_world.caller(text) is None
    shared_world.database.content = kept
    eventually(lambda: shared_world.authentication.accepts(who), "it is mended")


def test_a_server_does_not_start_without_them() -> None:
    database = Database()
    database.away = True
    with pytest.raises(StoreUnavailableError):
        SharedTokens(PrincipalTokens(database))
    database.away, database.content = False, b"{"
    with pytest.raises(TokenUnusableError, match=r"tokens\.json in the database is not a valid list of tokens"):
        SharedTokens(PrincipalTokens(database))


# The token: made once, readable for its owner only, compared as a whole.


def test_the_first_start_makes_a_token_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token = read_or_create_token(path)
    assert len(token) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_later_starts_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert read_or_create_token(path) == read_or_create_token(path)


def test_every_server_has_its_own(tmp_path: Path) -> None:
    assert read_or_create_token(tmp_path / "a") != read_or_create_token(tmp_path / "b")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    token = read_or_create_token(path)
    path.chmod(mode)
    with pytest.raises(TokenUnusableError, match="chmod 600") as refusal:
        read_or_create_token(path)
    assert token not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "short", "\n\n"])
def test_an_empty_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    write_private(path, text)
    with pytest.raises(TokenUnusableError, match="contains no token"):
        read_or_create_token(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_no_token(tmp_path: Path, make: Callable[..., None]) -> None:
    make(tmp_path / "token", 0o700)
    with pytest.raises(TokenUnusableError, match=r"token cannot be read: not a regular file"):
        read_or_create_token(tmp_path / "token")


def test_a_token_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    with pytest.raises(TokenUnusableError, match="cannot be written"):
        read_or_create_token(tmp_path / "missing" / "token")


TOKEN = "t" * 43


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ((("authorization", f"Bearer {TOKEN}"),), OWN_USER),
        ((("user-agent", "x"), ("authorization", f"Bearer {TOKEN}")), OWN_USER),
        ((("authorization", f"bearer {TOKEN}"),), OWN_USER),
        ((("authorization", f"BEARER  {TOKEN}"),), OWN_USER),
        ((("authorization", f"Basic {TOKEN}"),), None),
        ((("authorization", f"Bearer{TOKEN}"),), None),
        ((("authorization", f" {TOKEN}"),), None),
        ((("authorization", f"bearer {TOKEN.upper()}"),), None),
        ((("authorization", TOKEN),), None),
        ((("authorization", f"Bearer {TOKEN}x"),), None),
        ((("authorization", f"Bearer {TOKEN[:-1]}"),), None),
        ((("authorization", "Bearer "),), None),
        ((("authorization", "Bearer ä"),), None),
        ((("authorization-bin", b"x"),), None),
        ((), None),
    ],
)
def test_only_the_whole_token_opens(metadata: tuple[tuple[str, str | bytes], ...], expected: Caller | None) -> None:
    assert Authentication(TOKEN).caller_of(metadata) == expected


# Whom certificates of clients stand for, where gRPC tells less than they say.


ADA_OF_TABLE = principals_from_tables({"ada": PrincipalTable(roots=("/srv",))})["ada"]
KEYS = {"uri": "peer_uri", "dns": "peer_dns", "email": "peer_email", "cn": "x509_common_name"}
KINDS: dict[str, Any] = {"uri": x509.UniformResourceIdentifier, "dns": x509.DNSName, "email": x509.RFC822Name}


BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
ENDS = BEGINS + timedelta(days=1)


def certificate(kind: str, name: str, ends: datetime = ENDS) -> bytes:
    """A certificate with this name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name if kind == "cn" else "somebody")])
    made = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(min(BEGINS, ends - timedelta(days=1))).not_valid_after(ends)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    if kind != "cn":
        made = made.add_extension(x509.SubjectAlternativeName([KINDS[kind](name)]), critical=False)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("rest", ["", "\0.evil.example", "\0"])
def test_a_name_with_a_zero_stands_for_nobody_though_grpc_tells_only_what_is_before_it(kind: str, rest: str) -> None:
    known = ClientCertificates({f"{kind}:ada.example.org": ADA_OF_TABLE}, now=BEGINS.timestamp)
    pem = certificate(kind, f"ada.example.org{rest}")
    connection = {"x509_pem_cert": [pem], KEYS[kind]: [b"ada.example.org"]}
    found = None if rest else Caller("ada", Role.USER, certificate_ends=ENDS.timestamp())
    assert known.caller_of(None, connection) == found
    assert known.caller_of(Caller("ada", Role.USER), connection) == found


def test_what_is_no_certificate_is_not_trusted() -> None:
    pem = certificate("cn", "ada")
    assert certificate_details(pem)
    for wrong in (b"", pem[:200], pem.replace(b"CERTIFICATE", b"LETTER"), b"-----BEGIN CERTIFICATE-----\nMIM=\n"):
        assert certificate_details(wrong) is None


@pytest.mark.parametrize("year", [1970, 2026, 2049, 2050, 9999])
def test_the_end_of_a_certificate_is_read_in_both_of_its_forms(year: int) -> None:
    ends = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    found = certificate_details(certificate("dns", "ada.example.org", ends))
    assert found is not None
    assert found.expires_at == ends.timestamp()


@pytest.mark.parametrize("by_token", [None, Caller("ada", Role.USER)])
def test_what_was_begun_with_a_certificate_is_accepted_until_it_expires(by_token: Caller | None) -> None:
    """However long the connection stays open, on which it was valid once."""
    now = [ENDS.timestamp() - 1]
    known = ClientCertificates({"cn:ada": ADA_OF_TABLE}, now=lambda: now[0])
    authentication = Authentication("t" * 43, None, {"ada": ADA_OF_TABLE}, now_ms=lambda: int(now[0] * 1000))
    connection = {"x509_pem_cert": [certificate("cn", "ada")], "x509_common_name": [b"ada"]}
    who = known.caller_of(by_token, connection)
    assert who is not None
    assert who.certificate_ends
    assert authentication.accepts(who)
    now[0] += 1
    assert not authentication.accepts(who)
    assert known.caller_of(by_token, connection) is None


@pytest.mark.parametrize(
    ("peer", "right", "who"), [("unix:", True, "ada"), ("unix:", False, ""), ("ipv4:127.0.0.1:7", True, "")]
)
def test_a_certificate_counts_that_the_gateway_passes_on_over_the_unix_socket(peer: str, right: bool, who: str) -> None:
    known = ClientCertificates({"dns:ada": ADA_OF_TABLE}, now=BEGINS.timestamp)
    authentication = Authentication("t" * 43, None, {"ada": ADA_OF_TABLE}, certificates=known)
    secret = authentication.gateway_secret if right else "x" * len(authentication.gateway_secret)
    shown = secret.encode() + ssl.PEM_cert_to_DER_cert(certificate("dns", "ada").decode())
    context: Any = SimpleNamespace(
        peer=lambda: peer, invocation_metadata=lambda: ((SHOWN_TO_GATEWAY, shown),), auth_context=dict
    )
    with nullcontext() if who else pytest.raises(UnauthenticatedError):
        assert Context().run(asyncio.run, looked_further(authentication, context)).principal == who


def test_a_gateways_certificate_says_nothing_so_its_end_ends_nothing() -> None:
    known = ClientCertificates({"cn:ada": ADA_OF_TABLE}, now=lambda: ENDS.timestamp() + 1)
    connection = {"x509_pem_cert": [certificate("cn", "gateway")], "x509_common_name": [b"gateway"]}
    assert known.caller_of(Caller("ada", Role.USER), connection) == Caller("ada", Role.USER)
