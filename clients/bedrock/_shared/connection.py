"""Opens gRPC channels with the client's options, and looks the server's address up again before every retry."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from bedrock._shared.settings import Settings, proxy_of
from bedrock.errors import ServerNotRunning

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
    # Despite the option's name, this is the time limit of one attempt to connect. A distant or busy server needs
    # some time.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Each channel has its own connections: with gRPC's global pool, closing one client would affect others.
    ("grpc.use_local_subchannel_pool", 1),
]


# A channel that failed to connect repeats its last error until it tries again. Another channel is therefore opened, and
# has this many seconds to connect.
CONNECT_SECONDS = 2.0

# The channel states in which an attempt to connect is over.
CONNECT_ENDS = frozenset(
    {grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN}
)


def open_channel(settings: Settings) -> grpc.Channel:
    """Open a channel for blocking calls. The channel connects at the first call."""
    if credentials := _credentials(settings):
        return grpc.secure_channel(settings.target, credentials, options=_options(settings))
    return grpc.insecure_channel(settings.target, options=_options(settings))


def open_aio_channel(settings: Settings) -> grpc.aio.Channel:
    if credentials := _credentials(settings):
        return grpc.aio.secure_channel(settings.target, credentials, options=_options(settings))
    return grpc.aio.insecure_channel(settings.target, options=_options(settings))


def _options(settings: Settings) -> list[tuple[str, str | int]]:
    return [*_OPTIONS, ("grpc.enable_http_proxy", int(bool(proxy_of(settings.target))))]


def has_no_listener(target: str) -> bool:
    """Whether the target is a Unix socket that is missing or at which no process listens. Never blocks."""
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
    """The metadata that every call carries: the bearer token, or nothing if the settings have no token."""
    return (("authorization", f"Bearer {settings.token}"),) if settings.token else ()


ChannelT = TypeVar("ChannelT")


@dataclass(frozen=True, slots=True)
class _Route(Generic[ChannelT]):
    """The address, credentials and channel for calls, kept together because a token must never go to another server."""

    settings: Settings
    channel: ChannelT
    methods: dict[str, Callable[..., Any]] = field(default_factory=dict)


class Connection(Generic[ChannelT]):
    """A gRPC channel to the server's current address. Thread-safe.

    A restarted server may have another address and token. `find` returns both. It is called once at the start and, by
    `look_again`, after every attempt that did not reach the server.
    """

    def __init__(self, find: Callable[[], Settings], open_channel: Callable[[Settings], ChannelT]) -> None:
        """Look up the server and open a channel, which connects at the first call.

        If no server is found, calls fail. Raises Misconfigured, as `find` does.
        """
        self._find = find
        self._open_channel = open_channel
        self._lock = threading.Lock()
        self._route: _Route[ChannelT] | None = None
        self.channels: list[ChannelT] = []
        """All channels. Calls use the last one; earlier ones may still carry streams.

        The transport closes all of them.
        """
        self.look_again()

    @property
    def address(self) -> str:
        """The address that calls go to; "" until a server is found."""
        return self._route.settings.target if self._route else ""

    @property
    def token_source(self) -> str:
        """Where the token came from, for error messages; "" if calls carry no token."""
        return self._route.settings.token_source if self._route else ""

    def look_again(self) -> bool:
        """Call `find` again; return whether the destination changed. Raises Misconfigured."""
        with self._lock, suppress(ServerNotRunning):
            before = self._route
            return self._found() is not before
        return False

    def candidate(self) -> tuple[Settings, ChannelT]:
        """Open a channel to the server's current address, for `use`.

        A channel that failed to connect repeats its last error, but a new one tries immediately. Raises Misconfigured,
        or ServerNotRunning (also if the server's socket exists, but no process listens on it).
        """
        settings = self._find()
        if has_no_listener(settings.target):  # a channel opened in vain takes 0.2 s to close
            raise ServerNotRunning(f"no Bedrock server is running: no process is listening on {settings.target}")
        return settings, self._open_channel(settings)

    def use(self, settings: Settings, channel: ChannelT) -> None:
        """Send all following calls through this channel, and add it to `channels`."""
        with self._lock:
            self._route = _Route(settings, channel)
            self.channels.append(channel)

    def unary_unary(self, path: str, *serializers: Any, **options: Any) -> Callable[..., Any]:
        """A callable for one unary method of a gRPC stub; see `grpc.Channel.unary_unary`."""
        return self._method("unary_unary", path, serializers, options)

    def unary_stream(self, path: str, *serializers: Any, **options: Any) -> Callable[..., Any]:
        """A callable for one streaming method of a gRPC stub; see `grpc.Channel.unary_stream`."""
        return self._method("unary_stream", path, serializers, options)

    def _method(self, kind: str, path: str, serializers: Any, options: Any) -> Callable[..., Any]:
        def call(request: Any, **arguments: Any) -> Any:
            route = self._route
            if route is None:
                with self._lock:
                    route = self._found()
            method = route.methods.get(path)
            if method is None:
                method = route.methods[path] = getattr(route.channel, kind)(path, *serializers, **options)
            return method(request, metadata=call_metadata(route.settings), **arguments)

        return call

    def _found(self) -> _Route[ChannelT]:
        """Look up the server and return the route to it, with a new channel if it has changed.

        The caller holds the lock. Raises what `find` raises.
        """
        settings = self._find()
        if self._route is None or self._route.settings != settings:
            self._route = _Route(settings, self._open_channel(settings))
            self.channels.append(self._route.channel)
        return self._route
