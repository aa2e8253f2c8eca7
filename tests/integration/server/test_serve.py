"""`bedrock serve` as a process: how it starts, says that it is ready, refuses to start, and stops."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from bedrock import v1
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actors.conversation.supervisor import Supervisor
from actors.ports import StoreUnavailableError
from server.app.adapter_choice import CannotStartError
from server.app.serving import run
from server.settings.config import load
from server.settings.setting_values import ConfigError
from tests.integration.server.grpc_harness import Refusal, refused
from tests.support.fork_server import Popen

ROOT = Path(__file__).parents[3]
SECONDS = 30.0
SLOW = "slow"
"""What the demo model answers for a while to."""


@dataclass
class Server:
    """A server process and a channel to it."""

    process: subprocess.Popen[str]
    data: Path
    ready: str
    channels: list[grpc.Channel] = field(default_factory=list)

    @property
    def socket(self) -> str:
        return (self.data / "address").read_text().strip()

    @property
    def address(self) -> str:
        """Where it listens besides the socket; the socket if nowhere."""
        return self.ready.partition(" ready on ")[2].partition(" (data ")[0].rpartition(" and ")[2]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {(self.data / 'token').read_text().strip()}"),)

    def channel(self) -> grpc.Channel:
        made = grpc.insecure_channel(self.address)
        self.channels.append(made)
        return made

    def conversation(self) -> tuple[v1.ConversationServiceStub, str]:
        stub = v1.ConversationServiceStub(self.channel())
        request = v1.CreateConversationRequest(
            conversation=v1.Conversation(working_directory="/tmp", mode=v1.MODE_UNRESTRICTED)
        )
        return stub, stub.CreateConversation(request, metadata=self.metadata, timeout=SECONDS).conversation.name

    def end(self, number: int = signal.SIGTERM) -> tuple[int, list[dict[str, Any]]]:
        """Send a signal and wait; returns the exit code and what was logged."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, [json.loads(line) for line in errors.splitlines()]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "server", *arguments]


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "clients")])
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": paths, **more}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers over data directories in the test's folder; kills what is left at the end."""
    servers: list[Server] = []

    def make(*arguments: str, data: str = "data", **env: str) -> Server:
        process = Popen(
            command("--data-dir", str(tmp_path / data), *(arguments or ("--listen", "127.0.0.1:0"))),
            cwd=tmp_path,
            env=environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        server = Server(process, tmp_path / data, process.stdout.readline())
        servers.append(server)
        return server

    yield make
    for server in servers:
        for channel in server.channels:
            channel.close()
        server.process.kill()
        server.process.wait(SECONDS)
        for pipe in (server.process.stdout, server.process.stderr):
            assert pipe is not None
            pipe.close()


def refuses_to_start(tmp_path: Path, *arguments: str, **env: str) -> tuple[int, str]:
    """Run a server that cannot start; returns its exit code and its one line."""
    pipe = subprocess.PIPE
    with Popen(
        command(*arguments), cwd=tmp_path, env=environment(**env), stdout=pipe, stderr=pipe, text=True
    ) as process:
        output, errors = process.communicate(timeout=SECONDS)
    assert output == ""
    (line,) = errors.splitlines()
    return process.returncode, line


def test_a_server_says_where_it_is_and_writes_it_down(start: Callable[..., Server]) -> None:
    server = start()
    assert server.ready == f"bedrock ready on {server.socket} and {server.address} (data {server.data})\n"
    assert int(server.address.rpartition(":")[2]) > 0
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    for name in ("token", "address", "bedrock.db"):
        assert stat.S_IMODE((server.data / name).stat().st_mode) == 0o600
    stub: Any = health_pb2_grpc.HealthStub(server.channel())
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS).status == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_server_well(start: Callable[..., Server], number: int) -> None:
    server = start()
    code, logged = server.end(number)
    assert code == 0
    told = [line["message"] for line in logged if line["logger"] == "server.app.serving"]
    assert told[0].startswith("sandbox: tier ")
    assert told[-2:] == ["stopping", "stopped"]
    assert not (server.data / "address").exists()
    assert not (server.data / "bedrock.sock").exists()
    assert not list(server.data.glob("*-wal"))


