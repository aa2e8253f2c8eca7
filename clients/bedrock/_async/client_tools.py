"""Functions of this program that answer calls of clients' tools."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from bedrock import v1
from bedrock._async.retries import insist
from bedrock._async.sending import carried_out
from bedrock._shared import requests
from bedrock._shared.client_tools.functions import answer_of, failure_of
from bedrock.errors import InvalidArgument, NotFound, UnknownOrDecided

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bedrock._async.transport import AsyncTransport
    from bedrock._shared.client_tools.functions import ToolFunction
    from bedrock._shared.deadline import Deadline
    from bedrock.messages import ToolCall

_log = logging.getLogger("bedrock")


class AsyncClientTools:
    """The functions for the tools of one conversation, which its runs and `serve_tools` share."""

    def __init__(self, transport: AsyncTransport, conversation: str, functions: Sequence[ToolFunction] = ()) -> None:
        """Begin with the functions of tools that the conversation has already."""
        self._transport = transport
        self._conversation = conversation
        self._functions = {function.declaration.name: function for function in functions}
        self._declared = True
        self._taken: dict[str, object] = {}
        """What answers each call, by the call's id: no call is answered twice by one program."""

    def add(self, function: ToolFunction) -> None:
        """Add the function of a tool that is to be declared before the next run."""
        self._functions[function.declaration.name] = function
        self._declared = False

    async def declare(self, timeout: float | None = None) -> None:
        """Declare the tools that were added, unless the conversation has them so. Other tools of clients stay.

        Raises:
            AgentBusy: They cannot be changed during a run.
            InvalidArgument: One of them cannot be offered.
        """
        if self._declared:
            return
        stub, name = self._transport.conversations, self._conversation
        got = await self._transport.call(stub.GetConversation, v1.GetConversationRequest(name=name), timeout)
        present = {tool.name: tool for tool in got.conversation.client_tools}
        wanted = present | {name: function.declaration.proto for name, function in self._functions.items()}
        if wanted != present:
            await self._transport.call(stub.UpdateConversation, requests.declare(name, wanted.values()), timeout)
        self._declared = True

    async def answer(self, calls: Sequence[ToolCall], deadline: Deadline) -> None:
        """Answer those of the calls that have a function here and that still wait; what a function raises, too."""
        for call in calls:
            function, me = self._functions.get(call.tool), object()
            if function is None or self._taken.setdefault(call.tool_use_id, me) is not me:
                continue
            try:
                if await self._waits(call, deadline):
                    await self._submit(await self._result(call, function), deadline)
            except BaseException:  # of the connection, or a cancelled task: the next one to see the call answers it
                del self._taken[call.tool_use_id]
                raise

    async def _waits(self, call: ToolCall, deadline: Deadline) -> bool:
        """Return whether a call still waits: an event may be old, and another client may have been faster."""
        request = v1.GetConversationRequest(name=self._conversation)
        try:
            got = await insist(self._transport, self._transport.conversations.GetConversation, request, deadline)
        except NotFound:  # the conversation was deleted, as the next event shows
            return False
        running: v1.ConversationState.ToolExecuting = got.conversation.state.tool_executing
        return running.HasField("deadline") and running.current.tool_use_id == call.tool_use_id

    async def _result(self, call: ToolCall, function: ToolFunction) -> v1.SubmitToolResultRequest:
        """Return the request that answers a call: with what its function returned, or raised."""
        try:
            answer = answer_of(await carried_out(function.function, function.arguments(call)))
            return requests.tool_result(self._conversation, call, answer.value, images=answer.images)
        except Exception as error:  # noqa: BLE001 -- a fault of the function is a result: the agent reads it
            _log.warning("the tool %s failed", call.tool, exc_info=error)
            return requests.tool_result(self._conversation, call, error=failure_of(error))

    async def _submit(self, request: v1.SubmitToolResultRequest, deadline: Deadline) -> None:
        """Send an answer. One that is not accepted, as too long, is replaced by an error that says so."""
        method = self._transport.conversations.SubmitToolResult
        with suppress(UnknownOrDecided, NotFound):  # cancelled, timed out or deleted meanwhile
            try:
                await insist(self._transport, method, request, deadline)
            except InvalidArgument as error:
                _log.warning("a result of a tool was not accepted: %s", error)
                call = request.name.rpartition("/")[2]
                refused = requests.tool_result(self._conversation, call, error=f"The result was not accepted: {error}")
                await insist(self._transport, method, refused, deadline)
