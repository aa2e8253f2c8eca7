"""Providers that do harm, eight at a time: each run ends or can be cancelled, memory is bounded, and others go on.

`make fault PARTS=providers` gives them more time, and measures how long commands of others take meanwhile.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bedrock import Client
from bedrock.testing.http_server import ServedConnection

from tests.attacks.providers import FINE, KINDS
from tests.support.patience import PATIENCE, eventually, within
from tests.support.scripted_server import ScriptedServer
from tests.support.server_process import API_KEY, ServerProcess, Servers

AT_ONCE = 8
SECONDS = float(os.environ.get("BEDROCK_PROVIDER_SECONDS", "0.5"))
"""How long an attack lasts before it is cancelled."""
SLOWEST = float(os.environ.get("BEDROCK_PROVIDER_P99", "inf"))
"""In how many seconds 99 of 100 commands of others must be done meanwhile."""
MORE_MEMORY = 64 << 20


def _play(connection: ServedConnection) -> None:
    model = connection.read_request().json["model"]
    if model == "fine":
        connection.send(FINE)
    else:
        KINDS[model](connection)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose provider does harm."""
    folder, servers = tmp_path_factory.mktemp("server"), Servers()
    config = folder / "config.toml"
    with ScriptedServer(_play) as provider:
        config.write_text(
            f'[providers.anthropic]\nprotocol = "anthropic"\nbase_url = "{provider.url}"\napi_key = "{API_KEY}"\n'
            'models = ["*"]\ndiscover = "never"\ntimeouts = { connect = 2, first_byte = 5, idle = 5, total = 20 }\n'
        )
        yield servers(folder, "--config", str(config))
        servers.close()


def _peak(pid: int) -> int:
    """The most memory that the process has had since `_forget_peak`, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Others:
    """A user whose provider is fine, who goes on working; notes how long each command takes."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.seconds: list[float] = []
        self.turns = 0
        self._conversation = client.create(folder, model="fine")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Others:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            for command in (self._conversation.get, self._turn):
                began = time.monotonic()
                command()
                if command == self._conversation.get:
                    self.seconds.append(time.monotonic() - began)

    def _turn(self) -> None:
        assert within(self._conversation.send("Go on").answer) == "Hello"
        self.turns += 1


@pytest.mark.one_server("it measures the memory of the process that talks to the provider")
@pytest.mark.parametrize("first", range(0, len(KINDS), AT_ONCE))
def test_a_hostile_provider_harms_nobody_but_its_own_run(server: ServerProcess, first: int, tmp_path: Path) -> None:
    names = [*KINDS][first : first + AT_ONCE]
    with server.client() as client, Others(client, tmp_path) as others:
        eventually(lambda: others.turns > 1, "a turn of another user")
        _forget_peak(server.pid)
        before = _peak(server.pid)
        attacked = {name: client.create(tmp_path, model=name) for name in names}
        for conversation in attacked.values():
            conversation.send("Go on")
        threading.Event().wait(SECONDS)  # an attack lasts: there is nothing that could be waited for
        for conversation in attacked.values():
            conversation.cancel()
        turns = others.turns
        eventually(lambda: not any(each.get().state.busy for each in attacked.values()), "all at rest")
        eventually(lambda: others.turns > turns, "another turn of another user")
        more = _peak(server.pid) - before
        assert more <= MORE_MEMORY, f"{more >> 20} MiB for {names}"
        for name, conversation in attacked.items():
            assert conversation.verify() == [], name
            conversation.update(model="fine")
            assert within(conversation.send("And now?").answer) == "Hello", name
    slowest = sorted(others.seconds)[int(len(others.seconds) * 0.99)]
    print(f"{names}: {more >> 20} MiB more, p99 of others {slowest * 1000:.0f} ms ({len(others.seconds)} commands)")
    assert slowest <= SLOWEST
    assert server.faults() == []