def test_a_start_says_how_many_conversations_were_recovered(start: Callable[..., Server]) -> None:
    killed = start()
    stream_under_way(killed)
    killed.process.kill()
    killed.process.wait(SECONDS)
    assert Path(killed.socket.removeprefix("unix:")).is_socket()
    again = start()
    assert again.socket == killed.socket
    again.conversation()
    _, logged = again.end()
    assert "recovered 1 conversation after a restart" in [line["message"] for line in logged]


def stream_under_way(server: Server, text: str = SLOW) -> Any:
    """A stream of a conversation whose run is in the middle of an answer."""
    stub, name = server.conversation()
    stream = stub.Subscribe(v1.SubscribeRequest(name=name), metadata=server.metadata, timeout=SECONDS)
    next(stream)
    stub.SendMessage(v1.SendMessageRequest(name=name, text=text), metadata=server.metadata, timeout=SECONDS)
    for response in stream:
        if any(event.HasField("text_delta") for event in response.events):
            return stream
    raise AssertionError("no answer began")


def rest_of(stream: Any) -> tuple[list[v1.Event], Refusal]:
    """What a stream still sends, and how it is ended."""
    events: list[v1.Event] = []
    try:
        for response in stream:
            events.extend(response.events)
    except grpc.RpcError as error:
        return events, Refusal(error)
    raise AssertionError("the stream ended with OK")


def test_a_run_may_finish_while_the_server_drains(start: Callable[..., Server]) -> None:
    server = start("--listen", "127.0.0.1:0", "--drain-seconds", "25")
    stream = stream_under_way(server, "hello")
    for _ in range(3):  # a terminal that closes may say it more than once; that is no reason to hurry
        server.process.send_signal(signal.SIGHUP)
    events, refusal = rest_of(stream)
    assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "SHUTTING_DOWN")
    assert [event.run_stopped.reason for event in events if event.HasField("run_stopped")] == [v1.STOP_REASON_COMPLETED]
    assert server.process.wait(SECONDS) == 0


def test_new_work_is_refused_while_the_server_drains(start: Callable[..., Server]) -> None:
    server = start("--listen", "127.0.0.1:0", "--drain-seconds", "25")
    stub, other = server.conversation()
    stream = stream_under_way(server)
    health: Any = health_pb2_grpc.HealthStub(server.channel())
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    metadata = server.metadata
    server.process.send_signal(signal.SIGTERM)
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    message = v1.SendMessageRequest(name=other, text="hello")
    # Load balancers are told first, so a message may still be accepted just after that.
    refusal = refused(lambda: [stub.SendMessage(message, metadata=metadata, timeout=SECONDS) for _ in range(100)])
    assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "SHUTTING_DOWN")
    watch.cancel()
    stream.cancel()


@pytest.mark.parametrize("signals", [1, 2], ids=["no time to drain", "a second signal"])
def test_a_run_that_has_no_time_left_is_interrupted(start: Callable[..., Server], signals: int) -> None:
    server = start("--listen", "127.0.0.1:0", "--drain-seconds", "0" if signals == 1 else "600")
    stream = stream_under_way(server)
    health: Any = health_pb2_grpc.HealthStub(server.channel())
    watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    next(watch)
    server.process.send_signal(signal.SIGTERM)
    next(watch)
    if signals == 2:
        server.process.send_signal(signal.SIGTERM)
    events, refusal = rest_of(stream)
    assert refusal.reason == "SHUTTING_DOWN"
    (stopped,) = [event.run_stopped for event in events if event.HasField("run_stopped")]
    assert (stopped.reason, stopped.detail) == (v1.STOP_REASON_INTERRUPTED, "restart")
    assert server.process.wait(SECONDS) == 0
    watch.cancel()


