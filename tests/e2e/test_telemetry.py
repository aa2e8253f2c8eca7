"""What a server tells about a turn, and that it keeps what was said in it to itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from actors.adapters.telemetry.log_lines import LINES
from tests.e2e.fake_provider import calls, says
from tests.e2e.patience import eventually
from tests.e2e.server_process import API_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.chat import Chat
    from tests.e2e.server_process import ServerProcess

SAID = "unspeakable"
"""A word in everything that people, models and tools say here."""


def test_the_log_says_who_did_what_and_not_what_was_said(server: ServerProcess, open_chat: Callable[..., Chat]) -> None:
    bash = calls(("bash", {"cmd": f"echo {SAID}"}), text=f"I am {SAID}.")
    chat = open_chat(bash, says(f"It was {SAID}."), mode="unrestricted", title=SAID)
    conversation = chat.name.removeprefix("conversations/")

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in server.log_text().rpartition("\n")[0].splitlines()]
        return [line for line in found if line.get("conversation") == conversation]

    chat.ask(f"Say {SAID}")
    expected = ["command accepted", "run began", "command accepted", "model request ended", "tool call ended",
                "model request ended", "run ended", "stream ended"]  # fmt: skip
    eventually(lambda: len(lines()) >= len(expected), "a line for everything")
    found = lines()
    assert sorted(line["message"] for line in found) == sorted(expected)
    for line in found:
        assert line.keys() - {"time", "level", "logger", "message"} <= set(LINES[line["message"]])
    of = {line["message"]: line for line in found}
    assert {of[name].get("run") for name in expected if "run" in LINES[name]} == {f"{conversation}:1"}
    assert (of["tool call ended"]["tool"], of["tool call ended"]["outcome"]) == ("bash", "ok")
    assert (of["run ended"]["outcome"], of["run ended"]["principal"]) == ("completed", "local")
    assert of["model request ended"]["output_tokens"] > 0
    assert of["stream ended"]["rpc"] == "Subscribe"
    assert SAID not in server.log_text()
    assert API_KEY not in server.log_text()
    assert server.token not in server.log_text()
