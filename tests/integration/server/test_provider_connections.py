"""The server closes its idle connections to providers when it stops."""

import threading
from pathlib import Path

from server.app.wiring import wire
from server.settings.config import load
from tests.support.model_requests import ask
from tests.support.scripted_server import ScriptedServer, ServedConnection, in_turn, kept
from tests.unit.llm.test_abort import ANSWER


class Keeper:
    """A provider that would keep its connections for ever."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def __call__(self, connection: ServedConnection) -> None:
        in_turn(kept(ANSWER))(connection)
        self.closed.set()


def test_idle_connections_to_providers_are_closed(tmp_path: Path) -> None:
    keeper = Keeper()
    with ScriptedServer(keeper) as server:
        environ = {"HOME": str(tmp_path), "ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": server.url}
        config = load({"data_dir": str(tmp_path / "data"), "listen": "none"}, environ)
        with wire(config) as wired:
            found = wired.services.models.get("claude-sonnet-4-5")
            assert found is not None
            ask(found)
            assert not keeper.closed.is_set()
        assert keeper.closed.wait(60)
