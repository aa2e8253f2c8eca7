"""Options of the gRPC channel: keepalive, reconnection, TLS, credentials."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import grpc
import grpc.aio

if TYPE_CHECKING:
    from bedrock._shared.settings import Settings

#: gRPC's own retries are not used, because they exclude large requests and responses that have begun: see `Attempts`.
_OPTIONS: list[tuple[str, str | int]] = [
    # While a call is open a dead connection is noticed after 30 + 10 seconds at most.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # The first and the longest delay before a lost connection is tried again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # In spite of its name, the time limit of one attempt to connect: a distant or busy server needs some time.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # With gRPC's global connection pool, closing one client would affect others.
    ("grpc.use_local_subchannel_pool", 1),
]


CONNECT_SECONDS = 2.0
"""Seconds to try a new connection before a failure is raised: a failed channel only repeats its last error."""

CONNECT_ENDS = frozenset(
    {
        grpc.ChannelConnectivity.READY,
        grpc.ChannelConnectivity.TRANSIENT_FAILURE,
        grpc.ChannelConnectivity.SHUTDOWN,
    }
)
"""The channel states that end an attempt to connect."""


def open_channel(settings: Settings) -> grpc.Channel:
    """Open a channel for blocking calls. It connects with the first call."""
    if credentials := _credentials(settings):
        return grpc.secure_channel(settings.target, credentials, options=_OPTIONS)
    return grpc.insecure_channel(settings.target, options=_OPTIONS)


def open_aio_channel(settings: Settings) -> grpc.aio.Channel:
    """Open a channel for the running event loop. It connects with the first call."""
    if credentials := _credentials(settings):
        return grpc.aio.secure_channel(settings.target, credentials, options=_OPTIONS)
    return grpc.aio.insecure_channel(settings.target, options=_OPTIONS)


def has_no_listener(target: str) -> bool:
    """Return whether the target is a Unix socket that is missing or stale. Neither sends nor blocks."""
    if not target.startswith("unix:"):
        return False
    path = target.removeprefix("unix:")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path.removeprefix("//"))
        except (FileNotFoundError, ConnectionRefusedError):
            return True
        except OSError:  # a server that is too busy to accept; gRPC reports all other errors
            return False
    return False


def _credentials(settings: Settings) -> grpc.ChannelCredentials | None:
    if settings.tls:
        return grpc.ssl_channel_credentials(settings.ca, settings.key, settings.certificate)
    if settings.target.startswith("unix:"):  # local credentials are for Unix sockets only
        return grpc.local_channel_credentials(grpc.LocalConnectionType.UDS)
    return None


def call_metadata(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the metadata of every call: the bearer token, if there is one."""
    return (("authorization", f"Bearer {settings.token}"),) if settings.token else ()
