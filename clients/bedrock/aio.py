"""The client for asyncio.

Everything is as in the blocking client, with ``await`` and ``async for``::

    async with AsyncClient() as client:
        conversation = await client.create(working_directory=".")
        async for event in conversation.send("What is in this directory?"):
            if event.kind == "text_delta":
                print(event.text, end="")

Methods without a word about their arguments take those of their twins in `bedrock.client`, and raise the same.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from bedrock import _requests, v1
from bedrock._channel import call_metadata, open_aio_channel
from bedrock._names import resource_name
from bedrock._reconnection import Attempts, repeatable
from bedrock._settings import resolve
from bedrock._status import from_rpc
from bedrock.aio_conversation import AsyncConversation
from bedrock.answers import Answer, AsyncApprove, decider
from bedrock.errors import BedrockError, Unavailable
from bedrock.streams import AsyncStream

__all__ = ["AsyncClient"]

Response = TypeVar("Response")
PageT = TypeVar("PageT", bound=_requests.Page)


class AsyncClient:
    """A connection to a Bedrock server, for one event loop. Close it when done."""

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
        """Prepare the connection, inside of a running event loop; it is made by the first call.

        The arguments are those of `Client`; `on_disconnect` is called on the event loop.
        """
        self._settings = resolve(address, token, ca_file)
        self._timeout = timeout
        self.reconnect_for = reconnect_for
        self.on_disconnect = on_disconnect
        self._metadata = call_metadata(self._settings)
        self._channel = open_aio_channel(self._settings)
        self._closed = asyncio.Event()
        self.conversations_stub = v1.ConversationServiceStub(self._channel)
        """The stub of ConversationService, for calls that this class does not offer."""
        self.catalog_stub = v1.CatalogServiceStub(self._channel)
        """The stub of CatalogService."""

    @property
    def address(self) -> str:
        """What is connected to."""
        return self._settings.target

    async def close(self) -> None:
        """Close the connection and end every stream of events that is still open. The runs go on."""
        self._closed.set()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create(
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
    ) -> AsyncConversation:
        """Create a conversation."""
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
        created = (await self.call(self.conversations_stub.CreateConversation, request)).conversation
        return AsyncConversation(self, created.name)

    async def ask(
        self,
        text: str,
        *,
        working_directory: str | os.PathLike[str] | None = None,
        model: str | None = None,
        mode: str | None = None,
        approval_policy: str | None = None,
        images: _requests.ImageSource | Sequence[_requests.ImageSource] = (),
        approve: AsyncApprove | None = None,
    ) -> Answer:
        """Ask in a new conversation and wait for the answer. If the task is cancelled meanwhile, so is the run."""
        pictures, decide = _requests.pictures(images), decider(approve)
        conversation = await self.create(working_directory, model=model, mode=mode, approval_policy=approval_policy)
        return await conversation.ask(text, images=pictures, approve=decide)

    def conversation(self, name: str) -> AsyncConversation:
        """Return a conversation by its slug, id or resource name. Nothing is called."""
        return AsyncConversation(self, resource_name("conversations", name))

    async def conversations(self, *, archived: bool = False, parent: str = "") -> AsyncIterator[v1.Conversation]:
        """Iterate over the conversations, the latest changed first."""
        request = _requests.conversations(archived=archived, parent=parent)
        async for page in self.pages(self.conversations_stub.ListConversations, request):
            for conversation in page.conversations:
                yield conversation

    def watch_conversations(
        self, *, changes_only: bool = False, include_sub_agents: bool = False
    ) -> AsyncStream[v1.WatchConversationsResponse]:
        """Follow the list of conversations. Ends with an error when the connection breaks; then start again."""
        request = v1.WatchConversationsRequest(changes_only=changes_only, include_sub_agents=include_sub_agents)
        return self.stream(self.conversations_stub.WatchConversations, request)

    async def models(self) -> list[v1.Model]:
        """Return the models that conversations can use now."""
        return list((await self.call(self.catalog_stub.ListModels, v1.ListModelsRequest())).models)

    async def tools(self) -> list[v1.Tool]:
        """Return the tools that agents can call."""
        return list((await self.call(self.catalog_stub.ListTools, v1.ListToolsRequest())).tools)

    async def server_info(self) -> v1.GetServerInfoResponse:
        """Return the version of the server, what its sandbox can do, and its limits."""
        return await self.call(self.catalog_stub.GetServerInfo, v1.GetServerInfoRequest())

    async def browse(self, path: str = "") -> v1.BrowseDirectoryResponse:
        """Return what a directory of the server's machine contains; the home directory of its user if empty."""
        return await self.call(self.catalog_stub.BrowseDirectory, v1.BrowseDirectoryRequest(path=path))

    async def call(self, method: Callable[..., Awaitable[Response]], request: Any) -> Response:
        """Make one call with a method of a stub, with token, time limit and the errors of this package."""
        attempts, until = Attempts(last=not repeatable(request)), time.monotonic() + self._timeout
        while True:
            self._ensure_open()
            try:
                return await method(request, timeout=max(0.0, until - time.monotonic()), metadata=self._metadata)
            except grpc.RpcError as error:
                failure = from_rpc(error, self.address)
            await self.pause(attempts.delay_after(failure))

    async def pages(self, method: Callable[..., Awaitable[PageT]], request: Any) -> AsyncIterator[PageT]:
        """Call a method that lists something, page after page to the last; the token in the request is moved on."""
        while True:
            page = await self.call(method, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def stream(self, method: Callable[..., AsyncIterable[Response]], request: Any) -> AsyncStream[Response]:
        """Make a call that answers with a stream, when the first response is asked for; closing it cancels the call."""
        return AsyncStream(self._responses(method, request))

    async def _responses(
        self, method: Callable[..., AsyncIterable[Response]], request: Any
    ) -> AsyncGenerator[Response]:
        attempts = Attempts()
        while True:
            self._ensure_open()
            call: Any = method(request, metadata=self._metadata)
            try:
                async for response in call:
                    attempts.last = True
                    yield response
                return
            except grpc.RpcError as error:
                failure = from_rpc(error, self.address)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is None or not task.cancelling():
                    self._ensure_open()  # the call was cancelled by closing the client, not the task by somebody
                raise
            finally:
                call.cancel()
            await self.pause(attempts.delay_after(failure))

    async def pause(self, seconds: float) -> None:
        """Wait, but not longer than until the client is closed.

        Raises:
            Unavailable: The client is closed.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), seconds)
        self._ensure_open()

    def _ensure_open(self) -> None:
        if self._closed.is_set():
            raise Unavailable("this client is closed")
