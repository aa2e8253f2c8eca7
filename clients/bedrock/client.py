"""The blocking client: the way to a server and what can be done without naming a conversation."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc

from bedrock import _requests, v1
from bedrock._channel import call_metadata, open_channel
from bedrock._names import resource_name
from bedrock._reconnection import Attempts, repeatable
from bedrock._settings import resolve
from bedrock._status import from_rpc
from bedrock.answers import Answer, Approve, decider
from bedrock.conversation import Conversation
from bedrock.errors import BedrockError, Unavailable
from bedrock.streams import Stream

if TYPE_CHECKING:
    from bedrock._settings import Settings

__all__ = ["Client", "ask"]

Response = TypeVar("Response")
PageT = TypeVar("PageT", bound=_requests.Page)


class Client:
    """A connection to a Bedrock server. May be used from several threads; close it when done.

    Example::

        with Client() as client:
            conversation = client.create(working_directory=".")
            for event in conversation.send("What is in this directory?"):
                if event.kind == "text_delta":
                    print(event.text, end="")
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        reconnect_for: float = 300.0,
        on_disconnect: Callable[[BedrockError, float], None] | None = None,
    ) -> None:
        """Prepare the connection; it is made by the first call.

        Args:
            address: ``host:port`` or ``https://host:port``. If not given, BEDROCK_ADDRESS, then what a server on this
                machine wrote into its data directory, then 127.0.0.1:7421.
            token: The bearer token. If not given, BEDROCK_TOKEN, then, for a server on this machine, its token file.
            ca_file: Certificates to trust instead of those of the system. If not given, BEDROCK_CA_FILE.
            timeout: Seconds that one call may take. Streams of events have no such limit.
            reconnect_for: Seconds after which a stream of events that cannot be resumed is given up.
            on_disconnect: Called with the error and the seconds until the next attempt whenever a stream of events was
                cut and will be resumed, on the thread that iterates.

        Raises:
            Misconfigured: The token would be sent in the clear to another machine, or a file cannot be read.
        """
        self._settings: Settings = resolve(address, token, ca_file)
        self._timeout = timeout
        self.reconnect_for = reconnect_for
        self.on_disconnect = on_disconnect
        self._metadata = call_metadata(self._settings)
        self._channel = open_channel(self._settings)
        self._closed = threading.Event()
        self.conversations_stub = v1.ConversationServiceStub(self._channel)
        """The stub of ConversationService, for calls that this class does not offer."""
        self.catalog_stub = v1.CatalogServiceStub(self._channel)
        """The stub of CatalogService."""

    @property
    def address(self) -> str:
        """What is connected to."""
        return self._settings.target

    def close(self) -> None:
        """Close the connection and end every stream of events that is still open. The runs go on."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create(
        self,
        working_directory: str | os.PathLike[str] | None = None,
        *,
        model: str | None = None,
        slug: str = "",
        title: str = "",
        mode: str | None = None,
        approval_policy: str | None = None,
        follow_up_policy: str | None = None,
        labels: Mapping[str, str] | None = None,
        budget: v1.Budget | None = None,
        request_id: str | None = None,
    ) -> Conversation:
        """Create a conversation. Nothing runs before a message is sent.

        Args:
            working_directory: A directory of the server's machine; the current one of this process if None.
            model: The server's default if None.
            slug: A readable handle; the server makes one up if empty.
            title: A title for people.
            mode: "restricted" or "unrestricted"; restricted where the server can keep it if None.
            approval_policy: "auto", "ask_writes" or "ask_all"; the server's default if None.
            follow_up_policy: "always" or "completed_only"; the server's default if None.
            labels: Free for your use.
            budget: What may be spent.
            request_id: The id to use again if this call is repeated; made up if None.

        Raises:
            InvalidArgument: Also WorkingDirectoryInvalid and ModelUnavailable.
            SlugTaken, ModeUnavailable, PermissionDenied, Unavailable: As their names say.
        """
        request = _requests.create(
            working_directory,
            model=model,
            slug=slug,
            title=title,
            mode=mode,
            approval_policy=approval_policy,
            follow_up_policy=follow_up_policy,
            labels=labels,
            budget=budget,
            request_id=request_id,
        )
        created = self.call(self.conversations_stub.CreateConversation, request).conversation
        return Conversation(self, created.name)

    def ask(
        self,
        text: str,
        *,
        working_directory: str | os.PathLike[str] | None = None,
        model: str | None = None,
        mode: str | None = None,
        approval_policy: str | None = None,
        images: _requests.ImageSource | Sequence[_requests.ImageSource] = (),
        approve: Approve | None = None,
    ) -> Answer:
        """Ask in a new conversation and wait for the answer, a `str` that also has `run`, `conversation` and `usage`.

        The conversation is kept: ``client.conversation(answer.conversation).ask("And …?")`` goes on in it.

        Args:
            text: What to say.
            working_directory, model, mode, approval_policy: As for `create`.
            images, approve: As for `Conversation.ask`.

        Raises:
            ApprovalNeeded: An approval is asked and `approve` was not given.
            RunFailed, RunInterrupted: As for `Run.answer`.
            InvalidArgument, ModeUnavailable, PermissionDenied, Unavailable: As for `create`.
        """
        pictures, decide = _requests.pictures(images), decider(approve)
        conversation = self.create(working_directory, model=model, mode=mode, approval_policy=approval_policy)
        return conversation.ask(text, images=pictures, approve=decide)

    def conversation(self, name: str) -> Conversation:
        """Return a conversation by its slug, id or resource name. Nothing is called."""
        return Conversation(self, resource_name("conversations", name))

    def conversations(self, *, archived: bool = False, parent: str = "") -> Iterator[v1.Conversation]:
        """Iterate over the conversations, the latest changed first.

        Args:
            archived: Show the archived ones instead.
            parent: Show the sub-agents of this conversation instead.
        """
        request = _requests.conversations(archived=archived, parent=parent)
        for page in self.pages(self.conversations_stub.ListConversations, request):
            yield from page.conversations

    def watch_conversations(
        self, *, changes_only: bool = False, include_sub_agents: bool = False
    ) -> Stream[v1.WatchConversationsResponse]:
        """Follow the list of conversations. Ends with an error when the connection breaks; then start again.

        Args:
            changes_only: Leave out what exists already.
            include_sub_agents: Show sub-agents, too.
        """
        request = v1.WatchConversationsRequest(changes_only=changes_only, include_sub_agents=include_sub_agents)
        return self.stream(self.conversations_stub.WatchConversations, request)

    def models(self) -> list[v1.Model]:
        """Return the models that conversations can use now."""
        return list(self.call(self.catalog_stub.ListModels, v1.ListModelsRequest()).models)

    def tools(self) -> list[v1.Tool]:
        """Return the tools that agents can call."""
        return list(self.call(self.catalog_stub.ListTools, v1.ListToolsRequest()).tools)

    def server_info(self) -> v1.GetServerInfoResponse:
        """Return the version of the server, what its sandbox can do, and its limits."""
        return self.call(self.catalog_stub.GetServerInfo, v1.GetServerInfoRequest())

    def browse(self, path: str = "") -> v1.BrowseDirectoryResponse:
        """Return what a directory of the server's machine contains; the home directory of its user if empty."""
        return self.call(self.catalog_stub.BrowseDirectory, v1.BrowseDirectoryRequest(path=path))

    def call(self, method: Callable[..., Response], request: Any) -> Response:
        """Make one call with a method of a stub, with token, time limit and the errors of this package.

        It is tried again if the server goes away meanwhile and that can do no harm.
        """
        attempts, until = Attempts(last=not repeatable(request)), time.monotonic() + self._timeout
        while True:
            self._ensure_open()
            try:
                return method(request, timeout=max(0.0, until - time.monotonic()), metadata=self._metadata)
            except grpc.RpcError as error:
                failure = from_rpc(error, self.address)
            self.pause(attempts.delay_after(failure))

    def pages(self, method: Callable[..., PageT], request: Any) -> Iterator[PageT]:
        """Call a method that lists something, page after page to the last; the token in the request is moved on."""
        while True:
            page = self.call(method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def stream(self, method: Callable[..., Iterator[Response]], request: Any) -> Stream[Response]:
        """Make a call that answers with a stream, when the first response is asked for; closing it cancels the call."""
        return Stream(self._responses(method, request))

    def _responses(self, method: Callable[..., Iterator[Response]], request: Any) -> Generator[Response]:
        attempts = Attempts()
        while True:
            self._ensure_open()
            call: Any = method(request, metadata=self._metadata)
            try:
                for response in call:
                    attempts.last = True
                    yield response
                return
            except grpc.RpcError as error:
                failure = from_rpc(error, self.address)
            finally:
                call.cancel()
            self.pause(attempts.delay_after(failure))

    def pause(self, seconds: float) -> None:
        """Wait, but not longer than until the client is closed.

        Raises:
            Unavailable: The client is closed.
        """
        self._closed.wait(seconds)
        self._ensure_open()

    def _ensure_open(self) -> None:
        if self._closed.is_set():
            raise Unavailable("this client is closed")


def ask(
    text: str,
    *,
    working_directory: str | os.PathLike[str] | None = None,
    model: str | None = None,
    mode: str | None = None,
    approval_policy: str | None = None,
    images: _requests.ImageSource | Sequence[_requests.ImageSource] = (),
    approve: Approve | None = None,
) -> Answer:
    """Ask the server that the environment names, or that of this machine; as `Client.ask` with a client of its own."""
    with Client() as client:
        return client.ask(
            text,
            working_directory=working_directory,
            model=model,
            mode=mode,
            approval_policy=approval_policy,
            images=images,
            approve=approve,
        )
