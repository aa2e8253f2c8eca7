"""What a conversation took, it gives back: threads, file descriptors, processes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from bedrock import Client

from actors.adapters.store.reads import READERS
from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import calls, refuses, says, stalls
from tests.support.patience import PATIENCE, eventually
from tests.support.server_process import ServerProcess
from tests.support.watcher import Watcher

pytestmark = pytest.mark.one_server("it looks into the server's process")

CONVERSATIONS = 12
AT_A_TIME = 6


def test_after_many_conversations_the_server_is_as_it_was(
    open_chat: Callable[..., Chat], server: ServerProcess
) -> None:
    def live(number: int) -> None:
        _live(open_chat, server, number)

    _fill_pools(open_chat())
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(live, range(CONVERSATIONS), timeout=PATIENCE))  # what is made once and kept is made now
        eventually(lambda: len(processes.children(server.pid)) == 1, "only the fork server of the first tools is left")
        children = processes.children(server.pid)
        threads, files = _settled(server)
        list(pool.map(live, range(CONVERSATIONS), timeout=PATIENCE))
    eventually(lambda: processes.children(server.pid) == children, "no other child is left")
    eventually(lambda: processes.threads(server.pid) <= threads, f"back to {threads} threads")
    eventually(lambda: _files(server) <= files, f"back to {files} file descriptors")
    assert processes.open_files(server.pid) - _files(server) <= 2 * (READERS + 2), "readers, the writer, the backup"
    assert server.running() == [server.pid]


def _files(server: ServerProcess) -> int:
    """Open files, without the database: connections that read are kept, up to a number, as reads happen to meet."""
    return sum(not found.startswith(str(server.data)) for found in processes.files(server.pid))


def _fill_pools(chat: Chat) -> None:
    """Read so much at once that the server's pools of threads and connections are as large as they get."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: chat.messages(), range(200), timeout=PATIENCE))
    chat.conversation.delete()


def _live(open_chat: Callable[..., Chat], server: ServerProcess, number: int) -> None:
    """A conversation from birth to deletion: a tool, a watcher, and some end that differs with the number."""
    chat = open_chat(calls(("bash", {"cmd": "sleep 1000 & echo hi"}), ("think", {"thoughts": "x"})), says("Done."))
    watcher = Watcher(server, chat.name)
    assert chat.ask("Go.") == "Done."
    match number % 4:
        case 0:
            chat.part.then(stalls)
            chat.send("Stall.")
            chat.part.next_reached(stalls)
            chat.conversation.cancel()
        case 1:
            chat.part.then(refuses(400, "invalid_request_error"))
            chat.send("Fail.").wait()
        case 2:
            chat.part.then(calls(("spawn_sub_agent", {"tasks": [{"task": chat.part.key}] * 3})), *[stalls] * 3)
            chat.send("Delegate.")
            chat.part.next_reached(stalls)
        case _:
            chat.part.then(calls(("bash", {"cmd": "echo up; sleep 1000"})))
            chat.send("Run.")
            watcher.until(lambda event: "up" in event.tool_output_delta.text)
    chat.conversation.delete(force=True)
    assert watcher.end() == "OK"
    watcher.close()


def _settled(server: ServerProcess) -> tuple[int, int]:
    """Threads and file descriptors once their numbers no longer fall."""
    seen: list[tuple[int, int]] = []

    def steady() -> bool:
        seen.append((processes.threads(server.pid), _files(server)))
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    eventually(steady, "the server comes to rest")
    return seen[-1]


def test_a_client_that_leaves_takes_its_connection_along(server: ServerProcess, client: Client) -> None:
    client.server_info()
    before = processes.open_files(server.pid)
    for _ in range(20):
        with server.client() as passing:
            passing.server_info()
    eventually(lambda: processes.open_files(server.pid) <= before, "connections are closed")
