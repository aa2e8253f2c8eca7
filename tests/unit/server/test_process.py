"""The server as a process: signals, sockets, files, memory, logs, and what the service manager is told."""

import asyncio
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import grpc
import grpc.aio
import pytest
from bedrock import v1
from bedrock.local_server import LONGEST_SOCKET_PATH, NotPrivateError, check_private, check_socket, open_believed

from actors.common.settings_checks import read_named
from server import json_logs
from server import operating_system as freed_memory
from server.app import serving
from server.app.serving import _on_signals
from server.cluster.router import URGENT
from server.gateway.command import _local
from server.json_logs import JsonLines, LateLines, TextLines
from server.local_endpoint import claim_directory, socket_path
from server.operating_system import READY, RISE_BYTES, STOPPING, MallocTrimmer, connections, listener, notify
from server.services.grpc_server import registry_of
from server.settings.setting_values import ConfigError, Listen

# The way in for programs of this machine: what is believed, and where the socket is.


SOMEBODY = 12_345


@pytest.fixture
def not_me(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the test has made belongs to another user."""
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A socket in a private directory."""
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    monkeypatch.chdir(folder)  # its whole path may be too long
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")
        yield folder / "s"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_data_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    claim_directory(tmp_path / "a" / "b")
    assert mode(tmp_path / "a" / "b") == 0o700


@pytest.mark.parametrize("before", [0o755, 0o711, 0o750, 0o700])
def test_what_others_could_only_read_is_closed_to_them(tmp_path: Path, before: int) -> None:
    tmp_path.chmod(before)
    claim_directory(tmp_path)
    assert mode(tmp_path) == 0o700


@pytest.mark.parametrize("before", [0o777, 0o1777, 0o770, 0o720, 0o702])
def test_what_others_could_write_is_refused_as_it_is(tmp_path: Path, before: int) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    folder.chmod(before)
    with pytest.raises(NotPrivateError, match="chmod 700"):
        claim_directory(folder)
    assert mode(folder) == before & 0o777


@pytest.mark.usefixtures("not_me")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    before = mode(tmp_path)
    for check in (claim_directory, check_private):
        with pytest.raises(
            NotPrivateError, match=f"belongs to uid {tmp_path.stat().st_uid}, but this process runs as uid {SOMEBODY}"
        ):
            check(tmp_path)
    assert mode(tmp_path) == before


PLANTED = {
    "a link": "is a symbolic link, which is not followed; check where it leads, and remove it",
    "writable": r"others can write to .* \(mode 0606\): check its contents, then chmod 600",
    "another user's": "belongs to uid .*; check what else others have put into .*, and remove it",
}


@pytest.fixture(params=PLANTED)
def planted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A file of a private directory that another user may have put there, and how it is refused."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    file = folder / "token"
    match request.param:
        case "a link":
            (tmp_path / "elsewhere").touch(0o600)
            file.symlink_to(tmp_path / "elsewhere")
        case "writable":
            file.touch()
            file.chmod(0o606)
        case _:
            file.touch(0o600)
            theirs = os.stat_result((0o100600, 0, 0, 1, SOMEBODY, 0, 0, 0, 0, 0))
            monkeypatch.setattr(Path, "lstat", lambda path: theirs if path == file else os.lstat(path))
            monkeypatch.setattr(os, "fstat", lambda _: theirs)
    return file, PLANTED[request.param]


def test_a_file_that_another_user_may_have_planted_is_not_believed(planted: tuple[Path, str]) -> None:
    file, refusal = planted
    with pytest.raises(NotPrivateError, match=refusal):
        open_believed(file)


def test_a_directory_in_which_one_is_planted_is_not_used(planted: tuple[Path, str]) -> None:
    """The database, its log and whatever else is opened by name are found out before they are."""
    file, refusal = planted
    with pytest.raises(NotPrivateError, match=refusal):
        claim_directory(file.parent)


def test_a_file_with_a_name_elsewhere_is_not_used(tmp_path: Path) -> None:
    """Another user may have linked a file of this user, which the server would overwrite; a restore links within."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "bedrock.db").touch(0o600)
    (folder / "bedrock.db.before").hardlink_to(folder / "bedrock.db")
    claim_directory(folder)
    (tmp_path / "passwd").touch(0o644)
    (folder / "lock").hardlink_to(tmp_path / "passwd")
    with pytest.raises(NotPrivateError, match="lock has another hard link elsewhere"):
        claim_directory(folder)


def test_a_gateway_does_not_call_where_another_user_says(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("unix:/theirs")
    (tmp_path / "address").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a symbolic link, which is not followed"):
        _local(tmp_path)


def test_a_pipe_in_the_place_of_any_file_is_refused_before_opening_it_blocks(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / "reserve", 0o600)
    with pytest.raises(NotPrivateError, match="reserve is neither a file nor a socket"):
        claim_directory(tmp_path)


def test_a_link_is_not_followed_where_it_replaces_a_file_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").touch(0o600)
    (tmp_path / "token").symlink_to(tmp_path / "mine")
    monkeypatch.setattr(Path, "lstat", Path.stat)
    with pytest.raises(OSError, match="symbolic links"):
        open_believed(tmp_path / "token")


def test_a_file_that_an_operator_names_may_be_reached_by_a_link_of_theirs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounted").touch(0o644)
    link = tmp_path / "tls.pem"
    link.symlink_to("mounted")
    os.close(open_believed(link, named=True))
    assert read_named(link) == b""
    theirs = os.stat_result((0o120777, 0, 0, 1, SOMEBODY, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "lstat", lambda _: theirs)
    with pytest.raises(NotPrivateError, match=f"belongs to uid {SOMEBODY}"):
        open_believed(link, named=True)
    with pytest.raises(ValueError, match=f"is owned by uid {SOMEBODY}"):
        read_named(link)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_an_operator_names_and_others_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "f").chmod(mode)
    with pytest.raises(NotPrivateError, match="chmod go-w"):
        open_believed(tmp_path / "f", named=True)
    with pytest.raises(ValueError, match="chmod go-w"):
        read_named(tmp_path / "f")


def test_a_link_of_another_user_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir(mode=0o700)
    link.symlink_to(mine)
    check_private(link)
    theirs = os.stat_result((0o120777, 0, 0, 1, SOMEBODY, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "lstat", lambda _: theirs)
    with pytest.raises(NotPrivateError, match=f"a symbolic link owned by uid {SOMEBODY}"):
        check_private(link)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        check_private(tmp_path / "file")


def test_a_socket_that_only_its_owner_reaches_is_believed(listening: Path) -> None:
    check_socket(listening)


def test_a_socket_beside_which_others_could_put_one_is_not(listening: Path) -> None:
    listening.parent.chmod(0o755)
    with pytest.raises(NotPrivateError, match="others can access"):
        check_socket(listening)


@pytest.mark.parametrize("kind", ["file", "link", "directory"])
def test_what_is_no_socket_is_not_believed(listening: Path, kind: str) -> None:
    other = listening.with_name(kind)
    match kind:
        case "file":
            other.touch()
        case "link":
            other.symlink_to(listening)
        case _:
            other.mkdir()
    with pytest.raises(NotPrivateError, match="not a socket of this user"):
        check_socket(other)


def test_the_socket_is_in_the_data_directory() -> None:
    assert socket_path(Path("/home/ada/.local/state/bedrock"), {}) == Path(
        "/home/ada/.local/state/bedrock/bedrock.sock"
    )


@pytest.mark.parametrize("data", [f"/{'long' * 26}", "/a b", "/naïve", "/50%", "/a?b", "/a#b"])
def test_a_path_that_no_socket_can_have_is_replaced_by_one_of_the_runtime_directory(data: str, tmp_path: Path) -> None:
    runtime = Path("/tmp") / tmp_path.name  # short enough for a socket
    runtime.mkdir(mode=0o700)
    try:
        there = socket_path(Path(data), {"XDG_RUNTIME_DIR": str(runtime)})
        assert there.parent == runtime / "bedrock"
        assert mode(there.parent) == 0o700
        assert len(os.fsencode(there)) <= LONGEST_SOCKET_PATH
        assert socket_path(Path(data), {"XDG_RUNTIME_DIR": str(runtime)}) == there
        assert socket_path(Path(data + "x"), {"XDG_RUNTIME_DIR": str(runtime)}) != there
    finally:
        (runtime / "bedrock").rmdir()
        runtime.rmdir()


@pytest.mark.parametrize("runtime", [None, "", "run", "/proc/nowhere", f"/{'long' * 26}"])
def test_without_a_runtime_directory_it_is_in_one_of_this_user_in_tmp(runtime: str | None) -> None:
    environ = {} if runtime is None else {"XDG_RUNTIME_DIR": runtime}
    there = socket_path(Path(f"/{'long' * 26}"), environ)
    assert there.parent == Path(f"/tmp/bedrock-{os.geteuid()}")
    check_private(there.parent)


# Which signals stop a server, and when one is a reason to hurry.


@pytest.fixture
def hang_up() -> Iterator[None]:
    """Put the handler of SIGHUP back at the end."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


async def after(*numbers: int) -> tuple[bool, bool]:
    """Whether these signals stop the server, and whether they end its drain."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    _on_signals(stop, hurry)
    loop = asyncio.get_running_loop()
    try:
        for number in numbers:
            signal.raise_signal(number)
            for _ in range(5):  # rounds of the loop: it reads of the signal, and then calls the handler
                await asyncio.sleep(0)
        return stop.is_set(), hurry.is_set()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((signal.SIGTERM,), (True, False)),
        ((signal.SIGHUP,), (True, False)),
        ((signal.SIGTERM, signal.SIGTERM), (True, True)),
        ((signal.SIGHUP, signal.SIGINT), (True, True)),
        ((signal.SIGHUP, signal.SIGHUP), (True, False)),  # a terminal that closes may say it more than once
    ],
)
@pytest.mark.usefixtures("hang_up")
def test_the_first_signal_stops_and_the_second_ends_the_drain(
    numbers: tuple[int, ...], told: tuple[bool, bool]
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert asyncio.run(after(*numbers)) == told


@pytest.mark.usefixtures("hang_up")
async def test_a_stop_does_not_wait_for_the_threads_of_calls_that_wait_for_a_provider() -> None:
    loop, answer = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    call = loop.run_in_executor(None, answer.wait)
    wired, endpoint = Mock(), AsyncMock()
    try:
        async with asyncio.timeout(PATIENCE):
            await serving._stop(cast("Any", SimpleNamespace(drain_seconds=0)), wired, endpoint, asyncio.Event())
        assert not call.done()
    finally:
        answer.set()
    await call
    wired.supervisor.stop.assert_called_once_with(0)
    assert [each[0] for each in wired.cluster.method_calls] == ["retire", "drain"]
    endpoint.stop.assert_awaited_once()


def test_under_nohup_a_terminal_that_closes_stops_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert asyncio.run(after(signal.SIGHUP)) == (False, False)


# What the kernel says of sockets: who is connected, and who listens.


@pytest.fixture(params=["unix", "127.0.0.1", "::1"])
def listening_on(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    if request.param == "unix":
        monkeypatch.chdir(tmp_path)  # its whole path may be too long
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s")
            made.listen()
            yield made
    else:
        family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
        with socket.create_server((request.param, 0), family=family) as made:
            yield made


def address_of(made: socket.socket) -> Listen:
    name = made.getsockname()
    return Listen(path=name) if isinstance(name, str) else Listen(name[0], name[1])


def test_connections_are_counted_from_their_begin_to_their_end(listening_on: socket.socket) -> None:
    address = address_of(listening_on)
    assert connections([address]) == 0
    with socket.socket(listening_on.family) as one, socket.socket(listening_on.family) as two:
        one.connect(listening_on.getsockname())
        with listening_on.accept()[0]:
            assert connections([address]) == 1
            two.connect(listening_on.getsockname())
            with listening_on.accept()[0]:
                assert connections([address, Listen("127.0.0.1", 1)]) == 2
                assert connections([Listen("127.0.0.1", 1)]) == 0
    assert connections([address]) == 0


def test_who_listens_on_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as made:
        port = made.getsockname()[1]
        assert listener(port) == f"process {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"
    assert listener(port) == ""


# What the service manager is told, and that a server works without one.


@pytest.mark.parametrize("abstract", [True, False])
def test_lines_arrive_as_one_datagram(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, abstract: bool) -> None:
    name = f"@{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{tmp_path}" if abstract else name)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify(READY, "STATUS=well")
        notify(STOPPING)
        assert [manager.recv(100), manager.recv(100)] == [b"READY=1\nSTATUS=well", b"STOPPING=1"]


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setattr(socket, "socket", None)
    notify(READY)


def test_a_service_manager_that_is_gone_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        notify(READY)
    assert "service manager could not be notified" in caplog.text


def test_one_that_does_not_read_holds_nobody_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        for _ in range(2000):
            notify("STATUS=" + "x" * 1000)


# What was freed goes back to the machine, and nothing is done while there is nothing to give.


ROOT = Path(__file__).parents[3]
PATIENCE = 60.0


def test_memory_is_given_back_once_the_process_has_grown() -> None:
    resident = [100 << 20]
    given: list[int] = []

    def give_back() -> None:
        given.append(resident[0])
        resident[0] = 101 << 20

    memory = MallocTrimmer(lambda: resident[0], give_back)
    assert not memory.look()
    resident[0] += RISE_BYTES - 1
    assert not memory.look()
    resident[0] += 1
    assert memory.look()
    assert given == [(100 << 20) + RISE_BYTES]
    assert not memory.look(), "it counts from what was left"
    resident[0] = 50 << 20
    assert not memory.look()
    resident[0] += RISE_BYTES
    assert memory.look(), "it counts from the least there was"


def test_it_looks_by_itself_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "LOOK_SECONDS", 0.001)
    looks = threading.Semaphore(0)

    def resident() -> int:
        looks.release()
        return 0

    memory = MallocTrimmer(resident, lambda: None)
    memory.start()
    for _ in range(4):
        assert looks.acquire(timeout=PATIENCE)
    memory.close()
    memory.close()
    assert not memory._thread.is_alive()


def test_without_a_file_descriptor_left_the_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_RESIDENT", Path("/nowhere"))
    assert freed_memory._resident() == 0


def test_what_many_threads_freed_is_really_given_back() -> None:
    """Small pieces between what is kept: the C library returns those only when it is told."""
    program = """
import ctypes
from server import operating_system as freed_memory
memory = freed_memory.heap_trimmer()
if memory is None:
    print("not needed")
    raise SystemExit
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
pieces = [libc.malloc(60_000) for _ in range(1_000)]
for piece in pieces:
    ctypes.memset(piece, 1, 60_000)
full = freed_memory._resident()
for piece in pieces[:-1]:
    libc.free(piece)
print(memory.look(), full - freed_memory._resident() > 50_000_000)
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout in ("True True\n", "not needed\n")


# The log says when new clients are turned away, once each time.


def test_the_log_warns_once_each_time_that_too_many_files_are_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counts = iter([50, 100, 130, 95, 100, 89, 100])
    looks: list[int] = []

    def count() -> int:
        if (found := next(counts, None)) is None:
            raise EOFError
        looks.append(len(caplog.records))
        return found

    monkeypatch.setattr(serving, "CROWDED_SECONDS", 0)
    with caplog.at_level(logging.WARNING):
        try:
            asyncio.run(serving.warn_when_crowded(100, count))
        except EOFError:
            looks.append(len(caplog.records))
    assert looks == [0, 0, 1, 1, 1, 1, 1, 2]
    assert caplog.records[0].getMessage().startswith("100 of ")


# Logs are one JSON object a line and hold no contents.


def line(error: BaseException | None = None, text: str = "saved %d rows", *arguments: object) -> dict[str, object]:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("actors.x")
    logger.addHandler(handler)
    logger.error(text, *(arguments or (3,)), exc_info=error)
    (one,) = output.getvalue().splitlines()
    found: dict[str, object] = json.loads(one)
    return found


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 -- any exception shall have a traceback
        return caught


def test_a_line_says_when_how_bad_where_and_what() -> None:
    found = line()
    assert (found["level"], found["logger"], found["message"]) == ("error", "actors.x", "saved 3 rows")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(found["time"]))


