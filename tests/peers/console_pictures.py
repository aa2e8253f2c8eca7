"""Draw docs/console.png, which README.md shows, from the running program: `make console-picture`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.peers import installed
from tests.peers.browser import Page, call, chromium
from tests.support.patience import eventually
from tests.support.server_process import ServerProcess, Servers

TARGET = installed.ROOT / "docs" / "console.png"
SIZE = {"width": 1500, "height": 720}
FILES = {
    "README.md": "# Tide\n\nTide tables for every harbour, from its coordinates alone.\n",
    "tide.py": "def height(hour: float) -> float:\n    return 2.1 * cos(hour / 1.977)\n",
    "harbours.csv": "name,latitude,longitude\nDover,51.11,1.32\n",
}
"""What the sub-agents count, compare and read."""


def main() -> None:
    """Play a run with sub-agents, a tool that asks, and one that is cancelled; then take the picture."""
    servers = Servers()
    with tempfile.TemporaryDirectory(prefix="b-") as folder, chromium() as browser:
        work = Path(folder, "project")
        work.mkdir()
        for file, text in FILES.items():
            (work / file).write_text(text)
        server = servers(Path(folder), "--http", "127.0.0.1:0")
        name = played(server, str(work))
        page = Page(
            browser, server, viewport=SIZE, device_scale_factor=1.5, reduced_motion="reduce", color_scheme="light"
        )
        page.go(f"c/{(at := name.partition('/')[2])}/timeline/{at}:1")
        page.page.wait_for_selector(".span.k-agents")
        page.page.wait_for_timeout(500)
        assert not page.page.locator("text=/^Failed|Cannot read/").count(), "the picture shows a failure"
        page.page.screenshot(path=TARGET)
        page.context.close()
        servers.close()


def played(server: ServerProcess, folder: str) -> str:
    """Return the name of the conversation."""
    with server.client() as client:
        client.create(folder, title="Read the docs").ask("think")
        client.create(folder, title="Try again after a failure").ask("retry")
        client.create(folder, title="Write a file", approval_policy="ask_all").send("write notes.txt")
        conversation = client.create(folder, title="Count files, then wait too long")
        conversation.ask("agents")
        conversation.send("sleep")
        eventually(lambda: "toolExecuting" in state(server, conversation.name), "a tool that runs")
        time.sleep(1.5)  # so that there is something to see
        conversation.cancel()
        return conversation.name


def state(server: ServerProcess, name: str) -> dict[str, object]:
    found: dict[str, object] = call(server, "GET", f"/v1/{name}")["conversation"]["state"]
    return found


if __name__ == "__main__":
    main()
