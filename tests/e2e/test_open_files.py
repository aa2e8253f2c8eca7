"""A server with few file descriptors, or in a flood of calls: it says so, blames nobody else, and can always be told to
stop what it does."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from tests.attacks.http2 import CANCEL, GREETING, RST_STREAM, Raw, fields, frame
from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, hangs, says
from tests.support.patience import eventually, within
from tests.support.server_process import ServerProcess, Servers, provider

pytestmark = pytest.mark.one_server("it is about the file descriptors of one server")

LIMIT = 192
"""File descriptors; a server that rests takes some forty."""
CHATS = 110
RESETS = 20_000
GROWTH_MIB = 100
"""More memory that so many calls may take; without a bound they take three times that."""


@pytest.fixture(scope="module")
def server(fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    servers = Servers()
    options = {**provider(fake_provider.url), "BEDROCK_TITLES": "false", "BEDROCK_INSECURE_BEHIND_PROXY": "true"}
    yield servers(tmp_path_factory.mktemp("server"), open_files=f"-n {LIMIT}", **options)
    servers.close()


def _connections(server: ServerProcess, stack: ExitStack, count: int, *, local: bool = False) -> list[socket.socket]:
    """Connect so often, greet, and call nothing. `local`: to the socket in the data directory."""
    host, _, port = server.address.rpartition(":")
    made = []
    for _ in range(count):
        connection = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        stack.callback(connection.close)
        connection.connect(server.socket.removeprefix("unix:") if local else (host, int(port)))
        with suppress(ConnectionError):  # there are too many already
            connection.sendall(GREETING)
        made.append(connection)
    return made


def _closed(connections: list[socket.socket]) -> int:
    """How many of them the server has closed so far; it begins each of the others with its settings."""
    readable, _, _ = select.select(connections, [], [], 0)
    closed = 0
    for each in readable:
        with suppress(ConnectionError):
            closed += not each.recv(1, socket.MSG_PEEK)
            continue
        closed += 1
    return closed


def test_calls_that_are_reset_at_once_keep_nobody_out_and_take_little_memory(server: ServerProcess) -> None:
    """The first test, since the most memory that there ever was is what is looked at."""
    before = processes.resident_mib(server.pid, "VmHWM")
    block, reset = fields("/bedrock.v1.CatalogService/GetServerInfo"), struct.pack(">I", CANCEL)
    with ExitStack() as stack:
        strangers = [stack.enter_context(closing(Raw(server.address))) for _ in range(4)]
        for _ in range(RESETS // 100 // len(strangers)):
            for each in strangers:
                pieces = (each.open(block) + frame(RST_STREAM, 0, each.last, reset) for _ in range(100))
                each.send(b"".join(pieces))
                each.read()
        with server.client() as client:
            assert within(client.server_info)
    assert processes.resident_mib(server.pid, "VmHWM") - before < GROWTH_MIB


def test_more_requests_than_fit_are_refused_by_name_and_all_can_be_cancelled(
    server: ServerProcess, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    with server.client() as client:
        chats = [Chat(client, fake_provider.part(otherwise=hangs), tmp_path) for _ in range(CHATS)]
        for chat in chats:
            chat.send("Wait")
        for chat in chats:
            eventually(lambda: chat.part.exchanges or chat.state.kind == "error", "it asks, or was refused three times")  # noqa: B023
        refused = [chat for chat in chats if not chat.part.exchanges]
        print("REFUSED", len(refused))
        assert 20 < len(refused) < CHATS - 20
        for chat in refused:
            error = chat.error
            assert error.kind == "resource_exhausted"
            assert f"left for another model request (ulimit -n is {LIMIT}" in error.message
        with server.client() as another:
            for chat in chats:
                if chat not in refused:
                    assert not another.conversation(chat.name).cancel().no_op
        for chat in chats:
            chat.settle()
        (chat := refused[0]).part.then(says("Now."))
        assert chat.ask("And now?") == "Now."
        chat.assert_valid()


def test_without_a_file_descriptor_left_nothing_is_lost_and_a_cancel_gets_through(
    server: ServerProcess, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    with server.client() as client, ExitStack() as connections:
        running = Chat(client, fake_provider.part(hangs), tmp_path)
        running.send("Wait")
        running.part.next_reached()
        tool = Chat(client, fake_provider.part(calls(("bash", {"cmd": "true"})), says("Done.")), tmp_path)
        for local in (False, True):
            _connections(server, connections, LIMIT, local=local)
        eventually(lambda: processes.open_files(server.pid) == LIMIT, "every descriptor is in use")
        tool.send("Run it")
        eventually(lambda: tool.state.kind == "error", "three attempts fail")
        assert tool.error.kind == "resource_exhausted"
        assert str(LIMIT) in tool.error.message
        assert not within(running.conversation.cancel).no_op
        within(running.settle)
    with server.client() as client:
        again = client.conversation(tool.name)
        assert within(again.send("Once more").answer) == "Done."


def test_idle_connections_keep_out_neither_programs_of_the_servers_user_nor_what_runs(
    server: ServerProcess, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    with server.client(server.socket) as client, ExitStack() as stack:
        connections = _connections(server, stack, LIMIT)
        eventually(lambda: _closed(connections) >= LIMIT - LIMIT // 2, "the address takes half of the files")
        assert processes.open_files(server.pid) < LIMIT * 0.9
        chat = Chat(client, fake_provider.part(calls(("bash", {"cmd": "true"})), says("Done.")), tmp_path)
        assert chat.ask("Run it") == "Done."
        eventually(lambda: "each address accepts 96 connections" in server.log_text(), "the log tells of it")


def test_the_limit_is_raised_for_the_server_and_not_for_its_tools(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    server = start_server(tmp_path, open_files="-S -n 256", **provider(fake_provider.url))
    limits = Path(f"/proc/{server.pid}/limits").read_text()
    soft, hard = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3:5]
    assert int(soft) == min(int(hard), 65_536) > 256
    with server.client() as client:
        part = fake_provider.part(calls(("bash", {"cmd": "ulimit -Sn; ulimit -Hn"})), says("Done."))
        chat = Chat(client, part, tmp_path)
        assert chat.ask("How many?") == "Done."
        assert "1024\n1024" in "".join(text for _, text in chat.said())
