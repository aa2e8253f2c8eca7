"""A program as a user of the client might write it: run, and type-checked, where only the client's wheel is installed.

It talks to the server that BEDROCK_ADDRESS and BEDROCK_TOKEN name, whose model is the demo model.
"""

import asyncio
import json
import sys
from importlib.metadata import version
from importlib.util import find_spec
from typing import assert_type

import bedrock
from bedrock import Answer, Approval, AsyncClient, Client, Event, Run, Stream
from bedrock.errors import RunInterrupted


def stream(client: Client) -> list[str]:
    """Send a message and return the kinds of what happened."""
    conversation = client.create(".")
    run = assert_type(conversation.send("run echo streamed"), Run)
    kinds: list[str] = []
    with run:
        for event in run:
            assert_type(event, Event)
            assert_type(event.text, str)
            kinds.append(event.kind)
    with conversation.events(until_settled=True) as events:
        assert_type(events, Stream[Event])
        kinds += [event.kind for event in events]
    return kinds


def only_reads(approval: Approval) -> bool:
    """Approve what changes nothing."""
    return assert_type(approval.tool, str) == "bash" and "echo" in str(approval.input)


def approve(client: Client) -> list[str]:
    """Ask what needs approvals: with a no, with a function, and in general."""
    denied = bedrock.ask("run echo a", approval_policy="ask_all", on_approval="deny")
    decided = client.ask("run echo b", approval_policy="ask_all", on_approval=only_reads)
    return [denied, decided, bedrock.ask("run echo c", approval_policy="ask_all", on_approval="approve")]


def cancel(client: Client) -> str:
    """Cancel a run and return how it ended."""
    conversation = client.create(".")
    run = conversation.send("run sleep 60")
    for event in run:
        if event.state and event.state.kind == "tool_executing":
            conversation.cancel(run=run.name)
    try:
        return run.answer()
    except RunInterrupted:
        return run.stop.reason if run.stop else ""


async def at_once() -> tuple[Answer, Answer]:
    """Ask two things at the same time."""
    async with AsyncClient() as client:
        return await asyncio.gather(client.ask("run echo one"), client.ask("run echo two"))


def main() -> None:
    """Do all of it, and print what came of it."""
    with Client() as client:
        answer = client.ask("run echo hello", working_directory=".")
        assert_type(answer.usage.output_tokens, int)
        told = {
            "protobuf": version("protobuf"),
            "home": bedrock.__file__,
            "found": [name for name in ("server", "actors", "tests") if find_spec(name)],
            "answer": answer,
            "tokens": answer.usage.output_tokens,
            "again": client.conversation(answer.conversation).ask("run echo again"),
            "streamed": stream(client),
            "approved": approve(client),
            "cancelled": cancel(client),
            "at once": asyncio.run(at_once()),
        }
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
