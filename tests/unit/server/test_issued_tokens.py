"""Tokens of issuers, and a company's own authorizer: who is believed, and whom a caller stands for."""

import asyncio
import base64
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.api_jws import PyJWS

from actors.common.settings_checks import Named, read
from actors.ports.sandbox import NO_PERMISSIONS
from server.auth import authentication, issued_tokens, principals
from server.auth.authentication import Authentication, AuthorizerCalls, made_authorizer
from server.auth.authorizer.authorizer_port import Authorizer, Decision, Identity, Peer
from server.auth.issued_tokens import MAX_TOKEN_BYTES, IssuedTokens
from server.contract.errors import AuthorizerUnavailableError
from server.settings.config import AuthorizerSettings
from tests.support.patience import PATIENCE

# Tokens of issuers: which are believed, whom they stand for, and what becomes of them when keys change.


URL = "https://id.example.com/realms/team"
TABLE = {"issuer": URL, "audience": "bedrock", "jwks_url": "https://id.example.com/certs"}
ADA = principals.principals_from_tables(
    {
        "ada": principals.PrincipalTable(roots=("/srv/ada",)),
        "ops": principals.PrincipalTable(roots=(), role=principals.Role.OPERATOR),
    }
)
OWN = "t" * 43


def issuers(tables: dict[str, Any]) -> dict[str, principals.Issuer]:
    return principals.issuers_from_tables(read(Named[principals.IssuerTable], "issuers", tables), ADA)


@cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    del name
    return rsa.generate_private_key(public_exponent=65_537, key_size=bits)


@cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def jwk(name: str, **more: Any) -> dict[str, Any]:
    """The public key `name`, as an issuer publishes it."""
    return {**RSAAlgorithm.to_jwk(rsa_key(name).public_key(), as_dict=True), "kid": name, "use": "sig", **more}


def token(key: Any = None, *, kid: str | None = "one", alg: str = "RS256", **claims: Any) -> str:
    """A token that is good but for what is given here; None takes a claim away, `head` is added to its header."""
    said = {"iss": URL, "aud": "bedrock", "sub": "4711", "exp": int(time.time()) + 600, **claims}
    headers = {**({} if kid is None else {"kid": kid}), **said.pop("head", {})}
    kept = {name: value for name, value in said.items() if value is not None}
    return PyJWS().encode(json.dumps(kept).encode(), rsa_key("one") if key is None else key, alg, headers)


class World:
    """Tokens of one issuer, whose keys are in a file unless they are at a URL."""

    def __init__(self, folder: Path, **table: Any) -> None:
        self.path = folder / "jwks.json"
        self.publish(jwk("one"))
        settings = {**TABLE, "principals": {"4711": "ada", "ünï": "ada"}, **table}
        if "jwks_url" not in table:
            settings["jwks_file"] = str(self.path)
            del settings["jwks_url"]
        self.issuers = issuers({"corp": settings})
        self.now, self.clock = time.time(), 0.0
        self.tokens = IssuedTokens(self.issuers, now=lambda: self.now, monotonic=lambda: self.clock)
        self.authentication = Authentication(OWN, None, ADA, issuers=self.issuers, issued=self.tokens)

    def publish(self, *keys: Any) -> None:
        self.path.write_text(json.dumps({"keys": keys}))

    async def caller(self, text: str) -> principals.Caller | None:
        """Who calls, as the interceptor finds out."""
        metadata = [("authorization", f"Bearer {text}")]
        return self.authentication.caller_of(metadata) or await self.authentication.caller_after_refresh(metadata)

    def known(self, text: str) -> principals.Caller | None:
        return asyncio.run(self.caller(text))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_good_token_stands_for_its_principal(world: World) -> None:
    found = world.known(token())
    assert found is not None
    assert (found.principal, found.role, found.issuer) == ("ada", principals.Role.USER, "corp")
    assert world.known(token(sub="ünï", aud=["other", "bedrock"])) is not None
    assert world.known(token(kid=None)) is not None, "there is one key only"
    assert world.known(token(exp=int(time.time()) - 20)) is not None, "clocks differ"


