"""The login of the operator at an MCP server: in a browser, kept, used, renewed, refused."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from actors.adapters.mcp import login_flow
from actors.adapters.mcp.login_flow import ClientRefusedError, LoggedIn, LoginError, revoked
from actors.adapters.mcp.server_settings import Login, McpServer
from actors.ports.tools import McpLogin, McpLoginsError, McpRegistration, McpState
from server.auth.credential_commands import logout
from server.auth.tokens import MCP_LOGINS, McpLoginFile
from tests.integration.mcp.conftest import Hub
from tests.integration.server.test_serve import self_signed
from tests.support.login_server import LoginServer, Ways, opened
from tests.support.patience import eventually

NEEDS = "needs login: bedrock mcp login t"


@pytest.fixture
def fake() -> Iterator[LoginServer]:
    with LoginServer() as server:
        yield server


@pytest.fixture
def stored(tmp_path: Path) -> McpLoginFile:
    return McpLoginFile(tmp_path / MCP_LOGINS)


def log_in(server: McpServer, show: Callable[[str], object], **how: Any) -> LoggedIn:
    return asyncio.run(login_flow.log_in(server, show, **how))


def server_at(fake: LoginServer, **settings: Any) -> McpServer:
    return McpServer(name="t", url=fake.url, read_only=True, login=Login(**settings))


def logged_in(fake: LoginServer, **how: Any) -> McpLogin:
    """Log in with a browser in another thread; `how` as for `everything`."""
    return everything(fake, **how).login


def everything(
    fake: LoginServer,
    *,
    seconds: float = 30.0,
    led: Callable[[str], object] = opened,
    known: McpRegistration | None = None,
    **login: Any,
) -> LoggedIn:
    """Log in with a browser in another thread; `led` is called with the address that it is led to."""
    browsers: list[threading.Thread] = []

    def show(address: str) -> None:
        browsers.append(threading.Thread(target=lambda: led(fake.browse(address))))
        browsers[0].start()

    try:
        return log_in(server_at(fake, **login), show, seconds=seconds, known=known)
    finally:
        for browser in browsers:
            browser.join(30)


def test_a_login_gets_tokens_and_only_its_owner_can_read_them(
    fake: LoginServer, stored: McpLoginFile, tmp_path: Path
) -> None:
    login = logged_in(fake)
    found = (login.url, login.resource, login.issuer, login.client_id)
    assert found == (fake.url, fake.url, fake.address, "registered")
    assert login.access_token in fake.valid
    assert 0 < login.renew_at < login.expires_at
    assert "secret" not in repr(login)
    stored.put("t", login)
    assert stored.read() == {"t": login}
    assert stat.S_IMODE((tmp_path / MCP_LOGINS).stat().st_mode) == 0o600
    assert dict(fake.seen)["/token"].items() >= {("resource", fake.url), ("client_id", "registered")}


def test_the_browser_of_another_machine_is_pasted(fake: LoginServer) -> None:
    led: list[str] = []
    login = log_in(server_at(fake), lambda address: led.append(fake.browse(address)), paste=led.pop).login
    assert login.access_token in fake.valid
    with pytest.raises(
        LoginError,
        match=r"does not belong to this login; expected one that begins with http://127.0.0.1:\d+/callback\?",
    ):
        log_in(server_at(fake), lambda _: None, paste=lambda: "http://127.0.0.1/callback?code=a&state=b")


def test_only_the_answer_to_this_login_is_taken_and_only_once(fake: LoginServer) -> None:
    seen: list[tuple[int, str]] = []

    def led(address: str) -> None:
        state = address.partition("state=")[2].partition("&")[0]
        wrong = (
            address.replace(state, "x" * len(state)),
            address.replace("/callback", "/other"),
            address.partition("?")[0],
            f"{address}&state={state}",
        )
        seen.extend(map(opened, wrong))
        seen.append(opened(address))

    assert logged_in(fake, led=led).access_token in fake.valid
    assert [status for status, _ in seen] == [400, 404, 400, 400, 200]


@pytest.mark.parametrize(
    ("ways", "why"),
    [
        (Ways(led={"error": "access_denied", "code": ""}), "refused the login: access_denied"),
        (Ways(led={"iss": "https://evil.test"}), "iss mismatch"),
        (Ways(led={"iss": ""}), "missing iss"),
        (Ways(led={"code": "of-another-login"}), "invalid_grant"),
        (Ways(metadata={"issuer": "https://evil.test"}), "issuer mismatch"),
        (Ways(metadata={"token_endpoint": "http://evil.test/token"}), "evil.test/token must be an https URL"),
        (Ways(metadata={"authorization_endpoint": "http://evil.test/a"}), "evil.test/a must be an https URL"),
        (Ways(metadata={"registration_endpoint": "http://evil.test/r"}), "evil.test/r must be an https URL"),
        (Ways(protected={"authorization_servers": ["http://evil.test"]}), "must be an https URL"),
        (Ways(protected={"resource": "https://evil.test/mcp"}), "does not match"),
        (Ways(metadata={"code_challenge_methods_supported": ["plain"]}), "PKCE with S256"),
        (Ways(metadata={"code_challenge_methods_supported": None}), "PKCE with S256"),
        (Ways(token_status=503), r"Token exchange failed \(503\)"),
        (Ways(token_status=307), r"Token exchange failed \(307\)"),
        (Ways(tokens={"access_token": "a b"}), "a token with invalid characters"),
        (Ways(tokens={"token_type": "mac"}), "Invalid token response"),
        (Ways(open=True), "does not require a login"),
    ],
)
def test_what_is_not_right_is_no_login(ways: Ways, why: str, capfd: pytest.CaptureFixture[str]) -> None:
    with LoginServer(ways) as fake, pytest.raises(LoginError, match=why) as refusal:
        logged_in(fake)
    assert "secret" not in str(refusal.value)
    assert capfd.readouterr().err == "", "the library logs nothing"


def test_what_the_provider_has_in_its_address_is_kept(fake: LoginServer) -> None:
    fake.ways.metadata["authorization_endpoint"] = f"{fake.address}/authorize?policy=b2c&state=theirs"
    shown: list[str] = []
    login = log_in(
        server_at(fake), shown.append, paste=lambda: fake.browse(shown[0].replace("&state=theirs", ""))
    ).login
    assert login.access_token in fake.valid
    assert "/authorize?policy=b2c&state=theirs&response_type=code&" in shown[0]


def test_a_registration_is_used_again_for_the_same_way_back_and_no_other(fake: LoginServer) -> None:
    first = everything(fake).registration
    assert first is not None
    assert "registered" not in repr(first)
    again = everything(fake, known=first).registration
    assert (again, fake.registered) == (first, 1)
    with socket.create_server(("127.0.0.1", urlsplit(first.redirect_uri).port or 0)):
        other = everything(fake, known=first).registration
    assert other is not None
    assert (other.redirect_uri != first.redirect_uri, fake.registered) == (True, 2)
    for name, value in (("url", "https://a.test/"), ("issuer", "https://a.test/"), ("expires_at", int(time.time()))):
        before = fake.registered
        assert everything(fake, known=replace(first, **{name: value})).registration == first
        assert fake.registered == before + 1
    assert everything(fake, known=first, client_id="mine", issuer=fake.address).registration is None
    fake.ways.registrations = 100
    with pytest.raises(ClientRefusedError, match="invalid_client"):
        everything(fake, known=first)


def test_a_login_over_https_trusts_the_authorities_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path)
    with LoginServer(certificate=certificate) as fake:
        with pytest.raises(LoginError, match="certificate"):
            logged_in(fake)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        assert logged_in(fake).access_token in fake.valid


@pytest.mark.parametrize("lifetime", [-5, 0, 1, 29])
def test_a_lifetime_too_short_to_be_true_is_not_relied_on(fake: LoginServer, lifetime: int) -> None:
    fake.ways.tokens["expires_in"] = lifetime
    login = logged_in(fake)
    assert (login.renew_at, login.expires_at) == (0, 0)


def test_a_login_ends_if_the_servers_never_end_their_answers(
    fake: LoginServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.ways.metadata["logo"] = "x" * (1 << 20)
    with pytest.raises(LoginError, match="too large"):
        logged_in(fake)
    fake.ways = Ways(token_hangs=threading.Event())
    monkeypatch.setattr(login_flow, "ALL_SECONDS", 1.0)
    with pytest.raises(LoginError, match="did not respond within 1 s"):
        logged_in(fake)
    assert fake.ways.token_hangs is not None
    fake.ways.token_hangs.set()


def test_the_time_limit_of_the_requests_stands_still_while_the_person_logs_in() -> None:
    async def check() -> None:
        async with asyncio.timeout(100) as limit:
            with login_flow._Waiting(1.0, limit):
                assert limit.when() is None
            await asyncio.sleep(0)
            assert limit.when() is not None

    asyncio.run(check())


def test_a_logout_from_a_damaged_file_says_so(tmp_path: Path, fake: LoginServer, stored: McpLoginFile) -> None:
    def run() -> Result:
        return CliRunner().invoke(logout, ["t", "--data-dir", str(tmp_path)])

    stored.put("t", replace(logged_in(fake), url="no url", client_authentication="none at all"))
    done = run()
    assert (done.exit_code, done.stdout) == (0, "logged out of t\n")
    assert "may still be valid" in done.stderr
    file = tmp_path / MCP_LOGINS
    for damage in (b"\xff", b'{"t": "\xff"}', b"[", b'{"t": ' + b"[" * 100_000):
        file.write_bytes(damage)
        done = run()
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"{file} contains no valid logins" in done.stderr


def test_a_login_ends_if_nobody_comes(fake: LoginServer) -> None:
    with pytest.raises(LoginError, match=r"the login was not completed within 0.01 s"):
        logged_in(fake, seconds=0.01, led=lambda _: None)


def test_what_the_settings_name_is_used_and_nothing_else(fake: LoginServer) -> None:
    mine: dict[str, Any] = {"client_id": "mine", "client_secret": "pw", "issuer": fake.address, "scope": "read"}
    login = logged_in(fake, **mine)
    assert (login.client_id, login.client_secret, login.client_authentication) == ("mine", "pw", "client_secret_basic")
    assert [path for path, _ in fake.seen] == ["/token"], "nothing is registered"
    with pytest.raises(LoginError, match="as its authorization server, not"):
        logged_in(fake, issuer="https://auth.test")
    assert len(fake.seen) == 1


def test_a_login_is_taken_up_by_a_running_server_and_a_logout_too(
    hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile
) -> None:
    made = hub(server_at(fake), logins=stored)
    made.all.start()
    eventually(lambda: made.status().state is McpState.NEEDS_LOGIN, "the state")
    assert made.status().error == NEEDS
    assert NEEDS in made.call("add").text
    stored.put("t", login := logged_in(fake))
    eventually(lambda: made.status().state is McpState.READY, "its connection with the login")
    assert made.call("add").text == "5"
    assert stored.replace("t", login, None)
    eventually(lambda: made.status().state is McpState.NEEDS_LOGIN, "the state")
    assert made.call("add").is_error
    assert fake.calls == 1


def test_tokens_are_renewed_for_all_conversations_at_once_and_kept_for_the_next_start(
    hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile
) -> None:
    login = logged_in(fake)
    stored.put("t", replace(login, renew_at=1, expires_at=2))
    made = hub(server_at(fake), logins=stored)
    calls = [threading.Thread(target=made.call, args=("add",), kwargs={"conversation_id": f"c{n}"}) for n in range(8)]
    made.all.start()
    for call in calls:
        call.start()
    for call in calls:
        call.join(60)
    assert (fake.calls, fake.refreshed) == (8, 1)
    eventually(lambda: stored.read()["t"].access_token != login.access_token, "the new tokens in the file")
    assert dict(fake.seen)["/token"]["resource"] == fake.url
    made.close()
    again = hub(server_at(fake), logins=stored)
    assert again.call("add").text == "5"
    assert fake.refreshed == 1


def test_an_access_token_that_is_refused_before_its_time_is_renewed(
    hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile
) -> None:
    stored.put("t", logged_in(fake))
    made = hub(server_at(fake), logins=stored)
    assert made.call("add").text == "5"
    fake.valid.clear()
    assert made.call("add").text == "5"
    assert fake.refreshed == 1


def test_tokens_are_renewed_in_the_background(hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile) -> None:
    stored.put("t", replace(logged_in(fake), renew_at=int(time.time() * 1000) - 1))
    made = hub(server_at(fake), logins=stored)
    made.all.start()
    eventually(lambda: fake.refreshed == 1, "new tokens without a call")


@pytest.mark.parametrize("refresh_token", ["refresh-secret-of-yesterday", ""])
def test_a_login_that_has_ended_fails_its_call_and_says_what_to_do(
    hub: Callable[..., Hub],
    fake: LoginServer,
    stored: McpLoginFile,
    refresh_token: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored.put("t", replace(logged_in(fake), refresh_token=refresh_token))
    made = hub(server_at(fake), logins=stored)
    made.all.start()
    eventually(lambda: made.status().state is McpState.READY, "its connection")
    assert made.call("add").text == "5"
    fake.valid.clear()
    refused = made.call("add")
    assert refused.is_error
    assert NEEDS in refused.text
    eventually(lambda: made.status().state is McpState.NEEDS_LOGIN, "the state")
    assert made.status().error == NEEDS
    assert stored.read() == {}, "it is of no use any more"
    assert "secret" not in caplog.text
    stored.put("t", logged_in(fake))
    eventually(lambda: made.status().state is McpState.READY, "its connection with the next login")


@pytest.mark.parametrize(
    ("ways", "why"),
    [
        (Ways(token_status=503), "its authorization server responded with HTTP 503"),
        (Ways(token_status=307), "its authorization server responded with HTTP 307"),
        (Ways(tokens={"access_token": "a b"}), "its authorization server returned no token"),
        (
            Ways(tokens={"scope": "x" * (1 << 20)}),
            "a request to its authorization server failed: a message is too large",
        ),
    ],
)
def test_while_tokens_cannot_be_renewed_nothing_is_lost(
    hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile, ways: Ways, why: str
) -> None:
    login = replace(logged_in(fake), renew_at=1, expires_at=2)
    stored.put("t", login)
    fake.ways = ways
    made = hub(server_at(fake), logins=stored)
    made.all.start()
    eventually(lambda: made.status().state is McpState.FAILED, "the state")
    assert why in made.status().error
    assert stored.read() == {"t": login}


def test_an_authorization_server_that_never_ends_its_answer_keeps_nobody_waiting(
    hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_flow, "RENEW_SECONDS", 0.2)
    stored.put("t", replace(logged_in(fake), renew_at=1, expires_at=2))
    fake.ways.token_hangs = threading.Event()
    made = hub(server_at(fake), logins=stored)
    assert made.call("add").is_error
    eventually(lambda: made.status().state is McpState.FAILED, "the state")
    assert "a request to its authorization server failed: TimeoutError" in made.status().error
    fake.ways.token_hangs.set()


def test_while_renewed_tokens_cannot_be_stored_they_are_used_and_stored_in_the_end(
    hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    login, full, replaced = logged_in(fake), threading.Event(), stored.replace

    def replace_unless_full(*change: Any) -> bool:
        if full.is_set():
            raise McpLoginsError("no space left on device")
        return replaced(*change)

    monkeypatch.setattr(stored, "replace", replace_unless_full)
    full.set()
    stored.put("t", replace(login, renew_at=1, expires_at=2))
    made = hub(server_at(fake), logins=stored)
    made.all.start()
    assert made.call("add").text == "5"
    stored.put("u", login)
    fake.valid.clear()
    assert made.call("add").text == "5"
    assert fake.refreshed == 2
    assert stored.read()["t"].access_token not in fake.valid
    full.clear()
    eventually(lambda: stored.read()["t"].access_token in fake.valid, "the new tokens in the file")
    assert made.status().state is McpState.READY


def test_tokens_that_a_logout_overtakes_are_made_invalid(
    hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = login_flow.renewed

    async def overtaken(login: McpLogin) -> McpLogin:
        after = await renewed(login)
        assert stored.replace("t", login, None)
        return after

    monkeypatch.setattr(login_flow, "renewed", overtaken)
    stored.put("t", replace(logged_in(fake), renew_at=1))
    hub(server_at(fake), logins=stored).all.start()
    eventually(lambda: fake.seen[-1][0] == "/revoke" and not fake.refresh, "the end of the new tokens")
    assert stored.read() == {}


def test_a_renewal_does_not_overwrite_a_newer_login_or_a_logout(fake: LoginServer, stored: McpLoginFile) -> None:
    first, second = logged_in(fake), logged_in(fake)
    stored.put("t", first)
    stored.put("t", second)
    assert not stored.replace("t", first, replace(first, access_token="late"))
    assert stored.read() == {"t": second}
    assert stored.replace("t", second, None)
    assert not stored.replace("t", second, replace(second, access_token="late"))
    assert stored.read() == {}


def test_tokens_are_made_invalid_where_the_provider_offers_it(fake: LoginServer) -> None:
    login = logged_in(fake)
    assert asyncio.run(revoked(login))
    assert fake.refresh == set()
    assert dict(fake.seen)["/revoke"]["token_type_hint"] == "refresh_token"
    for endpoint in (None, "http://x.test/"):
        fake.ways = Ways(metadata={"revocation_endpoint": endpoint})
        assert not asyncio.run(revoked(logged_in(fake)))
    assert not asyncio.run(revoked(replace(login, revocation_endpoint="http://127.0.0.1:9/")))


def test_tokens_go_to_the_url_that_they_are_for(
    hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile
) -> None:
    with LoginServer() as other:
        stored.put("t", logged_in(other))
    made = hub(server_at(fake), logins=stored)
    made.all.start()
    eventually(lambda: made.status().state is McpState.NEEDS_LOGIN, "the state")
    assert fake.given == {""}


def test_a_file_that_others_can_read_is_not_used(
    hub: Callable[..., Hub], fake: LoginServer, stored: McpLoginFile, tmp_path: Path
) -> None:
    stored.put("t", logged_in(fake))
    (tmp_path / MCP_LOGINS).chmod(0o644)
    made = hub(server_at(fake), logins=stored)
    made.all.start()
    eventually(lambda: made.status().state is McpState.FAILED, "the state")
    assert "chmod 600" in made.status().error


def test_two_programs_do_not_lose_each_others_logins(fake: LoginServer, stored: McpLoginFile, tmp_path: Path) -> None:
    login = logged_in(fake)

    def put(name: str) -> None:
        for number in range(20):
            McpLoginFile(tmp_path / MCP_LOGINS).put(name, replace(login, access_token=f"{name}{number}"))

    threads = [threading.Thread(target=put, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: each.access_token for name, each in stored.read().items()} == {"a": "a19", "b": "b19", "c": "c19"}
    assert list(json.loads((tmp_path / MCP_LOGINS).read_text())) == ["a", "b", "c"] or len(stored.read()) == 3
