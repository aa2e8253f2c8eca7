"""One principal has 1,000 runs: how long another waits for its first text, and for its cancel, with and without them.

All together may have 32 model requests at the same time, of which a principal has 24 at most by default.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bedrock import v1

from tests.bench.clients import Clients, Watched, on_loop
from tests.bench.figures import ROOT, Report, spread
from tests.bench.running_server import RunningServer, clean_environment, provider, running_server

RUNS = 1_000
TIMES = 40
WARM_UP = 5
FIRST = 0.3
"""Seconds that the model takes for its first text, which is quick for one behind an API."""
MODEL = "claude-sonnet-4-5"
SETTINGS = """
[quotas]
concurrent_model_requests = 32
[principals.crowd]
roots = ["{folder}"]
"""


def token(config: Path, data: Path) -> str:
    """Return a token of the principal with all the runs."""
    command = [sys.executable, "-m", "bedrock.cli", "token", "create", "crowd"]
    command += ["--config", str(config), "--data-dir", str(data)]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def crowd(clients: Clients, secret: str, folder: str) -> None:
    """Begin the runs. The slots are busy with them until long after the measurement."""
    metadata = (("authorization", f"Bearer {secret}"),)
    conversation = v1.Conversation(working_directory=folder, model=f"models/{MODEL}", mode=v1.MODE_RESTRICTED)

    async def begin() -> None:
        made = await clients.stub.CreateConversation(
            v1.CreateConversationRequest(conversation=conversation), metadata=metadata
        )
        for _ in range(3):
            message = v1.SendMessageRequest(name=made.conversation.name, text="go on", delivery=v1.DELIVERY_FOLLOW_UP)
            await clients.stub.SendMessage(message, metadata=metadata)

    for _ in range(RUNS // 50):
        await asyncio.gather(*(begin() for _ in range(50)))


async def turns(watched: Watched) -> tuple[list[float], list[float]]:
    """Milliseconds from a message to its first text, and from the cancel then to the idle state."""
    loop = asyncio.get_running_loop()
    texts, cancels = list[float](), list[float]()
    for _ in range(WARM_UP + TIMES):
        began = loop.time()
        await watched.send("go on")
        await watched.streaming.wait()
        texts.append((loop.time() - began) * 1000)
        cancels.append(await watched.cancel())
    return texts[WARM_UP:], cancels[WARM_UP:]


async def measured(running: RunningServer, secret: str, folder: str) -> list[tuple[list[float], list[float]]]:
    async with Clients(running) as clients:
        watched = await clients.conversation(MODEL)
        await watched.watch()
        alone = await turns(watched)
        await crowd(clients, secret, folder)
        beside = await turns(watched)
        await watched.close()
        return [alone, beside]


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder, provider(0.02, first=FIRST) as url:
        config, data = Path(folder, "config.toml"), Path(folder, "data")
        config.write_text(SETTINGS.format(folder=folder))
        with running_server(
            url, data, BEDROCK_CONFIG=str(config), BEDROCK_TITLES="false", BEDROCK_DRAIN_SECONDS="0"
        ) as running:
            alone, beside = on_loop(measured(running, token(config, data), folder))
    for what, before, after in zip(("first text", "cancel → idle seen"), alone, beside, strict=True):
        report.add(f"fairness: {what}, alone", "ms", **spread(before))
        _add(report, f"fairness: {what}, beside {RUNS:,} runs of another", before, after)


def _add(report: Report, name: str, before: Sequence[float], after: Sequence[float]) -> None:
    ratio = sorted(after)[len(after) // 2] / sorted(before)[len(before) // 2]
    report.add(name, "ms", **spread(after), ratio=round(ratio, 2))