@pytest.mark.parametrize(("option", "service"), [("--metrics-listen", "metrics"), ("--http", "HTTP")])
def test_a_port_that_is_taken_names_who_has_it_and_what_helps(option: str, service: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"127.0.0.1:{taken.getsockname()[1]}"
        data = ("--data-dir", str(tmp_path / "data"), "--listen", "none")
        code, line = refuses_to_start(tmp_path, *data, option, port)
    assert code == 1
    assert f"cannot listen on {port} for {service}: address already in use by process {os.getpid()} (" in line
    assert line.endswith(f"; choose another port with {option}, such as {option} 127.0.0.1:0 for any free one")


def test_a_second_server_on_the_same_data_says_one_line(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start()
    code, line = refuses_to_start(tmp_path, "--data-dir", str(server.data), "--listen", "127.0.0.1:0")
    assert code == 1
    assert line == (
        f"error: the data directory {server.data} is in use by process {server.process.pid}; stop it, or choose "
        "another directory with --data-dir"
    )
    server.conversation()


def test_a_second_server_on_the_same_port_says_one_line(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start()
    code, line = refuses_to_start(tmp_path, "--data-dir", str(tmp_path / "other"), "--listen", server.address)
    assert code == 1
    holder = f"process {server.process.pid} ({Path(f'/proc/{server.process.pid}/comm').read_text().strip()})"
    assert line == (
        f"error: cannot listen on {server.address}: address already in use by {holder}; choose another port with "
        "--listen, such as --listen 127.0.0.1:0 for any free one, or use --listen none for clients on this machine only"
    )
    assert not (tmp_path / "other" / "bedrock.sock").exists()


def test_this_machine_gets_in_by_a_socket_that_only_its_owner_reaches(start: Callable[..., Server]) -> None:
    server = start("--listen", "none")
    assert server.ready == f"bedrock ready on {server.socket} (data {server.data})\n"
    path = Path(server.socket.removeprefix("unix:"))
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    server.conversation()
    stub = v1.CatalogServiceStub(server.channel())
    with pytest.raises(grpc.RpcError) as failure:
        stub.ListModels(v1.ListModelsRequest(), timeout=SECONDS)
    assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_second_server_is_kept_out_of_the_data_directory_even_if_the_lock_file_was_removed(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    server = start()
    (server.data / "lock").unlink()
    code, line = refuses_to_start(tmp_path, "--data-dir", str(server.data), "--listen", "127.0.0.1:0")
    assert code == 1
    assert line.startswith(f"error: the data directory {server.data} is in use by another process; stop it")
    server.conversation()


def test_a_data_directory_that_others_could_write_to_is_not_used(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    (data / "token").write_text("x" * 43)
    (data / "token").chmod(0o600)
    code, line = refuses_to_start(tmp_path, "--data-dir", str(data), "--listen", "127.0.0.1:0")
    assert code == 1
    assert line == (
        f"error: others may have put files into {data} (mode 0777): check its contents, remove what is not yours, "
        f"then chmod 700 {data}"
    )
    assert [path.name for path in data.iterdir()] == ["token"]


@pytest.mark.parametrize(("name", "kind"), [("token", "link"), ("bedrock.db", "link"), ("tokens.json", "writable")])
def test_what_was_planted_there_before_it_was_closed_to_others_is_not_used(
    tmp_path: Path, name: str, kind: str
) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir(mode=0o700)
    elsewhere.write_text("x" * 43)
    elsewhere.chmod(0o600)
    if kind == "link":
        (data / name).symlink_to(elsewhere)
    else:
        (data / name).write_text("x" * 43)
        (data / name).chmod(0o666)
    code, line = refuses_to_start(tmp_path, "--data-dir", str(data), "--listen", "127.0.0.1:0")
    said = "is a symbolic link, which is not followed" if kind == "link" else "others can write to"
    assert code == 1
    assert said in line
    assert str(data / name) in line
    assert elsewhere.read_text() == "x" * 43
    assert [path.name for path in data.iterdir()] == [name]


def test_a_second_server_does_not_take_a_socket_over(start: Callable[..., Server], tmp_path: Path) -> None:
    path = tmp_path / "b.sock"
    server = start("--listen", f"unix:{path}")
    assert server.address == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.conversation()
    code, line = refuses_to_start(tmp_path, "--data-dir", str(tmp_path / "other"), "--listen", f"unix:{path}")
    assert code == 1
    assert line == f"error: cannot listen on unix:{path}: another server is listening there"


def test_what_is_no_socket_is_not_listened_on(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "bedrock.sock").touch()
    code, line = refuses_to_start(tmp_path, "--data-dir", str(tmp_path / "data"), "--listen", "none")
    assert code == 1
    assert line.endswith("the file there is not a socket; remove it")


def test_a_socket_that_a_crash_left_behind_is_taken(start: Callable[..., Server], tmp_path: Path) -> None:
    path = tmp_path / "b.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    start("--listen", f"unix:{path}").conversation()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    made, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)],
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )  # fmt: skip
    return made, key


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    return self_signed(tmp_path)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_with_a_certificate_only_tls_gets_in(start: Callable[..., Server], certificate: tuple[Path, Path]) -> None:
    made, key = certificate
    server = start("--listen", "127.0.0.1:0", "--tls-certificate", str(made), "--tls-key", str(key))
    assert server.address.startswith("https://127.0.0.1:")
    target = server.address.removeprefix("https://")
    request = v1.ListModelsRequest()
    trusted = grpc.ssl_channel_credentials(made.read_bytes())
    for credentials, works in ((trusted, True), (grpc.ssl_channel_credentials(), False), (None, False)):
        with grpc.secure_channel(target, credentials) if credentials else grpc.insecure_channel(target) as channel:
            stub = v1.CatalogServiceStub(channel)
            if works:
                assert stub.ListModels(request, metadata=server.metadata, timeout=SECONDS).models
            else:
                with pytest.raises(grpc.RpcError) as failure:
                    stub.ListModels(request, metadata=server.metadata, timeout=SECONDS)
                assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    host, _, port = target.rpartition(":")
    for newest, works in ((ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_1, False)):
        context = ssl.create_default_context(cafile=str(made))
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # OpenSSL itself has given up what is older than 1.2
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), SECONDS) as plain,
            contextlib.nullcontext() if works else pytest.raises((ssl.SSLError, ConnectionError)),
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            assert encrypted.version() == "TLSv1.2"


def presented(address: str) -> bytes:
    """The certificate that a new connection gets."""
    host, _, port = address.removeprefix("https://").rpartition(":")
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port)), timeout=SECONDS))