def test_text_with_line_breaks_and_broken_characters_stays_one_line() -> None:
    assert line(None, "%s", "a\nb\ud83d")["message"] == "a\nb\ud83d"


@pytest.mark.parametrize("error", [ValueError("what the user said"), KeyError("sk-secret")])
def test_an_exception_is_reported_by_class_and_place_without_its_text(error: BaseException) -> None:
    found = line(raised(error))
    assert found["error"] == type(error).__name__
    assert "test_process.py" in str(found["stack"])
    assert "said" not in json.dumps(found)
    assert "sk-" not in json.dumps(found)


def test_what_the_system_says_is_reported() -> None:
    assert line(raised(FileNotFoundError(2, "No such file")))["error"] == "FileNotFoundError: No such file"


def test_causes_are_reported() -> None:
    error = ValueError("y")
    error.__cause__ = raised(KeyError("x"))
    assert line(raised(error))["error"] == "ValueError from KeyError"


def record(**fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "actors.x", "levelname": "INFO", "msg": "run ended"})
    made.__dict__.update(fields)
    return made


def test_fields_stand_beside_the_message() -> None:
    found = json.loads(JsonLines().format(record(conversation="c1", duration_ms=1.5)))
    assert found["message"] == "run ended"
    assert {name: found[name] for name in found.keys() - {"time", "level", "logger", "message"}} == {
        "conversation": "c1",
        "duration_ms": 1.5,
    }


