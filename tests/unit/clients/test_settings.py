"""Where the address and the token come from, and servers that the client starts itself."""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bedrock import Client, ConversationInfo, v1
from bedrock._shared.settings import no_listener_error, proxy_of, resolve
from bedrock.cli import exit_codes as exits
from bedrock.cli.commands.chat import ENDS, _farewell
from bedrock.cli.spawned_server import SpawnedServer, server_answers, spawn_if_missing
from bedrock.errors import Misconfigured, ServerNotRunning, ServerUnreachable, Unauthenticated
from bedrock.local_server import data_directory

from tests.support.fake_server import FakeBedrock

ELSEWHERE = ("example.com:7421", "https://example.com", "http://example.com", "10.0.0.1:1")
LOOPBACK = ("127.0.0.1:7421", "localhost:7421", "http://127.0.0.1", "[::1]", "ipv4:127.0.0.1:7421")


@pytest.fixture
def state() -> Iterator[Path]:
    """Short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="bedrock-") as folder:
        yield Path(folder)


@pytest.fixture
def environ(state: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(state)}


@pytest.fixture
def data(state: Path) -> Iterator[Path]:
    """What a running server has written down."""
    directory = state / "bedrock"
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(directory / "s"))
        (directory / "token").write_text("from-file\n")
        (directory / "address").write_text(f"unix:{directory}/s\n")
        yield directory


def test_without_anything_there_is_no_server(environ: dict[str, str]) -> None:
    with pytest.raises(ServerNotRunning, match="no Bedrock server is running on this machine") as told:
        resolve(environ=environ)
    assert (told.value.code, "bedrock serve" in told.value.hint) == ("UNAVAILABLE", True)


def test_a_local_server_is_found_by_its_files(environ: dict[str, str], data: Path) -> None:
    settings = resolve(environ=environ)
    assert (settings.target, settings.token, settings.tls) == (f"unix:{data}/s", "from-file", False)


@pytest.mark.parametrize("missing", ["address", "s"])
def test_a_server_that_has_stopped_is_none(environ: dict[str, str], data: Path, missing: str) -> None:
    (data / missing).unlink()
    with pytest.raises(ServerNotRunning):
        resolve(environ=environ)


def test_the_environment_goes_before_the_files(environ: dict[str, str], data: Path) -> None:
    settings = resolve(environ=environ | {"BEDROCK_ADDRESS": "localhost:1", "BEDROCK_TOKEN": "from-env"})
    assert (settings.target, settings.token) == ("localhost:1", "from-env")


def test_arguments_go_before_the_environment(environ: dict[str, str], data: Path) -> None:
    settings = resolve("[::1]:2", "given", environ=environ | {"BEDROCK_ADDRESS": "x:1", "BEDROCK_TOKEN": "from-env"})
    assert (settings.target, settings.token) == ("[::1]:2", "given")


def test_an_empty_token_is_none_at_all(environ: dict[str, str], data: Path) -> None:
    assert resolve(token="", environ=environ).token == ""


def test_the_data_directory_can_be_chosen() -> None:
    assert data_directory({"BEDROCK_DATA_DIR": "/x", "XDG_STATE_HOME": "/y"}) == Path("/x")
    assert data_directory({"XDG_STATE_HOME": "/y"}) == Path("/y/bedrock")
    assert data_directory({"HOME": "/home/ada"}) == Path("/home/ada/.local/state/bedrock")
    assert data_directory({}) == Path.home() / ".local/state/bedrock"
    assert data_directory({"BEDROCK_DATA_DIR": "~/x"}) == Path.home() / "x"
    assert data_directory({"XDG_STATE_HOME": "state", "HOME": "/home/ada"}) == Path("/home/ada/.local/state/bedrock")


@pytest.mark.parametrize("path", ["x", "./x", "../x", "~no-such-user/x"])
def test_a_relative_data_directory_is_refused(path: str) -> None:
    environ = {"BEDROCK_DATA_DIR": path}
    text = f"BEDROCK_DATA_DIR: must be an absolute path, or begin with ~ (it is {path!r})"
    with pytest.raises(ValueError, match=re.escape(text)):
        data_directory(environ)
    for address in (None, "127.0.0.1:1"):
        with pytest.raises(Misconfigured) as refused:
            resolve(address, environ=environ)
        assert refused.value.message == text
    with pytest.raises(Misconfigured):
        no_listener_error("unix:/run/s", environ)


@pytest.mark.parametrize("address", [*LOOPBACK, *ELSEWHERE, "unix:/nowhere/s", "unix-abstract:s"])
def test_the_token_of_this_machine_goes_to_no_address_where_another_user_could_listen(
    environ: dict[str, str], data: Path, address: str
) -> None:
    assert resolve(address, environ=environ).token == ""
    assert resolve(environ=environ | {"BEDROCK_ADDRESS": address}).token == ""


@pytest.mark.parametrize("form", ["unix:{}/s", "unix://{}/s"])
def test_it_goes_through_a_socket_where_only_this_user_can_listen(
    environ: dict[str, str], data: Path, form: str
) -> None:
    address = form.format(data)
    assert resolve(address, environ=environ).token == "from-file"
    data.chmod(0o711)
    assert resolve(address, "given", environ=environ).token == "given"
    with pytest.raises(Misconfigured, match="chmod 700"):
        resolve(environ=environ)


@pytest.mark.parametrize("address", ["127.0.0.1:5000", "https://127.0.0.1:5000", "example.com:1", "unix-abstract:s"])
def test_a_server_of_this_machine_is_never_looked_for_over_tcp(
    environ: dict[str, str], data: Path, address: str
) -> None:
    (data / "address").write_text(address)
    with pytest.raises(Misconfigured, match="not a Unix socket"):
        resolve(environ=environ)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o770, 0o701, 0o1777])
def test_nothing_is_believed_where_others_may_enter(environ: dict[str, str], data: Path, mode: int) -> None:
    data.chmod(mode)
    with pytest.raises(Misconfigured, match=r"others (can access|may have put files into) .*chmod 700"):
        resolve(environ=environ)


def test_nothing_is_believed_that_belongs_to_another_user(
    environ: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(Misconfigured, match=r"belongs to uid .*, but this process runs as uid 12345"):
        resolve(environ=environ)
    assert resolve(f"unix:{data}/s", environ=environ).token == ""


def test_where_files_have_no_owners_a_server_needs_an_address(
    environ: dict[str, str], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where the client works with servers elsewhere."""
    monkeypatch.delattr(os, "geteuid")
    assert resolve("https://example.com", "given", environ=environ).token == "given"
    assert resolve("https://example.com", environ=environ).token == ""
    with pytest.raises(Misconfigured, match="give the address of a server"):
        resolve(environ=environ)


