"""Answers calls to client tools (tools that clients run for the agent) with functions of this program."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from bedrock import v1
from bedrock._async.retries import insist
from bedrock._async.sending import carried_out
from bedrock._async.transport import AsyncTransport
from bedrock._shared import requests
from bedrock._shared.deadline import Deadline
from bedrock._shared.function_tools import ToolFunction, answer_of, check_offered, failure_of
from bedrock.errors import BedrockError, InvalidArgument, NotFound, UnknownOrDecided
from bedrock.messages import ToolCall

_log = logging.getLogger("bedrock")


class AsyncClientTools:
    """Functions of this program that answer the agent's calls to client tools in one conversation.

    The runs of the conversation and the method `serve_tools` share one such object.
    """

    def __init__(self, transport: AsyncTransport, conversation: str, functions: Sequence[ToolFunction] = ()) -> None:
        self._transport = transport
        self._conversation = conversation
        self._functions = {function.declaration.name: function for function in functions}
        self._declared = True
        self._taken: dict[str, object] = {}
        """The ids of calls that were taken, each with an object for who took it, so that no call is answered twice."""

    def add(self, function: ToolFunction) -> None:
        self._functions[function.declaration.name] = function
        self._declared = False

    async def declare(self, timeout: float | None = None) -> None:
        """Declare the added tools to the server, unless it has them already.

        The conversation keeps its other client tools.

        Raises:
            AgentBusy: The tools cannot be changed during a run.
            InvalidArgument: The server does not accept one of the tools.
            ToolNotOffered: The mode does not offer a tool that was added without `allow_unoffered`.
        """
        if self._declared:
            return
        stub, name = self._transport.conversations, self._conversation
        got = await self._transport.call(stub.GetConversation, v1.GetConversationRequest(name=name), timeout)
        conversation = got.conversation
        present = {tool.name: tool for tool in conversation.client_tools}
        wanted = present | {name: function.declaration.proto for name, function in self._functions.items()}
        if wanted != present:
            update = requests.declare(name, wanted.values())
            conversation = (await self._transport.call(stub.UpdateConversation, update, timeout)).conversation
        check_offered(conversation, self._functions)
        self._declared = True

    async def answer(self, calls: Sequence[ToolCall], deadline: Deadline) -> None:
        """Answer the calls that are still waiting, using the functions; calls to other tools are skipped."""
        for call in calls:
            function, me = self._functions.get(call.tool), object()
            if function is None or self._taken.setdefault(call.tool_use_id, me) is not me:
                continue
            try:
                if await self._waits(call, deadline):
                    await self._submit(await self._result(call, function), deadline)
            except BaseException:  # if the answer was not sent, a later `answer` may try again
                del self._taken[call.tool_use_id]
                raise

    async def _waits(self, call: ToolCall, deadline: Deadline) -> bool:
        """Whether the server still waits for an answer to this call.

        It does not if another client was faster, or if the event that reported the call is old.
        """
        request = v1.GetConversationRequest(name=self._conversation)
        try:
            got = await insist(self._transport, self._transport.conversations.GetConversation, request, deadline)
        except NotFound:  # the conversation was deleted; the next event reports that
            return False
        running: v1.ConversationState.ToolExecuting = got.conversation.state.tool_executing
        return running.HasField("deadline") and running.current.tool_use_id == call.tool_use_id

    async def _result(self, call: ToolCall, function: ToolFunction) -> v1.SubmitToolResultRequest:
        """Call the function. Return the request that submits its result or, if it raises an exception, the error."""
        try:
            answer = answer_of(await carried_out(function.function, function.arguments(call)))
            return requests.tool_result(self._conversation, call, answer.value, images=answer.images)
        except Exception as error:  # noqa: BLE001 -- a fault of the function is a result: the agent reads it
            _log.warning("tool %s failed", call.tool, exc_info=error)
            return requests.tool_result(self._conversation, call, error=failure_of(error))

    async def _submit(self, request: v1.SubmitToolResultRequest, deadline: Deadline) -> None:
        """Send an answer, or an error if the server rejects it, e.g. because it is too long."""
        method = self._transport.conversations.SubmitToolResult
        with suppress(UnknownOrDecided, NotFound):  # call cancelled or timed out, or conversation deleted
            try:
                await insist(self._transport, method, request, deadline)
            except BedrockError as error:
                too_large = (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "")  # gRPC's error for such a request
                if not (isinstance(error, InvalidArgument) or too_large):
                    raise
                _log.warning("the server rejected the tool's result: %s", error)
                call = request.name.rpartition("/")[2]
                refused = requests.tool_result(self._conversation, call, error=f"The result was rejected: {error}")
                await insist(self._transport, method, refused, deadline)
