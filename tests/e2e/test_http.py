"""The API over HTTP, by clients that know nothing of this project: httpx, httpx-sse and schemathesis."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from bedrock import Client, v1
from bedrock.errors import Unavailable
from httpx_sse import ServerSentEvent, connect_sse
from httpx_sse._decoders import SSEDecoder

from server.gateway.command import NOT_PASSED_ON
from tests.support.certificates import make_authority, make_certificate
from tests.support.fake_provider import FakeProvider, calls, dribbles, says, stalls
from tests.support.patience import PATIENCE, eventually, only
from tests.support.pictures import png
from tests.support.processes import children, read
from tests.support.server_process import ServerProcess, Servers, clean_environment, http_url, provider

pytestmark = pytest.mark.one_server("the gateway stands in front of one server")
SSE = {"Accept": "text/event-stream"}
CUTS = int(os.environ.get("BEDROCK_HTTP_CUTS", "20"))
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
CALLS = int(os.environ.get("BEDROCK_HTTP_CALLS", "110"))


@pytest.fixture(scope="module")
def server(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Servers()
    yield servers(tmp_path_factory.mktemp("server"), "--http", "127.0.0.1:0", **provider(fake_provider.url))
    servers.close()


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with client_of(server) as client:
        yield client


def client_of(server: ServerProcess) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx.Client(base_url=http_url(server), headers=headers, timeout=PATIENCE, trust_env=False)


def gateways(server: ServerProcess) -> list[int]:
    """The processes of a server's gateway: its children that run it."""
    return [pid for pid in children(server.pid) if b"server.gateway" in read(pid, "cmdline")]


def created(http: httpx.Client, folder: Path, **fields: Any) -> str:
    answer = http.post("/v1/conversations", json={"workingDirectory": str(folder), **fields})
    assert answer.status_code == 200, answer.text
    name: str = answer.json()["conversation"]["name"]
    return name


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    infos = [each for each in error["details"] if each["@type"].endswith("ErrorInfo")]
    return answer.status_code, error["status"], only(infos)["reason"]


# --- calls ------------------------------------------------------------------------------------------------------------


def test_a_call_without_the_token_is_refused_and_nothing_finds_one(http: httpx.Client) -> None:
    del http.headers["Authorization"]
    answer = http.get("/v1/serverInfo")
    assert refused(answer) == (401, "UNAUTHENTICATED", "UNAUTHENTICATED")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert refused(http.post("/v1/conversations", json={"workingDirectory": "/tmp"}))[0] == 401
    assert http.get("/v1/serverInfo", headers=[(b"Authorization", b"Bearer \xe4")]).status_code == 400


def test_what_was_done_over_http_is_what_grpc_shows(http: httpx.Client, server: ServerProcess, tmp_path: Path) -> None:
    name = created(http, tmp_path, title="Über HTTP", labels={"a_Key": "1"})
    patched = http.patch(
        f"/v1/{name}?updateMask=labels.a_Key,approvalPolicy", json={"approvalPolicy": "APPROVAL_POLICY_ASK_ALL"}
    )
    assert patched.status_code == 200, patched.text
    wrong = http.patch(f"/v1/{name}?updateMask=createTime", json={}).json()["error"]
    (violation,) = only([each["fieldViolations"] for each in wrong["details"] if "fieldViolations" in each])
    assert violation["field"] == "updateMask"
    assert wrong["message"].startswith("updateMask: 'createTime' ")
    assert violation["description"].startswith("'createTime' cannot be updated; these can: ")
    assert "approvalPolicy" in violation["description"]
    with server.client() as client:
        shown = client.conversation(name).get()
    assert (shown.title, dict(shown.labels), shown.approval_policy) == ("Über HTTP", {}, "ask_all")
    assert http.delete(f"/v1/{name}").json() == {}
    assert refused(http.get(f"/v1/{name}")) == (404, "NOT_FOUND", "NOT_FOUND")


def test_an_idempotency_key_is_the_request_id(http: httpx.Client, tmp_path: Path) -> None:
    key = str(uuid.uuid4())
    first, second = (created_with(http, tmp_path, key) for _ in range(2))
    assert first.json() == second.json()
    other = http.post("/v1/conversations", json={"workingDirectory": "/tmp"}, headers={"Idempotency-Key": key})
    assert refused(other) == (409, "ALREADY_EXISTS", "REQUEST_ID_REUSED")
    sent = {"text": "a", "requestId": str(uuid.uuid4())}
    twice = http.post(f"/v1/{first.json()['conversation']['name']}:send", json=sent, headers={"Idempotency-Key": key})
    assert refused(twice) == (400, "INVALID_ARGUMENT", "INVALID_ARGUMENT")