def test_a_socket_elsewhere_is_looked_at_as_well(environ: dict[str, str], data: Path, state: Path) -> None:
    (state / "open").mkdir()
    (state / "open").chmod(0o777)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(state / "open" / "s"))
        (data / "address").write_text(f"unix:{state}/open/s")
        with pytest.raises(Misconfigured, match="others can access") as told:
            resolve(environ=environ)
        assert "chmod" not in str(told.value)  # it may be a directory of the system


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_socket_is_not_connected_to(environ: dict[str, str], data: Path, kind: str) -> None:
    (data / "s").rename(data / "real")
    if kind == "file":
        (data / "s").touch()
    else:
        (data / "s").symlink_to(data / "real")
    with pytest.raises(Misconfigured, match="is not a socket of this user"):
        resolve(environ=environ)


def test_a_token_is_not_sent_in_the_clear_to_other_machines(environ: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match=r"https://example\.com:7421"):
        resolve("example.com:7421", "secret", environ=environ)
    assert resolve("https://example.com", "secret", environ=environ).tls
    assert not resolve("http://example.com:80", "secret", environ=environ).tls


def test_the_port_may_be_left_out(environ: dict[str, str]) -> None:
    assert resolve("https://example.com", environ=environ).target == "example.com:7421"
    assert resolve("[::1]", environ=environ).target == "[::1]:7421"