def test_a_renewed_certificate_needs_no_restart(
    start: Callable[..., Server], certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    made, key = certificate
    server = start("--listen", "127.0.0.1:0", "--tls-certificate", str(made), "--tls-key", str(key))
    first = presented(server.address)
    (tmp_path / "renewed").mkdir()
    renewed, new_key = self_signed(tmp_path / "renewed")
    with grpc.secure_channel(
        server.address.removeprefix("https://"), grpc.ssl_channel_credentials(made.read_bytes())
    ) as channel:
        stub = v1.CatalogServiceStub(channel)
        stub.ListModels(v1.ListModelsRequest(), metadata=server.metadata, timeout=SECONDS)
        new_key.replace(key)  # half of a renewal: this key is not that of the certificate
        assert presented(server.address) == first
        renewed.replace(made)
        assert presented(server.address) != first
        stub.ListModels(v1.ListModelsRequest(), metadata=server.metadata, timeout=SECONDS)  # goes on as it was


def test_a_certificate_that_is_none_is_said_in_one_line(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    made, key = certificate
    key.write_text("no key")
    options = ("--data-dir", str(tmp_path / "data"), "--tls-certificate", str(made), "--tls-key", str(key))
    code, line = refuses_to_start(tmp_path, "--listen", "127.0.0.1:0", *options)
    assert code == 1
    assert "certificate" in line


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--listen", "0.0.0.0:0"), 2, "refusing to listen on 0.0.0.0:0 without TLS"),
        (("--config", "none.toml"), 2, "none.toml cannot be read"),
        (("--default-model", "nobody-serves-this"), 2, "--default-model: no provider serves nobody-serves-this"),
        (("--listen", "127.0.0.1:0", "--tls-certificate", "/no.pem", "--tls-key", "/no.key"), 1, "/no.key cannot be"),
    ],
)
def test_what_cannot_work_says_so_in_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    exit_code, line = refuses_to_start(tmp_path, "--data-dir", str(tmp_path / "data"), *arguments)
    assert exit_code == code
    assert said in line


