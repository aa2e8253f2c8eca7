"""Which server the calls of a client go to: looked up again before every further attempt to reach it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from bedrock._shared.channel import call_metadata
from bedrock._shared.settings import Settings
from bedrock.errors import BedrockError

ChannelT = TypeVar("ChannelT")


class Connection(Generic[ChannelT]):
    """Stands for a gRPC channel, and carries every call to the place where the server is at that moment.

    A server that was started again may have another address and another token. `find` is the single place where both
    are decided: it is called when a client is made and, by `look_again`, before each further attempt of a call or a
    stream that did not reach the server. If it returns something else than before, the next calls use a channel to
    there. May be used from several threads.
    """

    def __init__(self, find: Callable[[], Settings], open_channel: Callable[[Settings], ChannelT]) -> None:
        """Find the server and open a channel, which connects with the first call.

        Args:
            find: Returns where the server is, and how to prove who we are.
            open_channel: Opens a channel to there.

        Raises:
            Misconfigured: As `find` does.
        """
        self._find = find
        self._open_channel = open_channel
        self._lock = threading.Lock()
        self.settings = find()
        """Where calls go now."""
        self.metadata = call_metadata(self.settings)
        """What every call carries."""
        self.channels = [open_channel(self.settings)]
        """The channel in use is the last one. Earlier ones may still carry streams; who owns this closes them all."""

    def look_again(self) -> None:
        """Ask `find` once more; if it fails, calls go on to where they went before."""
        with self._lock:
            try:
                found = self._find()
            except BedrockError:
                return
            if found != self.settings:
                self.channels.append(self._open_channel(found))
                self.settings, self.metadata = found, call_metadata(found)

    def unary_unary(self, path: str, *serializers: Any, **options: Any) -> Callable[..., Any]:
        """Make a method of a stub; see `grpc.Channel.unary_unary`."""
        return self._method("unary_unary", path, serializers, options)

    def unary_stream(self, path: str, *serializers: Any, **options: Any) -> Callable[..., Any]:
        """Make a method of a stub; see `grpc.Channel.unary_stream`."""
        return self._method("unary_stream", path, serializers, options)

    def _method(self, kind: str, path: str, serializers: Any, options: Any) -> Callable[..., Any]:
        made: dict[int, Callable[..., Any]] = {}

        def call(request: Any, **arguments: Any) -> Any:
            latest = len(self.channels)
            if latest not in made:
                made[latest] = getattr(self.channels[latest - 1], kind)(path, *serializers, **options)
            return made[latest](request, **arguments)

        return call