@pytest.mark.parametrize("address", ["https://", "http://", ":7421", "https://:7421"])
def test_an_address_without_a_host_is_none(environ: dict[str, str], address: str) -> None:
    with pytest.raises(Misconfigured, match="has no host"):
        resolve(address, environ=environ)


def test_a_token_does_not_appear_in_texts(environ: dict[str, str]) -> None:
    assert "secret" not in repr(resolve("localhost", "secret", environ=environ))


@pytest.mark.parametrize("token", ["two\nlines", "carriage\r", "naïve", "nul\0"])
def test_a_token_that_cannot_be_sent_is_reported_without_being_shown(environ: dict[str, str], token: str) -> None:
    with pytest.raises(Misconfigured, match="the token contains invalid characters") as refused:
        resolve("localhost", token, environ=environ)
    assert token not in str(refused.value)


def test_an_unreadable_token_file_is_reported(environ: dict[str, str], data: Path) -> None:
    (data / "token").unlink()
    (data / "token").mkdir()
    with pytest.raises(Misconfigured, match="token"):
        resolve(environ=environ)


@pytest.mark.parametrize("name", ["address", "token"])
def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(environ: dict[str, str], data: Path, name: str) -> None:
    (data / name).unlink()
    os.mkfifo(data / name, 0o600)
    with pytest.raises(Misconfigured, match=f"{name} cannot be .*: not a regular file"):
        resolve(environ=environ)


