"""Opens gRPC channels with the client's options: keepalive, reconnection delays, TLS and credentials."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from bedrock._shared.settings import proxy_of

if TYPE_CHECKING:
    from bedrock._shared.settings import Settings

# gRPC's own retries are not used, because they exclude large requests, and calls whose responses have begun.
# The class `Attempts` of this package decides about retries instead.
_OPTIONS: list[tuple[str, str | int]] = [
    # While a call is open, gRPC notices a dead connection within 30 + 10 seconds.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # The first and the longest delay, in milliseconds, before gRPC tries a lost connection again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # In spite of the option's name, this is the time limit of one attempt to connect. A distant or busy server needs
    # some time.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Each channel has connections of its own: with gRPC's global pool, closing one client would affect others.
    ("grpc.use_local_subchannel_pool", 1),
]


CONNECT_SECONDS = 2.0
"""How many seconds an attempt to connect with a new channel may take, after a call found no connection.

A new channel is opened because the old one only repeats its last error. If it cannot connect, that error is raised.
"""

CONNECT_ENDS = frozenset(
    {
        grpc.ChannelConnectivity.READY,
        grpc.ChannelConnectivity.TRANSIENT_FAILURE,
        grpc.ChannelConnectivity.SHUTDOWN,
    }
)
"""The channel states in which an attempt to connect is over."""


def open_channel(settings: Settings) -> grpc.Channel:
    """Open a channel for blocking calls. The channel connects at the first call."""
    if credentials := _credentials(settings):
        return grpc.secure_channel(settings.target, credentials, options=_options(settings))
    return grpc.insecure_channel(settings.target, options=_options(settings))


def open_aio_channel(settings: Settings) -> grpc.aio.Channel:
    """Open a channel for the running event loop. The channel connects at the first call."""
    if credentials := _credentials(settings):
        return grpc.aio.secure_channel(settings.target, credentials, options=_options(settings))
    return grpc.aio.insecure_channel(settings.target, options=_options(settings))


def _options(settings: Settings) -> list[tuple[str, str | int]]:
    return [*_OPTIONS, ("grpc.enable_http_proxy", int(bool(proxy_of(settings.target))))]


def has_no_listener(target: str) -> bool:
    """Return whether the target is a Unix socket that is missing or at which no process listens. Never blocks."""
    if not target.startswith("unix:"):
        return False
    path = target.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path.removeprefix("//"))
        except (FileNotFoundError, ConnectionRefusedError):
            return True
        except OSError:  # the server is too busy to accept; gRPC itself reports all other errors
            return False
    return False


def _credentials(settings: Settings) -> grpc.ChannelCredentials | None:
    if settings.tls:
        return grpc.ssl_channel_credentials(settings.ca, settings.key, settings.certificate)
    if settings.target.startswith("unix:"):  # gRPC's local credentials work for Unix sockets only
        return grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
    return None


def call_metadata(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the metadata that every call carries: the bearer token, or nothing if the settings have no token."""
    return (("authorization", f"Bearer {settings.token}"),) if settings.token else ()
