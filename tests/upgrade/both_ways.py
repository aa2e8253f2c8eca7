"""What a client of 0.2.0 or later sees of a server of 0.2.0 or later: prints what each call gives, as a line of JSON.

Run with that client in PYTHONPATH, and as arguments the server's address, its token and a directory. What is printed is
the same whichever of both is the older one.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

bedrock: Any = importlib.import_module("bedrock")
"""The client, whose types may not be those of this checkout."""


def answered(client: Any, folder: str) -> Iterator[Any]:
    """Turns, questions and rules."""
    talk = client.create(folder, slug="both-ways", approval_policy="ask_all", labels={"team": "docs"})
    yield talk.ask("think")[:18]
    run = talk.send("run echo once")
    for event in run:
        if event.approval is not None:
            talk.approve(event.approval, rule=event.approval.suggestions[0])
    yield run.stop.reason
    yield [(rule.action, rule.command, rule.origin) for rule in talk.approval_rules()]
    yield [each.outcome for message in talk.messages() for each in message.tool_results]
    yield [cycle.stop_reason for cycle in talk.cycles()]
    yield talk.update(title="Renamed", labels={}).title
    yield [each.slug for each in client.conversations()]


def queued(client: Any, folder: str) -> Iterator[Any]:
    """What waits, and refusals."""
    talk = client.create(folder, slug="queued")
    run = talk.send("count")
    waits = talk.send("Waits.", delivery="follow_up")
    yield [entry.message.text for entry in talk.queue()]
    try:
        talk.send("Not now.")
    except bedrock.AgentBusy as error:
        yield [error.reason, error.metadata["run"] == run.name]
    yield [talk.cancel(discard_queued=True).no_op, talk.cancel().no_op]
    yield [entry.fate for entry in talk.queue(include_settled=True) if entry.message.name == waits.message.name]
    yield talk.wait_for_cycle(run.name).stop_reason
    try:
        client.conversation("nobody").get()
    except bedrock.NotFound as error:
        yield error.reason
    try:
        client.create("nowhere")
    except bedrock.BedrockError as error:
        yield [error.reason, sorted(error.fields)]


def proven(client: Any, folder: str) -> Iterator[Any]:
    """Forks, archives, exports and proofs."""
    talk = client.conversation("both-ways")
    fork = talk.fork(slug="forked")
    yield [message.text[:5] for message in fork.messages()] == [message.text[:5] for message in talk.messages()]
    yield fork.archive().archive_time is not None
    yield [talk.verify(), [step.difference for step in talk.replay() if step.difference]]
    kinds = {json.loads(line)["kind"] for line in talk.export()}
    yield sorted(kinds)
    yield [event.kind for event in talk.events(0, until_settled=True)][-1]
    client.create(folder, slug="deleted").delete()
    yield sorted(each.slug for each in client.conversations(archived=True))


def told(client: Any, folder: str) -> Iterator[Any]:
    """What a server says of itself."""
    yield [model.name for model in client.models()]
    yield {"bash", "patch", "read_file"} <= {tool.name.removeprefix("tools/") for tool in client.tools()}
    yield client.quotas()
    yield client.server_info().default_model
    yield folder in client.browse(folder).path
    yield {entry.method for entry in client.audit()} >= {"CreateConversation", "SendMessage"}


def main(address: str, token: str, folder: str) -> None:
    """Print what each part gives."""
    with bedrock.Client(address, token=token, timeout=60) as client:
        for part in (answered, queued, proven, told):
            print(json.dumps([part.__name__, list(part(client, folder))]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