def without_signature(text: str, **header: Any) -> str:
    """The token with another header and no signature."""
    head = base64.urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
    return f"{head}.{text.split('.')[1]}."


def public_key() -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return rsa_key("one").public_key().public_bytes(encoding, form)


def signed_with(secret: bytes, kid: str = "one") -> str:
    """A good token with the signature that HS256 gives with a secret."""
    signed = without_signature(token(), alg="HS256", kid=kid).rstrip(".")
    digest = hmac.digest(secret, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


FORGED: dict[str, Callable[[], str]] = {
    "another key": lambda: token(rsa_key("mine")),
    "another key's id": lambda: token(rsa_key("mine"), kid="mine"),
    "an id of no key": lambda: token(kid="../../dev/null"),
    "an id that is no text": lambda: without_signature(token(), alg="RS256", kid=["one"]),
    "no signature": lambda: without_signature(token(), alg="none"),
    "no signature by another spelling": lambda: without_signature(token(), alg="NoNe", kid="one"),
    "no algorithm": lambda: without_signature(token(), kid="one"),
    "the public key as a secret": lambda: signed_with(public_key()),
    "an algorithm that is not allowed": lambda: token(alg="RS512"),
    "a key of another kind": lambda: token(ec_key(), alg="ES256"),
    "its own key": lambda: token(rsa_key("mine"), kid="mine", head={"jwk": jwk("mine")}),
    "a URL of keys": lambda: token(rsa_key("mine"), kid="mine", head={"jku": "https://evil.example/keys"}),
    "a URL of certificates": lambda: token(rsa_key("mine"), head={"x5u": "https://evil.example/c.pem"}),
    "an extension that must be understood": lambda: token(head={"crit": ["exp"], "exp": 1}),
    "expired": lambda: token(exp=int(time.time()) - 60),
    "not yet valid": lambda: token(nbf=int(time.time()) + 3_600),
    "no end": lambda: token(exp=None),
    "an end that is a text": lambda: token(exp=str(int(time.time()) + 600)),
    "an end that never comes": lambda: token(exp=1e300),
    "another issuer": lambda: token(iss="https://id.example.com/realms/team/"),
    "an issuer that is a list": lambda: token(iss=[URL]),
    "no issuer": lambda: token(iss=None),
    "another audience": lambda: token(aud="bedrock2"),
    "no audience": lambda: token(aud=None),
    "nobody": lambda: token(sub=None),
    "nobody's name": lambda: token(sub=""),
    "a stranger": lambda: token(sub="4712"),
    "a principal's own name": lambda: token(sub="ada"),
    "the server's own user": lambda: token(sub="local"),
    "a number": lambda: token(sub=4711),
    "too long": lambda: token(more="x" * MAX_TOKEN_BYTES),
    "nested without end": lambda: f"e30.{base64.urlsafe_b64encode(b'[' * 9_000).decode()}.x",
    "other claims": lambda: ".".join((token().split(".")[0], token(sub="x").split(".")[1], token().split(".")[2])),
    "two parts": lambda: token().rpartition(".")[0],
    "four parts": lambda: f"{token()}.x",
    "no token": lambda: "...",
}
"""Tokens that must not be believed, by what is wrong with them."""


@pytest.mark.parametrize("name", FORGED)
async def test_no_other_token_is_believed(world: World, name: str) -> None:
    assert await world.caller(token()) is not None
    assert await world.caller(FORGED[name]()) is None
    assert await world.caller(token()) is not None


def test_a_token_that_names_no_known_key_is_not_looked_at_byte_by_byte(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    good = token()
    monkeypatch.setattr(jwt, "decode", lambda *args, **_: asked.append(args))
    monkeypatch.setattr(jwt, "get_unverified_header", lambda *args: asked.append(args))
    for name in ("an id of no key", "no signature", "another issuer", "no issuer", "nested without end"):
        assert world.known(FORGED[name]()) is None
    assert not asked
    with pytest.raises(TypeError):
        world.known(good)


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits long")
async def test_a_key_set_offers_only_public_keys_of_allowed_kinds(world: World) -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"}
    private = {**json.loads(RSAAlgorithm.to_jwk(rsa_key("one"))), "kid": "private"}
    small = {**RSAAlgorithm.to_jwk(rsa_key("small", 1_024).public_key(), as_dict=True), "kid": "small"}
    curve = {**ECAlgorithm.to_jwk(ec_key().public_key(), as_dict=True), "kid": "curve"}
    for_encryption, for_others = jwk("one", kid="enc", use="enc"), jwk("one", kid="ps", alg="PS256")
    world.publish(secret, private, small, curve, for_encryption, for_others, "nonsense", {"kty": "RSA"}, jwk("one"))

    assert await world.caller(token(ec_key(), kid="curve", alg="ES256")) is not None
    assert await world.caller(token()) is not None
    assert await world.caller(signed_with(b"secret", "secret")) is None
    for kid in ("private", "enc", "ps"):
        assert await world.caller(token(kid=kid)) is None, kid
    assert await world.caller(token(rsa_key("small", 1_024), kid="small")) is None


# --- whom it stands for ----------------------------------------------------------------------------------------------


def test_a_role_is_what_the_claim_gives_within_that_of_the_principal(tmp_path: Path) -> None:
    roles = {"agents-read": "reader", "agents-use": "user", "agents-run": "operator"}
    world = World(tmp_path, role_claim="realm_access.roles", roles=roles, principals={"4711": "ada", "1": "ops"})
    for said, expected in (
        (["agents-read"], principals.Role.READER),
        (["agents-read", "agents-use", "x"], principals.Role.USER),
        (["agents-run", "agents-read"], principals.Role.USER),
        ("agents-read", principals.Role.READER),
    ):
        found = world.known(token(realm_access={"roles": said}))
        assert found is not None
        assert found.role is expected
    operator = world.known(token(sub="1", realm_access={"roles": ["agents-run"]}))
    assert operator is not None
    assert operator.role is principals.Role.OPERATOR
    for nothing in ([], ["operator"], [["agents-use"]], None, 7, {"agents-use": 1}):
        assert world.known(token(realm_access={"roles": nothing})) is None
    assert world.known(token(realm_access=["agents-use"])) is None


def test_a_template_makes_a_principal_of_each_value(tmp_path: Path) -> None:
    template = {"roots": [f"{tmp_path}/{{principal}}", "/srv/shared"], "models": ["demo"]}
    world = World(tmp_path, template=template, principals={"4711": "ada"})
    for said in ("zoë", "auth0|5f7c", "o'neil @ work", "ada", "local", "{principal}"):
        found = world.known(token(sub=said))
        assert found is not None
        assert found.principal == f"corp:{said}", "never a principal of the settings"
        permissions = world.authentication.permissions(found.principal)
        assert permissions.roots == (f"{tmp_path}/{said}", "/srv/shared")
        assert permissions.models == ("demo",)
    named = world.known(token())
    assert named is not None
    assert named.principal == "ada"
    for said in ("", "..", ".ssh", "../ada", "a/b", "/", "a\0b", "a\nb", "\u202egro", "\ud800", "x" * 256):
        assert world.known(token(sub=said)) is None, ascii(said)
        assert world.authentication.permissions(f"corp:{said}") == NO_PERMISSIONS
    assert world.authentication.permissions("other:zoë") == NO_PERMISSIONS
    assert World(tmp_path).authentication.permissions("corp:zoë") == NO_PERMISSIONS


# --- keys that change ------------------------------------------------------------------------------------------------


async def test_a_new_key_is_known_at_once_and_one_that_is_withdrawn_ends_what_it_began(world: World) -> None:
    first = await world.caller(token())
    assert first is not None
    world.publish(jwk("two"), jwk("one"))
    world.clock += issued_tokens.FILE_SECONDS
    second = await world.caller(token(rsa_key("two"), kid="two"))
    assert second is not None
    assert world.authentication.accepts(first)
    world.publish(jwk("two"))
    world.clock += issued_tokens.FILE_SECONDS + 1
    assert world.authentication.accepts(first), "the file is read in the background"
    await world.tokens._keys["corp"].refresh()
    assert not world.authentication.accepts(first)
    assert world.authentication.accepts(second)
    assert await world.caller(token()) is None


async def test_the_end_of_a_token_ends_what_it_began(world: World) -> None:
    found = await world.caller(token())
    assert found is not None
    world.now += 600
    assert world.authentication.accepts(found), "clocks may differ by 30 seconds"
    world.now += 31
    assert not world.authentication.accepts(found)


class Published(ThreadingHTTPServer):
    """An issuer's server."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.asked = 0
        self.status, self.content = 200, json.dumps({"keys": [jwk("one")]}).encode()
        self.hold: threading.Event | None = None
        self.endless: tuple[bytes, bytes] | None = None
        """What follows the status line, and what then comes again and again until the client hangs up."""
        self.hung_up = threading.Event()


class Answering(BaseHTTPRequestHandler):
    server: Published

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.hold is not None:
            self.server.hold.wait(60)
        if self.server.endless:
            with suppress(OSError):
                first, then = self.server.endless
                self.wfile.write(b"HTTP/1.1 200 OK\r\n" + first)
                while True:
                    self.wfile.write(then)
                    time.sleep(0.01)
            self.server.hung_up.set()
            return
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def published() -> Iterator[Published]:
    server = Published()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    if server.hold is not None:
        server.hold.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def remote(published: Published, tmp_path: Path) -> World:
    return World(tmp_path, jwks_url=f"http://127.0.0.1:{published.server_address[1]}/certs?x=1")


async def test_keys_are_asked_for_once_and_unknown_ids_cause_no_storm(remote: World, published: Published) -> None:
    found = await asyncio.gather(*(remote.caller(token()) for _ in range(20)))
    assert all(found)
    assert published.asked == 1
    for number in range(50):
        assert await remote.caller(token(kid=f"unknown-{number}")) is None
    assert published.asked == 1
    remote.clock += issued_tokens.RETRY_SECONDS
    for number in range(50):
        assert await remote.caller(token(kid=f"unknown-{number}")) is None
    assert published.asked == 2


async def test_an_issuer_that_is_down_keeps_its_last_keys_for_a_day(
    remote: World, published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    good, published.status = published.content, 503

    assert await remote.caller(token()) is None, "down when it is needed first"
    published.status, published.content = 302, b""
    remote.clock += issued_tokens.RETRY_SECONDS
    assert await remote.caller(token()) is None, "no redirect is followed"
    published.status, published.content = 200, good
    remote.clock += issued_tokens.RETRY_SECONDS
    first = await remote.caller(token())
    assert first is not None
    for content in (b"<html>", b"{}", b'{"keys": 7}', b'{"keys": []}', b'{"keys": [' + b" " * (1 << 19)):
        published.content = content
        remote.clock += issued_tokens.URL_SECONDS + 1
        assert await remote.caller(token()) is not None
        await remote.tokens._keys["corp"].refresh()
        assert await remote.caller(token()) is not None
    remote.clock += issued_tokens.STALE_SECONDS
    assert await remote.caller(token()) is None
    assert not remote.authentication.accepts(first)
    assert "responded with status 503" in caplog.text
    assert "larger than 256 KiB" in caplog.text


async def test_an_issuer_that_does_not_answer_holds_nobody_up_for_long(
    remote: World, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.hold = threading.Event()
    monkeypatch.setattr(issued_tokens, "FETCH_SECONDS", 0.05)

    assert await remote.caller(token()) is None
    assert await remote.caller(OWN) is not None
    published.hold.set()
    monkeypatch.setattr(issued_tokens, "FETCH_SECONDS", 30.0)
    remote.clock += issued_tokens.RETRY_SECONDS
    assert await remote.caller(token()) is not None


@pytest.mark.parametrize("endless", [(b"x: ", b"y"), (b"transfer-encoding: chunked\r\n\r\n", b"0"), (b"\r\n", b" ")])
async def test_an_issuer_that_never_ends_its_answer_is_hung_up_on(
    remote: World, published: Published, monkeypatch: pytest.MonkeyPatch, endless: tuple[bytes, bytes]
) -> None:
    """Else each attempt would keep one of the few threads on which, among others, the server is stopped."""
    published.endless = endless
    monkeypatch.setattr(issued_tokens, "FETCH_SECONDS", 0.2)
    assert await remote.caller(token()) is None
    assert await asyncio.to_thread(published.hung_up.wait, PATIENCE)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithms": ["HS256"]}, "algorithms: 'HS256' is not one of RS256"),
        ({"algorithms": ["none"]}, "algorithms: 'none' is not one of"),
        ({"algorithms": []}, "algorithms: required"),
        ({"jwks_url": "http://id.example.com/certs"}, "jwks_url: must begin with https://"),
        ({"jwks_url": "https://a:b@id.example.com/certs"}, "jwks_url: must be an ASCII URL without credentials"),
        ({"jwks_url": "file:///etc/passwd"}, "jwks_url: must be an ASCII URL"),
        ({"jwks_url": "https://[::1"}, "jwks_url: must be an ASCII URL"),
        ({"jwks_file": "/k.json"}, "jwks_url: set either jwks_url or jwks_file, not both"),
        ({"issuer": ""}, "issuer: must be a string"),
        ({"audience": []}, "audience: required"),
        ({"leeway_seconds": 9_000}, "leeway_seconds: must be between"),
        ({"principals": {"1": "eve"}}, "principals: '1' is mapped to 'eve', which is not a principal; principals: ada"),
        ({"principals": {}}, "principals: map each sub to a principal, or set a template for all"),
        ({"roles": {"x": "user"}}, "role_claim: required with roles, which maps the values of this claim"),
        ({"role_claim": "r", "roles": {"x": "king"}}, "roles: must be one of reader, user, operator"),
        ({"template": {}}, "template.roots: required; must be a list of the directories"),
        ({"template": {"roots": ["{principal}"]}}, "template.roots: 'example' must be an absolute path"),
        ({"template": {"roots": ["/srv/{name}"]}}, "template.roots: '/srv/{name}' has a brace outside"),
        ({"template": 7}, "template: must be a table"),
        ({"secret": "x"}, "secret: unknown; known keys: issuer,"),
    ],
)
def test_a_wrong_table_is_refused_with_the_reason(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="issuers") as refusal:
        issuers({"corp": {**TABLE, "principals": {"1": "ada"}, **change}})
    assert f"issuers.corp.{said}" in str(refusal.value)


def test_two_tables_of_one_issuer_are_refused() -> None:
    table = {**TABLE, "principals": {"1": "ada"}}
    with pytest.raises(ValueError, match="another table has the same issuer"):
        issuers({"one": table, "two": {**table, "audience": "other"}})
    assert isinstance(issuers({"one": table})["one"], principals.Issuer)


# The authorizer of the settings: how it is named and made, and that calls of it are bounded.


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

    def authorize(self, principal: str, role: principals.Role, method: str, resource: str) -> Decision:
        del principal, role, method, resource
        return Decision(False, self._reason)


async def test_one_that_hangs_refuses_and_answers_again_when_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "MAX_CALLS", 2)
    rules: Authorizer = (gated := Gated())

    calls = AuthorizerCalls(rules, 0.05)
    asked = [calls.identity([("x-user", "ada"), ("x-bin", b"1")], PEER) for _ in range(5)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in answers] == [AuthorizerUnavailableError] * 5
    gated.open.set()
    calls._seconds = 60
    asked = [calls.identity([("x-user", "ada")], PEER) for _ in range(5)]
    assert await asyncio.gather(*asked) == [Identity("ada")] * 5
    assert gated.threads == {"bedrock-authorizer"}


async def test_strangers_who_are_asked_for_keep_no_caller_waiting_who_is_known() -> None:
    gated = Gated("no")

    calls = AuthorizerCalls(gated, 60)
    strangers = [asyncio.create_task(calls.identity([("x-user", "eve")], PEER)) for _ in range(50)]
    while not gated.threads:
        await asyncio.sleep(0.01)
    assert await calls.refusal("ada", principals.Role.USER, "/m", "conversations/c") == "no"
    gated.open.set()
    await asyncio.gather(*strangers)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration])
async def test_what_is_no_usual_error_refuses_and_keeps_no_place(error: type[BaseException]) -> None:
    class Ends(Gated):
        def authenticate(self, metadata: Mapping[str, str], peer: Peer) -> Identity | None:
            if not metadata:
                raise error
            return Identity("ada")

    calls = AuthorizerCalls(Ends(), 0.05)
    for _ in range(authentication.MAX_CALLS):
        with pytest.raises(AuthorizerUnavailableError):
            await calls.identity([], PEER)
    calls._seconds = 60
    assert await calls.identity([("x-user", "ada")], PEER) == Identity("ada")


async def test_a_flood_of_calls_that_fail_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "LOG_SECONDS", 3_600)

    gated = Gated()
    gated.open.set()
    calls = AuthorizerCalls(gated, 60)
    for _ in range(5):  # without a user
        with pytest.raises(AuthorizerUnavailableError):
            await calls.identity([], PEER)
    assert [record.message for record in caplog.records] == ["the authorizer failed: KeyError"]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("", "this server's authorizer does not allow that"), ("a\x1b[31m\nb", "a [31m b"), ("x" * 900, "x" * 500)],
)
async def test_a_reason_is_shown_as_plain_text(reason: str, shown: str) -> None:
    calls = AuthorizerCalls(Gated(reason), 60)
    assert await calls.refusal("ada", principals.Role.USER, "/m", "conversations/c") == shown


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "authorizer.class: required; must be package.module:Class"),
        ({"class": "os.path"}, "authorizer.class: must be package.module:Class"),
        ({"class": ".x:Y"}, "authorizer.class: must be package.module:Class"),
        ({"class": "a:b", "timeout_seconds": 0}, "authorizer.timeout_seconds: must be greater than 0 and at most 30"),
        ({"class": "a:b", "options": 1}, "authorizer.options: must be a table"),
        ({"class": "a:b", "token": 1}, "authorizer.token: unknown; known keys: class, timeout_seconds, options"),
        (
            {"class": "no_such_module_here:X"},
            "authorizer.class: no_such_module_here:X cannot be imported: no module named no_such_module_here",
        ),
        ({"class": "os:No"}, "authorizer.class: os:No cannot be imported: AttributeError"),
        ({"class": "os:sep"}, "authorizer.class: os:sep is not a class"),
        ({"class": "threading:Thread"}, "authorizer.class: threading:Thread has no method authenticate"),
        ({"class": "functools:partial", "options": {"f": 1}}, "authorizer.class: functools:partial has no method"),
        ({"class": f"{__name__}:Picky", "options": {"secret": "s3"}}, ":Picky cannot be created: OSError"),
    ],
)
def test_a_wrong_authorizer_is_refused_with_the_reason(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="authorizer") as refusal:
        made_authorizer(read(AuthorizerSettings, "authorizer", table))
    assert said in str(refusal.value)
    assert "s3" not in str(refusal.value)
