"""The gateway: calls and streams over HTTP beside gRPC, idle streams, and calls of others while strangers storm it."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import grpc
from bedrock import v1

from tests.attacks.http_storms import STORMS
from tests.bench.clients import Clients, on_loop
from tests.bench.figures import Report, cpu_seconds, percentile, rss_mib, spread
from tests.bench.results import ROUNDS
from tests.bench.running_server import RunningServer, provider, running_server
from tests.support.processes import children

CALLS = 500
STREAMING, WATCHERS, PIECES = 10, 100, 50
"""Conversations that stream, watchers of them all, and how many pieces a second each streams."""
WATCH_SECONDS = 6
IDLE = 1_000
STORM_SECONDS = 15


def run(report: Report) -> None:
    with running_server(BEDROCK_HTTP_LISTEN="127.0.0.1:0") as running:
        _calls(report, running)
        on_loop(_idle(report, running))
        for name in STORMS:
            _stormed(report, running, name)
    with provider(flood=PIECES) as url, running_server(url, BEDROCK_HTTP_LISTEN="127.0.0.1:0") as running:
        on_loop(_streams(report, running))


def gateway(running: RunningServer) -> int:
    """The process of a server's gateway."""
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(running.process.pid)}
    return next(pid for pid, command in commands.items() if b"server.gateway" in command)


def place(running: RunningServer) -> tuple[str, int]:
    url = urlsplit((running.data / "gateway").read_text().strip())
    return str(url.hostname), int(url.port or 0)


class Caller:
    """Calls GetServerInfo over HTTP on a connection that stays."""

    def __init__(self, running: RunningServer) -> None:
        self._connection = http.client.HTTPConnection(*place(running), timeout=30)
        self._headers = {"Authorization": f"Bearer {running.token}"}

    def call(self) -> float:
        """Milliseconds of a call."""
        began = time.perf_counter()
        self._connection.request("GET", "/v1/serverInfo", headers=self._headers)
        answer = self._connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        return (time.perf_counter() - began) * 1000


def _calls(report: Report, running: RunningServer) -> None:
    """Both in turn, call by call."""
    over_http, over_grpc = [], []
    caller = Caller(running)
    with grpc.insecure_channel(running.address) as channel:
        stub = v1.CatalogServiceStub(channel)
        for _ in range(CALLS):
            began = time.perf_counter()
            stub.GetServerInfo(v1.GetServerInfoRequest(), metadata=running.metadata)
            over_grpc.append((time.perf_counter() - began) * 1000)
            over_http.append(caller.call())
    more = percentile(over_http, 0.5) - percentile(over_grpc, 0.5)
    ratio = percentile(over_http, 0.5) / percentile(over_grpc, 0.5)
    report.add("http: a call over gRPC", "ms", **spread(over_grpc))
    report.add("http: a call", "ms", **spread(over_http), ratio=round(ratio, 2), more_ms=round(more, 2))


@asynccontextmanager
async def followed(running: RunningServer, name: str) -> AsyncIterator[asyncio.StreamReader]:
    """A stream of the events of a conversation over HTTP, from its first line on."""
    reader, writer = await asyncio.open_connection(*place(running))
    head = f"GET /v1/{name}:subscribe HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {running.token}\r\n\r\n"
    writer.write(head.encode())
    assert b" 200 " in await reader.readline()
    try:
        yield reader
    finally:
        writer.close()


async def _idle(report: Report, running: RunningServer) -> None:
    async with Clients(running) as clients, AsyncExitStack() as opened:
        source = await clients.conversation("demo")
        before = rss_mib(gateway(running))
        for _ in range(IDLE):
            reader = await opened.enter_async_context(followed(running, source.name))
            await reader.readuntil(b"caughtUp")
        memory = rss_mib(gateway(running))
    report.add(f"http: gateway with {IDLE:,} idle streams", "MiB", value=memory, without=before)


def _stormed(report: Report, running: RunningServer, name: str) -> None:
    host, port = place(running)
    command = [sys.executable, "-m", "tests.attacks.http_storms", name, f"{host}:{port}"]
    caller, took = Caller(running), []
    with subprocess.Popen([*command, "--seconds", str(STORM_SECONDS)], stdout=subprocess.PIPE) as storm:
        while storm.poll() is None:
            took.append(caller.call())
            time.sleep(0.02)
        assert storm.stdout is not None
        told = json.loads(storm.stdout.read())
    report.add(f"http: a call of others, storm: {name}", "ms", **spread(took), seen=json.dumps(told))


async def _streams(report: Report, running: RunningServer) -> None:
    """CPU seconds a second of the server, and of the gateway, without watchers and with each kind, in turn."""
    server, front = running.process.pid, gateway(running)
    cost: dict[str, list[tuple[float, float]]] = {"none": [], "gRPC": [], "HTTP": []}
    async with Clients(running) as clients:
        sources = [await clients.conversation("claude-sonnet-4-5") for _ in range(STREAMING)]
        for each in sources:
            await each.send("go on")
        for _ in range(ROUNDS):
            for kind, taken in cost.items():
                async with _watchers(running, [each.name for each in sources], kind):
                    before = cpu_seconds(server), cpu_seconds(front)
                    began = time.perf_counter()
                    await asyncio.sleep(WATCH_SECONDS)
                    took = time.perf_counter() - began
                    after = cpu_seconds(server), cpu_seconds(front)
                taken.append(((after[0] - before[0]) / took, (after[1] - before[1]) / took))
        for each in sources:
            await each.cancel_if_busy()
    none, over_grpc, over_http = (median(each for each, _ in taken) for taken in cost.values())
    of_gateway = median(each for _, each in cost["HTTP"])
    report.add(
        f"http: CPU of {WATCHERS} watchers, of those over gRPC",
        "",
        value=round((over_http - none) / (over_grpc - none), 2),
        server=round(over_http - none, 3),
        grpc=round(over_grpc - none, 3),
        gateway=round(of_gateway, 3),
        of_server=round(of_gateway / (over_http - none), 2),
    )


@asynccontextmanager
async def _watchers(running: RunningServer, names: list[str], kind: str) -> AsyncIterator[None]:
    async with AsyncExitStack() as opened:
        watching = [names[number % len(names)] for number in range(WATCHERS)] if kind != "none" else []
        if kind == "gRPC":  # by the Unix socket, as the gateway's are
            local = grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
            channel = grpc.aio.secure_channel((running.data / "address").read_text().strip(), local)
            stub = v1.ConversationServiceStub(await opened.enter_async_context(channel))
            tasks = [asyncio.create_task(_read_grpc(stub, running, name)) for name in watching]
        else:
            readers = [await opened.enter_async_context(followed(running, name)) for name in watching]
            tasks = [asyncio.create_task(_read(reader)) for reader in readers]
        await asyncio.sleep(1)  # the snapshots are no part of it
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def _read_grpc(stub: v1.ConversationServiceAsyncStub, running: RunningServer, name: str) -> None:
    with suppress(asyncio.CancelledError):
        async for _ in stub.Subscribe(v1.SubscribeRequest(name=name), metadata=running.metadata):
            pass
