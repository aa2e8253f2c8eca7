"""Whether memory levels off: resident memory while short conversations come and go to sleep."""

import asyncio

from bedrock import v1

from tests.bench.clients import Clients, on_loop
from tests.bench.figures import Report, rss_mib
from tests.bench.running_server import RunningServer, provider, running_server
from tests.support.processes import threads

ROUNDS = 4
CONVERSATIONS = 500
AT_ONCE = 16
AWAKE = 60
"""Threads of a server whose conversations sleep, or nearly all of them."""


def run(report: Report) -> None:
    with provider() as url, running_server(url, BEDROCK_IDLE_SECONDS="1") as running:
        seen = on_loop(_rounds(running))
    per_thousand = round((seen[-1] - seen[-2]) * 1000 / CONVERSATIONS, 1)
    report.add(
        f"memory after {ROUNDS * CONVERSATIONS:,} short conversations",
        "MiB",
        value=seen[-1],
        at_first=seen[0],
        last_rise_per_1000=per_thousand,
    )


async def _rounds(running: RunningServer) -> list[float]:
    """Resident memory after each round, MiB."""
    seen = []
    async with Clients(running) as clients:
        for _ in range(ROUNDS):
            gate = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(_converse(clients, running, gate) for _ in range(CONVERSATIONS)))
            while threads(running.process.pid) > AWAKE:
                await asyncio.sleep(0.1)
            seen.append(rss_mib(running.process.pid))
    return seen


async def _converse(clients: Clients, running: RunningServer, gate: asyncio.Semaphore) -> None:
    """One turn of a conversation of its own, watched to its end."""
    async with gate:
        stub, metadata = clients.stub, running.metadata
        request = v1.CreateConversationRequest(conversation=v1.Conversation(working_directory=str(running.data.parent)))
        made = (await stub.CreateConversation(request, metadata=metadata)).conversation
        await stub.SendMessage(v1.SendMessageRequest(name=made.name, text="hello"), metadata=metadata)
        busy = True
        while busy:
            await asyncio.sleep(0.02)
            found = await stub.GetConversation(v1.GetConversationRequest(name=made.name), metadata=metadata)
            busy = found.conversation.state.busy