def test_people_read_text_that_cannot_move_their_cursor() -> None:
    hostile = record(msg="a\x1b[2Jb", conversation="c1", peer='x "y"\n\x9b', stack=None)
    text = TextLines().format(hostile)
    assert text.endswith('a\ufffd[2Jb conversation=c1 peer="x \\"y\\"\\n\\u009b" stack=None')
    assert text.isprintable()


@pytest.mark.parametrize("text", ["caf\u00e9", "\u2028", "\ud83d", "\x9b2J"])
def test_a_line_is_ascii_and_says_what_was_said(text: str) -> None:
    shown = JsonLines().format(record(msg="%s", args=(text,), count=2**70))
    assert shown.isascii()
    assert shown.isprintable()
    assert json.loads(shown)["message"] == text
    assert json.loads(shown)["count"] == 2**70


def test_a_warning_is_written_at_once_with_what_waits_and_the_rest_at_the_end() -> None:
    output = io.StringIO()
    handler = LateLines(output)
    handler.emit(record(msg="first", levelno=logging.INFO))
    handler.emit(record(msg="second", levelno=logging.WARNING))
    assert output.getvalue() == "first\nsecond\n"
    handler.emit(record(msg="third", levelno=logging.INFO))
    handler.close()
    assert output.getvalue() == "first\nsecond\nthird\n"


