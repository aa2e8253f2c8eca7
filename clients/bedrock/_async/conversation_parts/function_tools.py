"""The methods of `AsyncConversation` that offer functions of this program to the agent as tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from bedrock._async.conversation_parts.base import AsyncConversationBase
from bedrock._async.sending import fitting
from bedrock._async.subscription import follow
from bedrock._shared import requests
from bedrock._shared.client_tools.functions import tool_function
from bedrock._shared.cursor import EventCursor
from bedrock._shared.deadline import Deadline
from bedrock._shared.run_progress import waiting_calls
from bedrock.messages import Message
from bedrock.streams import AsyncStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

    from bedrock.messages import ToolCall
    from bedrock.types import ToolGroup

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")

__all__ = ["AsyncConversationTools"]


class AsyncConversationTools(AsyncConversationBase):
    """The methods that offer functions of this program to the agent as tools, and answer the calls of these tools."""

    @overload
    def tool(self, function: FunctionT, /) -> FunctionT: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        group: ToolGroup = "other",
        timeout: timedelta | None = None,
        read_only: bool = False,
        requires_approval: bool = False,
        allow_unoffered: bool = False,
    ) -> Callable[[FunctionT], FunctionT]: ...

    def tool(
        self,
        function: FunctionT | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        group: ToolGroup = "other",
        timeout: timedelta | None = None,
        read_only: bool = False,
        requires_approval: bool = False,
        allow_unoffered: bool = False,
    ) -> FunctionT | Callable[[FunctionT], FunctionT]:
        """Give the agent a function of this program as a tool, with ``@conversation.tool``.

        The function's parameters, which need types, become the tool's input, and its docstring the description for the
        model. The function returns the result: a text, a value that becomes JSON, or a `ToolAnswer` with images. If it
        raises an exception, the agent reads that as an error.

        Calls of the tool are answered while this program iterates over or awaits a run of this object, and within
        `serve_tools`. At other times a call waits until another client answers it or `timeout` has passed. A new tool
        is declared to the server when the next message is sent; during a run, the server refuses the declaration.

        Args:
            function: The function, if the decorator is used without arguments.
            name: The tool's name for the model; the function's name if None.
            description: The description for the model; the docstring if None.
            group: The kind of work that the tool does: "read", "write", "bash" or "other".
            timeout: How long a call waits for an answer; five minutes if None.
            read_only: Whether the tool changes nothing: in restricted mode only such tools are offered.
            requires_approval: Whether a person must approve every call.
            allow_unoffered: Whether to declare the tool although the conversation's mode does not offer it to the
                agent. If False, the next message raises ToolNotOffered in this case, and is not sent.

        Raises:
            TypeError: A parameter has no type, or one whose values cannot be written as JSON.
        """

        def add(wrapped: FunctionT) -> FunctionT:
            made = tool_function(
                fitting(wrapped),
                name=name,
                description=description,
                group=group,
                timeout=timeout,
                read_only=read_only,
                requires_approval=requires_approval,
                allow_unoffered=allow_unoffered,
            )
            self._tools.add(made)
            return wrapped

        return add if function is None else add(function)

    async def serve_tools(self, *, timeout: float | None = None) -> None:
        """Answer the agent's calls of this object's functions, in all runs, until the conversation is deleted.

        Use this in a program that does not iterate over runs itself, because other clients send the messages. This
        method survives broken connections and restarts of the server.

        Args:
            timeout: Seconds after which DeadlineExceeded is raised; no limit if None.

        Raises:
            AgentBusy: The conversation does not have the tools yet, and a run is in progress.
            ToolNotOffered: The conversation's mode does not offer one of the tools to the agent.
            NotFound, DeadlineExceeded, Unavailable: As for `events`.
        """
        deadline = Deadline(timeout)
        await self._tools.declare(deadline.shorten(self._transport.timeout))
        cursor = EventCursor(self.name, None, 1, omit_deltas=True)
        async with AsyncStream(follow(self._transport, cursor, deadline)) as events:
            async for event in events:
                await self._tools.answer(list(waiting_calls(event).values()), deadline)

    async def submit_tool_result(
        self,
        call: ToolCall | str,
        output: str = "",
        *,
        json: Mapping[str, Any] | None = None,
        images: requests.ImageSource | Sequence[requests.ImageSource] = (),
        error: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Message:
        """Answer a call of a client tool, and return the stored message with the result.

        Events of kind ``client_tool_call_changed`` report the calls. Any client may answer; the first answer counts.
        Sending the same answer again is accepted.

        Args:
            call: The call or its id.
            output: The result as text.
            json: The result as a JSON object, instead of `output`.
            images: Images that belong to the result, as for `send`.
            error: Why the tool failed, instead of a result.
            request_id: The id to reuse if this call is repeated; generated if None.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            UnknownOrDecided: The call does not wait for an answer (any more).
        """
        request = requests.tool_result(
            self.name, call, output, json=json, images=images, error=error, request_id=request_id
        )
        response = await self._transport.call(self._stub.SubmitToolResult, request, timeout)
        return Message.from_proto(response.message)
