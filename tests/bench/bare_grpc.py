"""`python -m tests.bench.bare_grpc …`: the floor of calls and streams, a server on grpc.aio that does nothing else.

It takes the calls that the measurements of watchers and cancels make, answers at once, and sends each watcher one event
for each of them. There is one conversation; nothing is checked, stored or run.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from bedrock import v1
from google.protobuf.timestamp_pb2 import Timestamp

MODULE = "tests.bench.bare_grpc"
PENDING = (("grpc.server.max_pending_requests", 20_000), ("grpc.server.max_pending_requests_hard_limit", 40_000))
"""gRPC would refuse calls of a burst otherwise."""
NOW = Timestamp(seconds=1_800_000_000, nanos=1_000_000)
CONVERSATION = v1.Conversation(
    name="conversations/cw4qtdpgtrdt6fm9",
    slug="calm-dale-cdc3",
    working_directory="/tmp",
    model="models/demo",
    state=v1.ConversationState(kind=v1.STATE_KIND_IDLE, enter_time=NOW),
    mode=v1.MODE_UNRESTRICTED,
    create_time=NOW,
    update_time=NOW,
    revision=1,
    etag="f8fa42d1a67ba4fa",
    approval_policy=v1.APPROVAL_POLICY_AUTO,
    follow_up_policy=v1.FOLLOW_UP_POLICY_ALWAYS,
)
"""As large as one of Bedrock's."""


class Watch:
    """The events that a watcher has not been sent yet, encoded."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._woken = asyncio.Event()

    def add(self, event: bytes) -> None:
        self._waiting.append(event)
        self._woken.set()

    async def next(self) -> bytes:
        """Wait until there are events; remove and return them. Encoded responses that are joined are one response."""
        await self._woken.wait()
        self._woken.clear()
        waiting, self._waiting = self._waiting, []
        return b"".join(waiting)


class BareServer:
    """Answers each call at once. On the event loop."""

    def __init__(self) -> None:
        self._watches: set[Watch] = set()

    async def create_conversation(self, _: v1.CreateConversationRequest, __: Any) -> v1.CreateConversationResponse:
        return v1.CreateConversationResponse(conversation=CONVERSATION)

    async def update_conversation(self, request: v1.UpdateConversationRequest, _: Any) -> v1.UpdateConversationResponse:
        conversation = v1.Conversation()
        conversation.CopyFrom(CONVERSATION)
        conversation.title = request.conversation.title
        self._tell(v1.Event(revision=1, time=NOW, conversation_updated=conversation))
        return v1.UpdateConversationResponse(conversation=conversation)

    async def send_message(self, _: v1.SendMessageRequest, __: Any) -> v1.SendMessageResponse:
        return v1.SendMessageResponse()

    async def cancel_conversation(self, _: v1.CancelConversationRequest, __: Any) -> v1.CancelConversationResponse:
        self._tell(v1.Event(revision=1, time=NOW, state_changed=v1.Event.StateChanged(state=CONVERSATION.state)))
        return v1.CancelConversationResponse(state=CONVERSATION.state)

    async def subscribe(self, _: v1.SubscribeRequest, __: Any) -> AsyncIterator[bytes]:
        watch = Watch()
        self._watches.add(watch)
        try:
            watch.add(_encoded(v1.Event(time=NOW, caught_up=v1.Event.CaughtUp(head_revision=1))))
            while True:
                yield await watch.next()
        finally:
            self._watches.discard(watch)

    def _tell(self, event: v1.Event) -> None:
        encoded = _encoded(event)
        for watch in self._watches:
            watch.add(encoded)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of the methods."""
        unary: dict[str, tuple[Any, Any]] = {
            "CreateConversation": (self.create_conversation, v1.CreateConversationRequest),
            "UpdateConversation": (self.update_conversation, v1.UpdateConversationRequest),
            "SendMessage": (self.send_message, v1.SendMessageRequest),
            "CancelConversation": (self.cancel_conversation, v1.CancelConversationRequest),
        }
        found: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(answer, kind.FromString, _serialized)
            for name, (answer, kind) in unary.items()
        }
        watching: Any = self.subscribe
        found["Subscribe"] = grpc.unary_stream_rpc_method_handler(watching, v1.SubscribeRequest.FromString)
        return grpc.method_handlers_generic_handler("bedrock.v1.ConversationService", found)


def _encoded(event: v1.Event) -> bytes:
    return v1.SubscribeResponse(events=[event]).SerializeToString()


def _serialized(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


def _token_in(data: Path) -> Path:
    """Write a token where clients look for it; nobody asks for it."""
    data.mkdir(parents=True, exist_ok=True)
    (data / "token").write_text("bare")
    return data


async def main() -> None:
    """Serve until SIGTERM; say where in the words of Bedrock's server."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--listen", required=True)
    host = arguments.parse_args().listen.rpartition(":")[0]
    server = grpc.aio.server(options=PENDING)
    server.add_generic_rpc_handlers((BareServer().handlers(),))
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    print(f"bare ready on bare and {host}:{port} (data {_token_in(Path(os.environ['BEDROCK_DATA_DIR']))})", flush=True)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
