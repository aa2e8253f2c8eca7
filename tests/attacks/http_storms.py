"""What a stranger can do to the gateway: `python -m tests.attacks.http_storms NAME HOST:PORT --seconds S`.

Each storm prints how many connections it had, and how the requests of attackers were answered.
"""

import argparse
import asyncio
import json
from collections import Counter
from contextlib import suppress

MANY = 1_000
HEAD = b"GET /v1/serverInfo HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
DEEP = b"[" * 60_000
REQUESTS = {
    "rebinding": HEAD.replace(b"localhost", b"attacker.example") + b"\r\n",
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    "smuggled": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "split header": HEAD + b"X: a\nb\r\n\r\n",
    "split path": b"GET /v1/models%0d%0aX:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "dots": HEAD.replace(b"serverInfo", b"conversations/%2e%2e%2f%2e%2e%2fetc") + b"\r\n",
    "slash": HEAD.replace(b"serverInfo", b"conversations/a%2Fb") + b"\r\n",
    "NUL": HEAD.replace(b"serverInfo", b"conversations/a%00b") + b"\r\n",
    "deep JSON": POST + b"Content-Length: %d\r\n\r\n%s" % (len(DEEP), DEEP),
    "bomb": POST + b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\n\x1f\x8b\x08\0\0\0\0\0\0",
    "large head": HEAD + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
    "large body": POST + b"Content-Length: 99999999999\r\n\r\n",
}


async def silent(host: str, port: int, seconds: float) -> dict[str, int]:
    """Have a thousand connections that send nothing."""
    return await _crowd(host, port, seconds, b"")


async def slow(host: str, port: int, seconds: float) -> dict[str, int]:
    """Have a thousand connections whose requests come by a byte a second."""
    return await _crowd(host, port, seconds, HEAD)


async def hostile(host: str, port: int, seconds: float) -> dict[str, int]:
    """Send all requests of attackers, one after the other, each on a connection of its own."""
    told: Counter[str] = Counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                for kind, request in REQUESTS.items():
                    told[f"{kind}: {await answer(host, port, request)}"] += 1
    return dict(told)


async def answer(host: str, port: int, request: bytes) -> str:
    """Return the status of the answer to a request; "closed" if the connection was closed without one."""
    reader, writer = await asyncio.open_connection(host, port)
    line = b""
    with suppress(ConnectionError):
        writer.write(request.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n", 1))
        await writer.drain()
    with suppress(ConnectionError):
        line = await reader.readline()
    writer.close()
    return line.split()[1].decode() if line else "closed"


async def _crowd(host: str, port: int, seconds: float, head: bytes) -> dict[str, int]:
    told: Counter[str] = Counter()

    async def one() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError:
                told["refused"] += 1
                await asyncio.sleep(0.1)
                continue
            told["opened"] += 1
            sending = asyncio.create_task(_dribble(writer, head))
            with suppress(ConnectionError):
                told["answered" if await reader.read() else "closed"] += 1
            sending.cancel()
            writer.close()

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as crowd:
            for _ in range(MANY):
                crowd.create_task(one())
    return dict(told)


async def _dribble(writer: asyncio.StreamWriter, head: bytes) -> None:
    with suppress(ConnectionError):
        for byte in head:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(1)


STORMS = {"silent": silent, "slow": slow, "hostile": hostile}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("name", choices=STORMS)
    arguments.add_argument("address")
    arguments.add_argument("--seconds", type=float, required=True)
    given = arguments.parse_args()
    host, _, port = given.address.rpartition(":")
    print(json.dumps(asyncio.run(STORMS[given.name](host, int(port), given.seconds))))


if __name__ == "__main__":
    main()
