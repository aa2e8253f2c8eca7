"""Keeps the connection of a client to the server, and looks the server's address up again before every retry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bedrock._shared.channel import call_metadata, has_no_listener
from bedrock._shared.settings import Settings
from bedrock.errors import ServerNotRunning

ChannelT = TypeVar("ChannelT")


@dataclass(frozen=True, slots=True)
class _Route(Generic[ChannelT]):
    """The address, credentials and channel of calls in one object, so that a token never goes to the wrong server."""

    settings: Settings
    channel: ChannelT
    methods: dict[str, Callable[..., Any]] = field(default_factory=dict)


class Connection(Generic[ChannelT]):
    """A gRPC channel that sends every call to the server's present address. Safe to use from several threads.

    A server that was restarted may have another address and another token. The function `find` alone decides both: it
    is called when a client is made and, by `look_again`, before every further attempt of a call or stream that did not
    reach the server. If `find` returns other settings than before, the next calls use a new channel with them.
    """

    def __init__(self, find: Callable[[], Settings], open_channel: Callable[[Settings], ChannelT]) -> None:
        """Look up the server and open a channel, which connects at the first call. If no server is found, calls fail.

        Args:
            find: Returns the address of the server and the credentials.
            open_channel: Opens a channel to that address.

        Raises:
            Misconfigured: `find` raised it.
        """
        self._find = find
        self._open_channel = open_channel
        self._lock = threading.Lock()
        self._route: _Route[ChannelT] | None = None
        self.channels: list[ChannelT] = []
        """All channels that were opened.

        Calls use the last one; earlier ones may still carry streams. The owner of this connection closes all of them.
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
        """Call `find` again, and return whether the destination changed. If no server is found, nothing changes.

        Raises:
            Misconfigured: `find` raised it.
        """
        with self._lock, suppress(ServerNotRunning):
            before = self._route
            return self._found() is not before
        return False

    def candidate(self) -> tuple[Settings, ChannelT]:
        """Open a channel to the present address of the server; it carries no calls until it is passed to `use`.

        A channel that failed to connect repeats its last error until it tries again; a new channel tries at once.

        Raises:
            Misconfigured, ServerNotRunning: `find` raised it.
            ServerNotRunning: No process listens at the Unix socket.
        """
        settings = self._find()
        if has_no_listener(settings.target):  # a channel opened in vain takes 0.2 s to close
            raise ServerNotRunning(f"no Bedrock server is running: no process listens at {settings.target}")
        return settings, self._open_channel(settings)

    def use(self, settings: Settings, channel: ChannelT) -> None:
        """Send all following calls through this channel, and add it to `channels`."""
        with self._lock:
            self._route = _Route(settings, channel)
            self.channels.append(channel)

    def unary_unary(self, path: str, *serializers: Any, **options: Any) -> Callable[..., Any]:
        """Return a callable for one unary method of a gRPC stub; see `grpc.Channel.unary_unary`."""
        return self._method("unary_unary", path, serializers, options)

    def unary_stream(self, path: str, *serializers: Any, **options: Any) -> Callable[..., Any]:
        """Return a callable for one streaming method of a gRPC stub; see `grpc.Channel.unary_stream`."""
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
        """Look the server up, and return the route to it, with a new channel if its address or credentials changed.

        The caller holds the lock. Raises what `find` raises.
        """
        settings = self._find()
        if self._route is None or self._route.settings != settings:
            self._route = _Route(settings, self._open_channel(settings))
            self.channels.append(self._route.channel)
        return self._route