def test_more_records_than_may_wait_are_written_by_who_logs_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_logs, "LATE_SECONDS", 3_600)
    monkeypatch.setattr(json_logs, "MOST_WAITING", 2)
    output = io.StringIO()
    handler = LateLines(output)
    for text in ("first", "second"):
        handler.emit(record(msg=text, levelno=logging.INFO))
    assert not output.getvalue()
    handler.emit(record(msg="third", levelno=logging.INFO))
    assert output.getvalue() == "first\nsecond\nthird\n"
    handler.close()


# Only urgent calls have queues of their own: each queue makes every call slower.


class Server:
    """Notes what is registered."""

    def __init__(self) -> None:
        self.generic: list[grpc.GenericRpcHandler] = []
        self.apart: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        self.generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        assert service == "bedrock.v1.ConversationService"
        self.apart.update(handlers)

    def serves(self, service: str, method: str) -> bool:
        details: Any = SimpleNamespace(method=f"/bedrock.v1.{service}/{method}", invocation_metadata=())
        return any(handler.service(details) is not None for handler in self.generic)


def test_urgent_methods_have_queues_of_their_own_and_all_methods_are_served() -> None:
    server, servicer = Server(), Mock()
    registry = registry_of(cast("grpc.aio.Server", server))
    v1.add_ConversationServiceServicer_to_server(servicer, registry)
    v1.add_CatalogServiceServicer_to_server(servicer, registry)
    assert set(server.apart) == URGENT == {"CancelConversation", "SetMode"}
    for method in (*URGENT, "SendMessage", "Subscribe", "GetConversation"):
        assert server.serves("ConversationService", method)
    assert server.serves("CatalogService", "ListTools")