def test_certificates_are_read(environ: dict[str, str], tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(b"PEM")
    assert resolve("https://example.com", ca_file=authority, environ=environ).ca == b"PEM"
    with pytest.raises(Misconfigured, match="missing"):
        resolve("https://example.com", environ=environ | {"BEDROCK_CA_FILE": "/missing"})


def test_a_client_shows_a_certificate_with_its_key(environ: dict[str, str], tmp_path: Path) -> None:
    own, key = tmp_path / "own.pem", tmp_path / "own.key"
    own.write_bytes(b"OWN")
    key.write_bytes(b"KEY")
    named = environ | {"BEDROCK_CERTIFICATE_FILE": str(own), "BEDROCK_KEY_FILE": str(key)}
    for found in (
        resolve("https://example.com", environ=environ, certificate_file=own, key_file=key),
        resolve("https://example.com", environ=named),
    ):
        assert (found.certificate, found.key) == (b"OWN", b"KEY")
        assert "KEY" not in repr(found)
    with pytest.raises(Misconfigured, match="must be given together"):
        resolve("https://example.com", environ=environ, certificate_file=own)
    with pytest.raises(Misconfigured, match="the key file /missing cannot be read"):
        resolve("https://example.com", environ=named | {"BEDROCK_KEY_FILE": "/missing"})


@pytest.mark.parametrize(
    ("target", "variable"),
    [
        *((resolve(address, "", environ={}).target, "") for address in LOOPBACK),
        ("unix:/run/bedrock.sock", ""),
        ("10.0.0.1:7421", ""),
        ("192.168.3.4:7421", ""),
        ("172.20.0.2:7421", ""),
        ("[fd00::1]:7421", ""),
        ("dns:///bedrock.corp.example:7421", ""),
        ("bedrock.example:7421", "http_proxy"),
        ("8.8.8.8:7421", "http_proxy"),
        ("[2600::1]:7421", "http_proxy"),
    ],
)
def test_targets_nearby_and_those_of_no_proxy_are_reached_directly(target: str, variable: str) -> None:
    environ = {"http_proxy": "http://proxy.example:3128"}
    assert proxy_of(target, environ | {"no_proxy": "other.example, .corp.example"}) == variable
    assert proxy_of(target, environ | {"NO_PROXY": "corp.example"}) == variable
    assert proxy_of(target, environ | {"no_proxy": "*"}) == ""
    assert proxy_of(target, {}) == ""
    preferred = environ | {"NO_PROXY": "corp.example", "grpc_proxy": "http://p:1"}
    assert proxy_of(target, preferred) == (variable and "grpc_proxy")


# --- A server of one's own: started, found, and gone with its owner, however that one ends ---


ROOT = Path(__file__).parents[3]
SECONDS = 30

SERVER = """
import os, signal, sys, threading
from tests.support.fake_server import FakeBedrock, FakeServer, uses_tool

assert "--until-unused" in sys.argv
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
fake = FakeBedrock()
fake.answers.append(uses_tool("ls", "a.txt", "There is a.txt.", ask=True))
server = FakeServer(fake)
print(f"bedrock ready on {server.address} (data /nowhere)", flush=True)
threading.Thread(target=lambda: (sys.stdin.buffer.read(), stop.set()), daemon=True).start()
stop.wait()
server.stop()
open(os.environ["GOODBYE"], "w").close()
"""

BROKEN = """
import sys
print("error: the data directory is in use by another server", file=sys.stderr)
sys.exit(1)
"""

OWNER = """
import signal, sys
from bedrock.cli.spawned_server import SpawnedServer

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it
with SpawnedServer() as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `server` that comes before the real one."""
    package = tmp_path / "site" / "server"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SERVER)
    search = [str(package.parent), str(ROOT), str(ROOT / "clients"), *filter(None, sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(search))
    monkeypatch.setenv("GOODBYE", str(tmp_path / "goodbye"))
    return package / "__main__.py"


class Watched:
    """A process of somebody else, whose end can be waited for."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def ends(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        ended = bool(poll.poll(SECONDS * 1000))
        os.close(self._fd)
        return ended


@pytest.fixture
def owner(installed: Path) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield child
    child.kill()
    child.communicate()


def test_a_spawned_server_answers_and_ends_afterwards(installed: Path, tmp_path: Path) -> None:
    with SpawnedServer() as server:
        assert server.pid is not None
        watched = Watched(server.pid)
        assert server_answers(server.address)
        with Client(server.address) as client:
            assert client.server_info().version == "0.1.0"
    assert watched.ends()
    assert (tmp_path / "goodbye").exists()  # it was asked, not killed
    assert not server_answers(server.address)


def test_a_spawned_server_ends_after_an_error(installed: Path) -> None:
    def fail() -> None:
        with SpawnedServer() as server:
            assert server.pid is not None
            watched.append(Watched(server.pid))
            raise RuntimeError("on purpose")

    watched: list[Watched] = []
    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert watched[0].ends()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_spawned_server_ends_with_its_owner(owner: subprocess.Popen[str], how: signal.Signals) -> None:
    assert owner.stdout is not None
    watched = Watched(int(owner.stdout.readline()))
    owner.send_signal(how)
    owner.wait(SECONDS)
    assert watched.ends()


def test_a_server_that_does_not_listen_to_reason_is_killed(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.write_text(SERVER.replace("stop.wait()", "threading.Event().wait()"))
    monkeypatch.setattr("bedrock.cli.spawned_server.STOP_SECONDS", 0.2)
    with SpawnedServer() as server:
        assert server.pid is not None
        watched = Watched(server.pid)
    assert watched.ends()


def test_a_server_that_does_not_start_says_why(installed: Path) -> None:
    installed.write_text(BROKEN)
    with pytest.raises(exits.CommandError, match="in use by another server") as caught, SpawnedServer():
        pass
    assert caught.value.exit_code == exits.UNREACHABLE


def test_a_server_that_is_never_ready_is_an_error(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.write_text("import sys; sys.stdin.read()")
    monkeypatch.setattr("bedrock.cli.spawned_server.START_SECONDS", 0.2)
    with pytest.raises(exits.CommandError, match="could not be started"), SpawnedServer():
        pass


def test_a_file_named_server_in_the_directory_is_not_started(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    with SpawnedServer() as server:
        assert server_answers(server.address)


def test_a_server_that_answers_is_used(address: str, fake: FakeBedrock) -> None:
    assert server_answers(address)
    assert not server_answers("127.0.0.1:1")
    assert not server_answers("unix:/nowhere")


def test_no_server_answers_without_an_address_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BEDROCK_DATA_DIR", str(tmp_path))
    assert not server_answers(None)
    tmp_path.chmod(0o777)
    with pytest.raises(Misconfigured, match="others may have put files"):
        server_answers(None)


def test_a_server_that_refuses_the_token_is_there(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    def refuse(*_: object) -> None:
        raise Unauthenticated("a valid token is needed", reason="UNAUTHENTICATED")

    monkeypatch.setattr(Client, "server_info", refuse)
    assert server_answers(address)


BACK = "To come back: again s"
RUNS = "Left s. Still running: its run. To stop: bedrock cancel s"
JOB = "Left s. Still running: 1 background job. To stop: bedrock cancel --kill-jobs s"
BOTH = "Left s. Still running: its run, 1 background job. To stop: bedrock cancel --kill-jobs s"
STOPPED = "Left s and stopped 2 background jobs, because the server has stopped."


@pytest.mark.parametrize(
    ("ends", "goes_on", "busy", "jobs", "said"),
    [
        (False, None, False, 0, [f"Left s. {BACK}"]),
        (False, None, True, 0, [RUNS, BACK]),
        (False, None, True, 1, [BOTH, BACK]),
        (True, False, False, 0, [f"Left s. {BACK}"]),
        (True, False, False, 2, [f"{STOPPED} {BACK}"]),
        (True, True, False, 0, [f"Left s. {BACK}", ENDS]),  # for another terminal
        (True, True, True, 0, [RUNS, BACK, ENDS]),
        (True, None, False, 0, [f"Left s. {BACK}"]),
        (True, None, False, 1, [JOB, BACK, ENDS]),  # another chat has started it
    ],
)
def test_who_leaves_hears_what_goes_on_or_was_stopped(
    ends: bool, goes_on: bool | None, busy: bool, jobs: int, said: list[str]
) -> None:
    left = v1.Conversation(slug="s", state=v1.ConversationState(busy=busy), background_jobs=["b"] * jobs)
    assert _farewell(ConversationInfo.from_proto(left), "again {}", "bedrock", ends=ends, goes_on=goes_on) == said


def test_a_server_that_another_terminal_starts_at_the_same_moment_is_used(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is out of reach when it is looked for, and has the data directory when one of our own wants it."""
    installed.write_text(BROKEN)
    unreachable = ServerUnreachable("its socket is missing")
    answers: list[bool | Exception] = [unreachable, False, unreachable, True]

    def look(_: str | None) -> bool:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.delenv("BEDROCK_ADDRESS", raising=False)
    monkeypatch.setattr("bedrock.cli.spawned_server.server_answers", look)
    with ExitStack() as stack:
        assert spawn_if_missing(None, stack.enter_context, lambda: None) is None
    assert not answers
    answers += [False, False]
    with pytest.raises(exits.CommandError, match="in use by another server"), ExitStack() as stack:
        spawn_if_missing(None, stack.enter_context, lambda: None)


def test_where_an_address_is_given_no_server_is_started_unless_asked_for(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEDROCK_ADDRESS", "127.0.0.1:1")
    with ExitStack() as stack:
        assert spawn_if_missing(None, stack.enter_context, pytest.fail) is None
        assert spawn_if_missing("127.0.0.1:1", stack.enter_context, pytest.fail) is None
        started = spawn_if_missing(None, stack.enter_context, lambda: None, insist=True)
        assert started is not None
        assert server_answers(started.address)
