"""Callers of good will while others storm a server: how they fare, on one connection and each time on a new one."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from bedrock import v1

CALL_SECONDS = 5.0
PAUSE_SECONDS = 0.02
NEW_SECONDS = 0.1
"""Pause between two new connections."""


@dataclass
class Service:
    """What the callers have seen."""

    took_ms: list[float] = field(default_factory=list)
    """Of each call on the connection that stays; those that failed included."""
    failed: list[str] = field(default_factory=list)
    """How calls on that connection ended that failed."""
    refused: int = 0
    """New connections without an answer within a second."""
    outage: float = 0.0
    """The longest time without an answer on a new connection, seconds."""


class Callers:
    """Two callers, each on a thread, from `start` to `stop`."""

    def __init__(self, address: str, token: str, certificate: Path | None = None) -> None:
        """`certificate`: what to trust, for an address that begins with https://."""
        self._target = address.removeprefix("https://")
        self._credentials = grpc.ssl_channel_credentials(certificate.read_bytes()) if certificate else None
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._stay, self._come_and_go)]
        self.seen = Service()

    @contextmanager
    def calling(self) -> Iterator[Service]:
        """Call all the while within the block."""
        self.call_once(30)
        for thread in self._threads:
            thread.start()
        try:
            yield self.seen
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()

    def call_once(self, seconds: float) -> None:
        """One call on a new connection, which may take so long to come about. Raises grpc.RpcError."""
        with self._channel() as channel:
            self._call(channel, seconds, wait=True)

    def _channel(self) -> grpc.Channel:
        apart = [("grpc.use_local_subchannel_pool", 1)]
        if self._credentials is None:
            return grpc.insecure_channel(self._target, apart)
        return grpc.secure_channel(self._target, self._credentials, apart)

    def _call(self, channel: grpc.Channel, seconds: float, *, wait: bool = False) -> None:
        request = v1.GetServerInfoRequest()
        stub = v1.CatalogServiceStub(channel)
        stub.GetServerInfo(request, metadata=self._metadata, timeout=seconds, wait_for_ready=wait)

    def _stay(self) -> None:
        with self._channel() as channel:
            while not self._over.wait(PAUSE_SECONDS):
                began = time.perf_counter()
                try:
                    self._call(channel, CALL_SECONDS)
                except grpc.RpcError as error:
                    self.seen.failed.append(str(error))
                self.seen.took_ms.append((time.perf_counter() - began) * 1000)

    def _come_and_go(self) -> None:
        last = time.perf_counter()
        while not self._over.wait(NEW_SECONDS):
            with self._channel() as channel:
                try:
                    self._call(channel, 1.0)
                except grpc.RpcError:
                    self.seen.refused += 1
                else:
                    self._answered(last)
                    last = time.perf_counter()
        self._answered(last)

    def _answered(self, last: float) -> None:
        self.seen.outage = max(self.seen.outage, time.perf_counter() - last)
