"""A fake provider, servers that use it, and clients of those: one of each for all tests of a module."""

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bedrock import Client

from tests.e2e.two_nodes import WANTED, OwnerBehindAnother
from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, Play
from tests.support.fork_server import Popen
from tests.support.server_process import ServerProcess, Servers, provider
from tests.support.watcher import Watcher

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Against two nodes, leave out what is about one server."""
    if not WANTED:
        return
    left_out = [item for item in items if item.path.is_relative_to(HERE) and item.get_closest_marker("one_server")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", autouse=True)
def forked_servers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the servers. If it is wanted, make every one a server that is called through another node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerProcess, "popen", Popen)
        if WANTED:
            start = functools.partial(OwnerBehindAnother, postgres=request.getfixturevalue("postgres"))
            patch.setattr(Servers, "usual", start)
        yield


@pytest.fixture(scope="module")
def fake_provider() -> Iterator[FakeProvider]:
    """The model provider of this module's servers. At the end, every request it got must have been a good one."""
    with FakeProvider() as made:
        yield made
    made.assert_content()


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, fake_provider: FakeProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server that lives as long as the module's tests; it is not forked if the module has the constant `WITHIN`."""
    servers, within = Servers(), getattr(request.module, "WITHIN", "")
    yield servers(tmp_path_factory.mktemp("server"), within=within, **provider(fake_provider.url))
    servers.close()


@pytest.fixture
def start_server() -> Iterator[Servers]:
    """Starts servers for one test."""
    servers = Servers()
    yield servers
    servers.close()


@pytest.fixture
def restart_elsewhere(fake_provider: FakeProvider) -> Iterator[Callable[[Path], ServerProcess]]:
    """Starts the server of a folder, each time with another port and another path of its socket; kills the last one.

    The path of its data directory holds a blank, so that the socket is in the runtime directory.
    """
    servers, last = Servers(), list[ServerProcess]()
    with ExitStack() as opened:
        opened.callback(servers.close)

        def start(folder: Path) -> ServerProcess:
            if last:
                last[-1].kill()
            runtime = opened.enter_context(tempfile.TemporaryDirectory(prefix="bedrock-"))
            home = folder / "with a blank"
            home.mkdir(exist_ok=True)
            last.append(servers(home, XDG_RUNTIME_DIR=runtime, **provider(fake_provider.url)))
            assert len({server.socket for server in last}) == len(last)
            return last[-1]

        yield start


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with server.client() as made:
        yield made


@pytest.fixture
def open_chat(client: Client, fake_provider: FakeProvider, tmp_path: Path) -> Callable[..., Chat]:
    """Creates conversations whose model plays what it is given."""

    def create(*plays: Play, otherwise: Play | None = None, **settings: Any) -> Chat:
        return Chat(client, fake_provider.part(*plays, otherwise=otherwise), tmp_path, **settings)

    return create


@pytest.fixture
def watch(server: ServerProcess) -> Iterator[Callable[..., Watcher]]:
    """Opens streams of events; all are closed at the end."""
    with ExitStack() as opened:

        def open_stream(name: str, **request: Any) -> Watcher:
            watcher = Watcher(server, name, **request)
            opened.callback(watcher.close)
            watcher.until("caught_up")
            return watcher

        yield open_stream
