"""gRPC without any client of ours: sends with request ids, and watches streams that it resumes by revision itself."""

import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import grpc
from bedrock import v1
from google.protobuf.message import Message

from tests.soak.clients import SoakClient

T = TypeVar("T")

TIMEOUT = 10.0
AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED}


def fingerprint(event: v1.Event) -> str:
    """What an event told, for a comparison with what is told later; empty if it tells the present."""
    if not event.revision or event.HasField("conversation_updated"):
        return ""
    return hashlib.sha256(event.SerializeToString(deterministic=True)).hexdigest()[:24]


class RawClient(SoakClient):
    """One conversation after the other, each with a watcher from its first revision on."""

    kind = "grpc"

    def open(self) -> None:
        self._channel = grpc.insecure_channel(self.site.address, options=[("grpc.max_reconnect_backoff_ms", 500)])
        self._stub = v1.ConversationServiceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {self.site.token}"),)

    def close(self) -> None:
        self._channel.close()

    def act(self) -> None:
        request = v1.CreateConversationRequest(
            conversation=v1.Conversation(working_directory=str(self.site.folder), mode=v1.MODE_UNRESTRICTED),
            request_id=self.request_id(),
        )
        created = self._call(self._stub.CreateConversation, request)
        if created is None:
            return
        name = created.conversation.name
        self.journal.write("created", conversation=name)
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(name, over))
        watcher.start()
        try:
            for _ in range(self.random.randint(3, 8)):
                if not self.stopping.is_set():
                    self._say(name)
        finally:
            over.set()
            watcher.join()

    def _say(self, name: str) -> None:
        token, what = self.token(), self.what()
        text = f"#do {what} {token}"
        self.journal.write("sending", conversation=name, token=token)
        message = v1.SendMessageRequest(
            name=name, text=text, request_id=self.request_id(), delivery=v1.DELIVERY_FOLLOW_UP
        )
        sent = self._call(self._stub.SendMessage, message)
        if sent is None:
            return
        self.journal.write("accepted", conversation=name, token=token, message=sent.message.name, delivery="follow_up")
        self.stopping.wait(self.random.random() * 0.5)
        if what == "hang" or self.random.random() < 0.3:
            self._call(self._stub.CancelConversation, v1.CancelConversationRequest(name=name))

    def _call(self, method: Callable[..., T], request: Message) -> T | None:
        """Its answer; None if it was refused, or if the round ends first."""
        while True:
            try:
                return method(request, metadata=self._metadata, timeout=TIMEOUT)
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNKNOWN):
                    self.journal.write("fault", error=f"{error.code().name}: {error.details()}")
                if error.code() not in AGAIN or self.stopping.wait(0.05):
                    return None

    def _watch(self, name: str, over: threading.Event) -> None:
        """Note every durable event; go on after the last revision whenever the stream breaks."""
        revision = 0
        while not over.is_set() and not self.stopping.is_set():
            request = v1.SubscribeRequest(name=name, after_revision=revision, omit_deltas=True, until_settled=True)
            with suppress(grpc.RpcError):
                for response in self._stub.Subscribe(request, metadata=self._metadata, timeout=TIMEOUT):
                    for event in response.events:
                        if event.revision:
                            revision = event.revision
                            self.journal.write("told", conversation=name, revision=revision, what=fingerprint(event))
            over.wait(0.05)
