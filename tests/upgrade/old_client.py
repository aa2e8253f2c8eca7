"""What the client of version 0.1.0 sees of a server: prints for each call what came of it, as lines of JSON.

Run with that client's wheel in PYTHONPATH, and as arguments the server's address, its token and a directory.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

bedrock: Any = importlib.import_module("bedrock")
"""The client of version 0.1.0, whose types are not those of this checkout."""

WHEEL = "phoenix_bedrock_client-0.1.0-py3-none-any.whl"
RECONNECT_SECONDS = 5


def tell(what: str, call: Callable[[], Any]) -> None:
    """Say what a call gives, or which error of the client's own; another one ends this program."""
    try:
        came = {"result": call()}
    except bedrock.BedrockError as error:
        came = {"error": type(error).__name__, "text": str(error)}
    print(json.dumps({"call": what} | came), flush=True)


def main(address: str, token: str, folder: str) -> None:
    assert WHEEL in bedrock.__file__, "this is another client"
    with bedrock.Client(address, token=token, reconnect_for=RECONNECT_SECONDS) as client:
        finished, waiting = client.conversation("finished"), client.conversation("empty")
        tell("list", lambda: sorted(each.slug for each in client.conversations()))
        tell("messages", lambda: next(message.text for message in finished.messages()))
        tell("cycles", lambda: len(list(finished.cycles())))
        tell("follow", lambda: [event.kind for event in finished.events(0, until_settled=True)][-1])
        tell("ask", lambda: finished.ask("think"))
        tell("rename", lambda: finished.update(title="Renamed").title)
        tell("archive", lambda: finished.archive().HasField("archive_time"))
        tell("models", lambda: [model.name for model in client.models()])
        tell("verify", finished.verify)
        tell("create", lambda: client.create(folder).name)
        tell("allow always", lambda: finished.update(always_approved_tools=["bash"]).title)
        waiting.send("count")
        waiting.send("Waits.", delivery="follow_up")
        tell("queue", lambda: [entry.message.content[0].text for entry in waiting.queue()])
        tell("follow a queue", lambda: next(iter(waiting.events())).kind)
        tell("cancel with a queue", lambda: waiting.cancel(discard_queued=True).revision)
        tell("after that", lambda: [waiting.cancel().no_op, len(list(waiting.queue()))])


if __name__ == "__main__":
    main(*sys.argv[1:])