def test_a_store_that_takes_nothing_at_start_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: Supervisor) -> None:
        raise StoreUnavailableError("nothing was written: database or disk is full")

    monkeypatch.setattr(Supervisor, "start", start)
    config = load({"data_dir": str(tmp_path / "data"), "listen": "127.0.0.1:0"}, environ={"HOME": str(tmp_path)})
    with pytest.raises(CannotStartError) as told:
        run(config, pytest.fail)
    assert str(told.value) == (
        f"the conversations in {tmp_path / 'data'} cannot be recovered: nothing was written: database or disk is full"
    )


def test_a_database_that_is_removed_under_the_server_is_reported_and_no_new_one_is_created(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    server = start()
    stub, _ = server.conversation()
    (server.data / "bedrock.db").unlink()
    request = v1.CreateConversationRequest(conversation=v1.Conversation(working_directory="/tmp"))
    refusal = refused(lambda: stub.CreateConversation(request, metadata=server.metadata, timeout=SECONDS))
    assert refusal.reason == "STORE_UNAVAILABLE"
    code, logged = server.end()
    assert code == 0
    (critical,) = [line["message"] for line in logged if line["level"] == "critical"]
    assert f"{server.data / 'bedrock.db'} was removed or replaced" in critical
    code, line = refuses_to_start(tmp_path, "--data-dir", str(server.data), "--listen", "127.0.0.1:0")
    assert code == 1
    assert "bedrock.db is now missing" in line


def test_a_wrong_provider_is_named_without_its_key(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[providers.local]\nprotocol = "telepathy"\nbase_url = "http://x"\napi_key = "sk-secret"\n')
    code, line = refuses_to_start(tmp_path, "--data-dir", str(tmp_path / "data"), "--config", str(file))
    assert code == 2
    assert f"{file}: providers.local.protocol: must be one of" in line
    assert "sk-secret" not in line


NEEDED = "required; must be one of anthropic, openai-chat, openai-responses"


@pytest.mark.parametrize(
    ("table", "env", "said"),
    [
        ("[providers.x]", {}, "{file}: providers.x.protocol: " + NEEDED),
        ('[providers."x.y"]', {}, "{file}: providers.x.y.protocol: " + NEEDED),
        ('[models."gpt"]\nwindow = 0', {}, '{file}: models."gpt".window: must be a whole number of tokens, at least 1'),
        ('[models."gpt"]\nprice = {input = "x"}', {}, '{file}: models."gpt".price.input: must be a number'),
        (
            '[models."gpt"]\nwindows = 1',
            {},
            "{file}: models.\"gpt\".windows: unknown; did you mean 'window'? Known keys: window, output, input, name, "
            "images, reasoning_efforts, temperature, price",
        ),
        ("[models]\ngpt = 1", {}, '{file}: models."gpt": must be a table'),
        ('default_model = "nope"', {}, "{file}: default_model: no provider serves nope"),
        ("", {"BEDROCK_SMALL_MODEL": "nope"}, "BEDROCK_SMALL_MODEL: no provider serves nope"),
        ("", {"OPENAI_BASE_URL": "localhost"}, "OPENAI_BASE_URL: must be an http or https URL with a host"),
    ],
)
def test_what_is_wrong_with_models_is_said_with_the_place_where_it_was_set(
    tmp_path: Path, table: str, env: dict[str, str], said: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(table)
    environ = {"HOME": str(tmp_path), **env}
    config = load({"data_dir": str(tmp_path / "data"), "listen": "127.0.0.1:0"}, environ=environ, file=file)
    with pytest.raises(ConfigError) as told:
        run(config, pytest.fail)
    assert str(told.value) == said.format(file=file)
    assert not (tmp_path / "data").exists()


def test_the_command_is_offered_to_the_clients_cli() -> None:
    from importlib.metadata import entry_points

    (found,) = [entry for entry in entry_points(group="bedrock.commands") if entry.name == "serve"]
    assert found.value == "server.cli:serve"