def created_with(http: httpx.Client, folder: Path, key: str) -> httpx.Response:
    body = {"workingDirectory": str(folder)}
    return http.post("/v1/conversations", json=body, headers={"Idempotency-Key": f'"{key}"'})


def test_the_audit_trail_and_the_log_name_the_real_caller(
    http: httpx.Client, server: ServerProcess, tmp_path: Path
) -> None:
    name = created(http, tmp_path)
    spoofed = {"X-Forwarded-For": "203.0.113.9", "Authorization": "Bearer wrong" + "x" * 40}
    assert refused(http.get(f"/v1/{name}", headers=spoofed))[0] == 401

    def entries(**filters: str) -> list[Any]:
        found = http.get("/v1/auditEntries", params={"pageSize": "1000", **filters}).json().get("entries", [])
        return [entry for entry in found if entry.get("method") in {"CreateConversation", "GetConversation"}]

    eventually(lambda: bool(entries(outcome="OUTCOME_REFUSED")), "the refusal is in the audit trail")
    assert {entry["peer"] for entry in entries()} == {"ipv4:127.0.0.1"}


def test_a_deadline_is_passed_on(http: httpx.Client, fake_provider: FakeProvider, tmp_path: Path) -> None:
    part = fake_provider.part(stalls)
    name = created(http, tmp_path)
    run = http.post(f"/v1/{name}:send", json={"text": part.key}).json()["run"]
    part.next_reached(stalls)
    late = http.get(f"/v1/{run}:wait", headers={"X-Server-Timeout": "0.2"})
    assert late.status_code == 504
    assert late.json()["error"]["status"] == "DEADLINE_EXCEEDED"
    assert http.get(f"/v1/{run}:wait?timeout=0.1s").json()["requestCycle"]["name"] == run
    assert refused(http.get("/v1/models", headers={"X-Server-Timeout": "soon"}))[0] == 400
    busy = http.post(f"/v1/{name}:send", json={"text": "Are you there?"})
    assert refused(busy) == (400, "FAILED_PRECONDITION", "AGENT_BUSY")
    assert http.post(f"/v1/{name}:cancel").json()["run"] == run


def test_images_and_exports_are_bytes(http: httpx.Client, fake_provider: FakeProvider, tmp_path: Path) -> None:
    part = fake_provider.part(says("A picture."))
    picture = png(8, 8)
    name = created(http, tmp_path)
    image = {"mediaType": "image/png", "data": base64.b64encode(picture).decode()}
    sent = http.post(f"/v1/{name}:send", json={"text": part.key, "images": [image]}, headers=SSE)
    message = json.loads(events_in(sent.text)[0].data)["message"]
    attachment = only([each["image"]["attachment"] for each in message["content"] if "image" in each])
    attachment = attachment if isinstance(attachment, str) else attachment["name"]
    answer = http.get(f"/v1/{attachment}:download")
    assert (answer.content, answer.headers["content-type"]) == (picture, "image/png")
    assert answer.headers["content-length"] == str(len(picture))
    assert answer.headers["content-disposition"].startswith("inline; filename=")
    export = http.get(f"/v1/{name}:export")
    assert export.headers["content-disposition"].endswith(".jsonl")
    assert json.loads(export.text.splitlines()[0])["kind"] == "conversation"
    assert refused(http.get(f"/v1/{name}/attachments/none:download"))[0] == 404


# --- streams ----------------------------------------------------------------------------------------------------------


def events_in(text: str) -> list[ServerSentEvent]:
    decoder = SSEDecoder()
    return [event for line in text.split("\n") if (event := decoder.decode(line)) is not None and event.data]


def test_a_message_is_sent_and_streamed_in_one(http: httpx.Client, fake_provider: FakeProvider, tmp_path: Path) -> None:
    nasty = ["Line\r\n\r\ndata: forged\n\nid: 99\n", "\u2028\u2029\u0085\x0b\x0c\x1c", "event: end\n\n", "\ufeff last"]
    part = fake_provider.part(says(*nasty))
    name = created(http, tmp_path)
    with connect_sse(http, "POST", f"/v1/{name}:send", json={"text": part.key}, headers=SSE) as source:
        found = list(source.iter_sse())
    assert [found[0].event, found[1].event, found[-1].event] == ["response", "snapshot", "end"]
    assert [only([event for event in found if event.event == "runStopped"]), "stateChanged"] == [
        found[-3],
        found[-2].event,
    ]
    ids = [
        int(event.id) for event in found if event.event not in {"response", "end", "caughtUp", "textDelta"} and event.id
    ]
    assert ids == sorted(ids)
    said = [json.loads(event.data)["messageAdded"] for event in found if event.event == "messageAdded"]
    assert said[-1]["content"] == [{"text": "".join(nasty)}]


def test_a_refused_message_is_an_error_of_http(http: httpx.Client, tmp_path: Path) -> None:
    name = created(http, tmp_path)
    assert refused(http.post(f"/v1/{name}:send", json={}, headers=SSE)) == (400, "INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert refused(http.get("/v1/conversations/none:subscribe"))[0] == 404
    assert refused(http.get(f"/v1/{name}:subscribe", headers={"Last-Event-ID": "x"}))[0] == 400
    assert refused(http.get(f"/v1/{name}:subscribe", headers={"Last-Event-ID": "999999"}))[0] == 400
    unread = {"Last-Event-ID": "zz", "Accept": "text/event-stream"}
    assert refused(http.post(f"/v1/{name}:send", json={"text": "not stored"}, headers=unread))[0] == 400
    assert "not stored" not in http.get(f"/v1/{name}/messages").text
    assert http.get("/v1/conversations:subscribe").headers["allow"] == "POST"
    assert (http.head("/openapi.json").status_code, http.post("/openapi.json").status_code) == (200, 405)


@pytest.mark.parametrize("path", ["/openapi.json", "/console/icon.svg"])
def test_a_range_is_ignored(http: httpx.Client, path: str) -> None:
    """RFC 9110 allows that for any range, and demands it for units that a server does not know."""
    whole = http.get(path)
    assert "accept-ranges" not in whole.headers
    for given in ("bytes=0-3", "bytes=5-1", "lines=1-2", "x"):
        answer = http.get(path, headers={"Range": given})
        assert (answer.status_code, answer.content) == (200, whole.content), given


def test_lines_of_json_end_with_a_word(http: httpx.Client, tmp_path: Path) -> None:
    name = created(http, tmp_path)
    answer = http.get(f"/v1/{name}:subscribe?untilSettled=true", headers={"Accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [("snapshot" in lines[0]), ("caughtUp" in lines[1]), lines[2]] == [True, True, {"end": {}}]


def test_the_list_begins_with_reset_each_time(http: httpx.Client, tmp_path: Path) -> None:
    name = created(http, tmp_path)
    for _ in range(2):
        with connect_sse(http, "GET", "/v1/conversations:watch", headers={"Last-Event-ID": "3"}) as source:
            found = []
            for event in source.iter_sse():
                found.append(event)
                if event.event == "caughtUp":
                    break
        assert found[0].event == "reset"
        assert name in {json.loads(event.data).get("conversationChanged", {}).get("name") for event in found}
        assert {event.id for event in found} == {""}


def durable(server: ServerProcess, name: str) -> list[tuple[int, str]]:
    """The durable events of a settled conversation, over gRPC: revisions and kinds."""
    with server.channel() as channel:
        stub = v1.ConversationServiceStub(channel)
        request = v1.SubscribeRequest(name=name, after_revision=0, until_settled=True)
        batches = list(stub.Subscribe(request, metadata=server.metadata, timeout=PATIENCE))
    kinds = v1.Event.DESCRIPTOR.fields_by_name
    return [
        (event.revision, kinds[event.WhichOneof("event") or ""].json_name)
        for batch in batches
        for event in batch.events
        if event.revision
    ]


def test_a_stream_that_is_cut_at_any_byte_resumes_without_gap_or_duplicate(
    fake_provider: FakeProvider, start_server: Servers, tmp_path: Path
) -> None:
    """Between the cuts the gateway and the server are killed."""
    chance = random.Random(7)
    server = start_server(tmp_path, "--http", "127.0.0.1:0", **provider(fake_provider.url))
    with client_of(server) as http:
        name = created(http, tmp_path)
        for _ in range(3):
            part = fake_provider.part(dribbles(*(f"word {n} " for n in range(20))))
            with connect_sse(http, "POST", f"/v1/{name}:send", json={"text": part.key}, headers=SSE) as source:
                assert list(source.iter_sse())[-1].event == "end"
    wanted = durable(server, name)
    seen: list[tuple[int, str]] = []
    for cut in range(CUTS):
        if cut % 10 == 5:
            for pid in gateways(server):
                os.kill(pid, signal.SIGKILL)
        if cut % 100 == min(50, CUTS // 2):
            server.kill()
            server = start_server(tmp_path, "--http", "127.0.0.1:0", **provider(fake_provider.url))
        last = seen[-1][0] if seen else 0
        if last == wanted[-1][0]:
            seen, last = [], 0
        new = read_and_cut(server, name, last, chance.randrange(200, 12_000))
        seen += new
        assert seen == wanted[: len(seen)]
    assert sum(1 for _ in wanted) > 20


def read_and_cut(server: ServerProcess, name: str, last: int, size: int) -> list[tuple[int, str]]:
    """Read so many bytes of a stream after a revision, and close the connection; the durable events in them."""
    text = b""
    with client_of(server) as http:
        headers = {**SSE, "Last-Event-ID": str(last)}
        with (
            suppress(httpx.TransportError),  # the gateway was killed while this connection was its own
            http.stream("GET", f"/v1/{name}:subscribe?untilSettled=true", headers=headers) as answer,
        ):
            assert answer.status_code in {200, 503}
            for piece in answer.iter_raw() if answer.status_code == 200 else ():
                text += piece
                if len(text) >= size:
                    break
    whole = text[:size].decode(errors="ignore").rpartition("\n\n")[0] + "\n\n"
    return [
        (int(data["revision"]), event.event)
        for event in events_in(whole)
        if "revision" in (data := json.loads(event.data))
    ]


# --- the process ------------------------------------------------------------------------------------------------------


def test_a_gateway_that_is_killed_is_started_again_and_callers_wait(http: httpx.Client, server: ServerProcess) -> None:
    before = only(gateways(server))
    os.kill(before, signal.SIGKILL)
    with client_of(server) as another:
        assert another.get("/v1/serverInfo").status_code == 200
    assert only(gateways(server)) != before


@pytest.mark.parametrize("killed", [False, True])
def test_no_gateway_outlives_its_server(start_server: Servers, tmp_path: Path, killed: bool) -> None:
    server = start_server(tmp_path, "--http", "127.0.0.1:0")
    with client_of(server) as http:
        assert http.get("/v1/serverInfo").status_code == 200
    pid = only(gateways(server))
    server.kill() if killed else server.stop()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the gateway ends")


def test_streams_hear_that_the_server_stops(start_server: Servers, tmp_path: Path) -> None:
    server = start_server(tmp_path, "--http", "127.0.0.1:0")
    with client_of(server) as http, connect_sse(http, "GET", "/v1/conversations:watch") as source:
        events = source.iter_sse()
        assert next(events).event == "reset"
        server.process.send_signal(signal.SIGTERM)
        last = list(events)[-1]
    assert server.stop() == 0
    assert (last.event, json.loads(last.data)["error"]["status"]) == ("error", "UNAVAILABLE")


def gateway_command(server: ServerProcess, *options: str) -> list[str]:
    program = (sys.executable, "-m", "server.gateway.command")
    return [*program, "--listen=127.0.0.1:0", f"--upstream={server.address}", *options]


@contextmanager
def alone(server: ServerProcess, folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway that stands alone before a server, and its URL."""
    command, environment, pipe = gateway_command(server, *options), clean_environment(folder), subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout
            yield process, process.stdout.readline().rpartition(" ")[2].strip()
        finally:
            process.kill()


def test_a_gateway_stands_alone_before_a_server(server: ServerProcess, tmp_path: Path) -> None:
    with alone(server, tmp_path) as (process, url):
        headers = {"Authorization": f"Bearer {server.token}"}
        assert httpx.get(f"{url}/v1/serverInfo", headers=headers, trust_env=False).status_code == 200
        with (
            httpx.Client(headers=headers, trust_env=False, timeout=PATIENCE) as http,
            connect_sse(http, "GET", f"{url}/v1/conversations:watch") as source,
        ):
            events = source.iter_sse()
            assert next(events).event == "reset"
            process.terminate()
            last = list(events)[-1]
        assert (last.event, json.loads(last.data)["error"]["status"]) == ("error", "UNAVAILABLE")
        assert process.wait(PATIENCE) == 0


def test_a_gateway_that_stands_alone_says_that_it_passes_on_no_certificate(
    server: ServerProcess, tmp_path: Path
) -> None:
    make_authority(tmp_path, "ours")
    make_certificate(tmp_path, "shown", "IP:127.0.0.1", "ours")
    make_certificate(tmp_path, "client", "DNS:ada.example.org", "ours")
    files = (f"--tls-certificate={tmp_path}/shown.pem", f"--tls-key={tmp_path}/shown.key")
    with alone(server, tmp_path, *files, f"--client-ca={tmp_path}/ours.pem") as (process, url):
        context = ssl.create_default_context(cafile=tmp_path / "ours.pem")
        context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        with httpx.Client(verify=context, trust_env=False, timeout=PATIENCE) as http:
            assert refused(http.get(f"{url}/v1/serverInfo"))[:2] == (401, "UNAUTHENTICATED")
            headers = {"Authorization": f"Bearer {server.token}"}
            assert http.get(f"{url}/v1/serverInfo", headers=headers).status_code == 200
        process.terminate()
        assert NOT_PASSED_ON in process.communicate(timeout=PATIENCE)[1]


def test_bedrock_says_that_an_address_is_the_gateways(server: ServerProcess) -> None:
    address = urlsplit(http_url(server)).netloc
    with (
        Client(address, token=server.token, reconnect_for=0) as client,
        pytest.raises(Unavailable, match="this is an HTTP port"),
    ):
        client.server_info()


def test_a_gateway_that_cannot_serve_says_why_before_it_says_that_it_is_ready(
    server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("no key")
    files = (f"--tls-certificate={tmp_path}/key", f"--tls-key={tmp_path}/key")
    taken = urlsplit(http_url(server)).netloc
    for options, why in (
        (files, f"{tmp_path}/key and {tmp_path}/key are not a PEM certificate and its private key\n"),
        ((f"--upstream-ca={tmp_path}/key",), f"{tmp_path}/key contains no certificates\n"),
        ((f"--listen={taken}",), f"cannot listen on {taken}: address already in use by process {server.pid} ("),
    ):
        command, environment = gateway_command(server, *options), clean_environment(tmp_path)
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr.startswith(f"error: {why}")


def test_the_gateway_has_no_key_of_a_provider(server: ServerProcess) -> None:
    environment = Path(f"/proc/{only(gateways(server))}/environ")
    try:
        shown = environment.read_bytes()
    except PermissionError:  # it hides its memory
        return
    assert b"ANTHROPIC" not in shown
    assert b"\0BEDROCK_" not in shown


# --- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "attacker.example"}, 403),
        ({"Host": "127.0.0.1.attacker.example"}, 403),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:7422"}, 200),
        ({"Origin": "https://attacker.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Host": ""}, 403),
    ],
)
def test_pages_of_others_are_refused(http: httpx.Client, headers: dict[str, str], status: int) -> None:
    answer = http.get("/v1/serverInfo", headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    assert http.options("/v1/models", headers={"Origin": "https://attacker.example"}).status_code == 403


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/conversations/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 400),
        ("/v1/conversations/a%00b", 400),
        ("/v1/conversations/a%0d%0ab", 400),
        ("/v1/conversations/../models", 404),
        ("/v1/conversations/%ff", 400),
        ("/v1/models/%2e%2e", 404),
        ("/" + "a" * 40_000, 431),
        ("/" + "a" * 200_000, 431),
        ("/v1/conversations/x:frobnicate", 404),
    ],
)
def test_paths_of_attackers_lead_nowhere(server: ServerProcess, path: str, status: int) -> None:
    answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == status


@pytest.mark.parametrize(
    "head",
    [
        "POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: attacker.example\r\n",
        "GET /v1/models HTTP/1.1\r\n",
        "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: a\nb\r\n",
        "GET /v1/models HTTP/1.1\r\nHost : localhost\r\n",
        *(
            f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{name}: 1\r\n{name}: 1\r\n"
            for name in ("Authorization", "Idempotency-Key", "X-Server-Timeout", "traceparent")
        ),
    ],
)
def test_heads_that_could_smuggle_a_request_are_refused(server: ServerProcess, head: str) -> None:
    answer = raw(server, head)
    assert answer.startswith("HTTP/1.1 400 ")
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["status"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("size", [40_000, 200_000])
def test_a_head_that_is_too_large_is_refused_as_such(server: ServerProcess, size: int) -> None:
    answer = raw(server, f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: {'a' * size}\r\n")
    assert answer.startswith("HTTP/1.1 431 ")
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == 431


def raw(server: ServerProcess, head: str, body: str = "") -> str:
    """What is answered to a head and the beginning of a body, with `Connection: close`."""
    where = urlsplit(http_url(server))
    with closing(socket.create_connection((where.hostname, where.port), PATIENCE)) as connection:
        with suppress(OSError):  # it was closed before the head was read
            connection.sendall(head.encode() + b"Connection: close\r\n\r\n" + body.encode())
        text = b""
        with suppress(ConnectionResetError):
            while piece := connection.recv(65_536):
                text += piece
    return text.decode("latin-1")


def test_bodies_of_strangers_and_bombs_are_cut_short(http: httpx.Client, server: ServerProcess) -> None:
    large = b'{"workingDirectory": "' + b"a" * 100_000 + b'"}'
    kind = {"Content-Type": "application/json"}
    assert http.post("/v1/conversations", content=large, headers=kind).status_code == 400
    head = "POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
    assert raw(server, f"{head}Authorization: Bearer {server.token}\r\n").startswith("HTTP/1.1 413 ")
    endless = "POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n"
    begun = raw(server, f"{endless}Content-Length: 40000000\r\n", "x" * 100_000)
    assert begun.startswith("HTTP/1.1 401 ")  # after a part of it
    assert raw(server, f"{endless}Content-Length: 9\r\n", "x").startswith("HTTP/1.1 401 ")  # after a second of it
    del http.headers["Authorization"]
    assert http.post("/v1/conversations", content=large, headers=kind).status_code == 401
    assert http.post("/v1/conversations", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415


# --- the description --------------------------------------------------------------------------------------------------


def test_every_answer_to_random_calls_is_as_openapi_says(
    server: ServerProcess, http: httpx.Client, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    """No call, however made up, is answered with 5xx, nor with what the description has not.

    Half of the names are those of what is there. Streams end by their deadline.
    """
    part = fake_provider.part(calls(("bash", {"command": "echo hi"})), says("Hello."))
    name = created(http, tmp_path, approvalPolicy="APPROVAL_POLICY_ASK_ALL")
    run = http.post(f"/v1/{name}:send", json={"text": part.key}).json()["run"]
    events_in(http.get(f"/v1/{name}:subscribe?untilSettled=true").text)
    message = http.get(f"/v1/{name}/messages").json()["messages"][-1]["name"]
    approval = only(http.get(f"/v1/{name}/approvals").json()["approvals"])["name"].partition("/approvals/")[2]
    known = {"conversation": name, "request_cycle": run, "message": message, "model": "demo", "tool": "bash"}
    lines = [f'[dictionaries.{key}]\nvalues = ["{value.rpartition("/")[2]}"]' for key, value in known.items()]
    lines += [f'[dictionaries.approval]\nvalues = ["{approval}"]', "[parameters]"]
    lines += [f'"path.{key}" = {{dictionary = "{key}", probability = 0.5}}' for key in (*known, "approval")]
    lines += ["[[operations]]", 'include-path-regex = ":(subscribe|watch)$"', 'headers = {"X-Server-Timeout" = "0.5"}']
    lines += ["generation = {max-examples = 5}"]
    lines += ["[[operations]]", 'include-path-regex = ":wait$"', 'parameters = {"query.timeout" = "0.1s"}']
    config = tmp_path / "schemathesis.toml"
    config.write_text("\n".join(lines))
    described = http.get("/openapi.json").json()["paths"].values()
    operations = sum(verb != "parameters" for path in described for verb in path)
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config),
            "run", f"{http_url(server)}/openapi.json",
            "--url", http_url(server), "--header", f"Authorization: Bearer {server.token}",
            "--max-examples", str(CALLS // operations * 5 // 4), "--seed", "1", "--request-timeout", "30",
            "--phases", "fuzzing", "--mode", "all", "--generation-deterministic",
            "--checks", CHECKS,
        ],
        cwd=tmp_path, env=clean_environment(tmp_path), capture_output=True, text=True, timeout=CALLS / 2 + 5 * PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr
    told = re.search(r"Tested: (\d+).*?(\d+) generated", done.stdout, re.DOTALL)
    assert told is not None
    assert int(told[1]) == operations
    assert int(told[2]) >= CALLS
