"""Serves AG-UI runs: submits the new input, and follows the conversation until the run ends or waits.

The history that a front end sends is only its copy. The conversation's own history is authoritative, and each run
begins with it.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import grpc
import grpc.aio
from ag_ui.core import CustomEvent, MessagesSnapshotEvent, RunErrorEvent, RunStartedEvent
from bedrock import v1
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details
from starlette.requests import Request

from server.contract.errors import MalformedRequestError
from server.gateway.ag_ui import thread_messages as messages
from server.gateway.ag_ui.run_events import STATE, RunEvents
from server.gateway.ag_ui.thread_messages import News, input_from, news_in
from server.gateway.event_streams import Sent
from server.gateway.json_requests import request_of
from server.gateway.json_responses import StatusError, as_error, encoded, status_for
from server.gateway.routes import Route
from server.gateway.upstream import Upstream

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent, ResumeEntry, Tool, ToolMessage

VERSION = "1.0"
PAGE = 1_000
# A front end's answer: its place in the input, the name of the call, and the request.
Answer: TypeAlias = "tuple[str, str, Message]"
# The reasons why an answer may no longer be needed.
DECIDED = {"UNKNOWN_OR_DECIDED", "NOT_AWAITING_APPROVAL", "NOT_FOUND"}


def sent(event: BaseEvent) -> Sent:
    return Sent(event.type.value, encoded(event.model_dump(mode="json", by_alias=True)))


def failed(error: Exception) -> Sent:
    told = as_error(error)[1]["error"]
    return sent(RunErrorEvent(message=told["message"], code=told["status"]))


class AgUiRun:
    """One run. Call `events` only once.

    `new_thread` is the template for a new thread's conversation; None to refuse new threads.
    """

    def __init__(
        self,
        upstream: Upstream,
        routes: Mapping[str, Route],
        new_thread: v1.Conversation | None,
        http: Request,
        body: bytes,
    ) -> None:
        self._upstream, self._routes, self._http = upstream, routes, http
        self._new_thread = new_thread
        self._input = input_from(body)
        self._messages: list[v1.Message] = []
        self._revision = 0
        self._warnings = [f"{name}: unknown" for name in self._input.model_extra or ()]

    async def events(self) -> AsyncGenerator[Sent]:
        """Yield the events of the run. Invalid input raises an error before the first event."""
        given = self._input
        conversation = await self._conversation()
        await self._read(conversation.name)
        news = news_in(given, self._ids(), conversation.name.rpartition("/")[2])
        run = conversation.state.run
        answers = [
            *(self._resumed(index, entry, conversation.name) for index, entry in enumerate(given.resume or ())),
            *(self._result(index, result, conversation.name) for index, result in news.results),
        ]
        # The messages are sent before the answers: they belong to the run that asked for the answers, and the answers
        # may end that run.
        run = await self._say(news, conversation, joins=bool(answers)) or conversation.state.run
        for place, call, request in answers:
            with _about(place), self._needless(place, but="unknown" if call == "SubmitToolResult" else ""):
                await self._call(call, request)
        await self._read(conversation.name)
        yield sent(
            RunStartedEvent(
                thread_id=given.thread_id,
                run_id=given.run_id,
                parent_run_id=given.parent_run_id,
                protocol_version=VERSION,
            )
        )
        for warning in self._warnings:
            yield sent(CustomEvent(name=f"{STATE}.warning", value=warning))
        known = {call.id for each in given.messages if each.role == "assistant" for call in each.tool_calls or ()}
        yield sent(self._snapshot(known))
        async for event in self._follow(conversation.name, RunEvents(given, run, known, ()), known):
            yield sent(event)

    async def _follow(self, name: str, run: RunEvents, known: set[str]) -> AsyncGenerator[BaseEvent]:
        run.remember(self._messages)
        request = v1.SubscribeRequest(name=name, after_revision=self._revision)
        async with aclosing(self._upstream.stream(self._routes["Subscribe"], request, self._http)) as responses:
            async for batch in responses:
                for event in batch.events:
                    for each in () if run.over else run.of(event):
                        yield each
                if run.stale and not run.over:
                    run.stale = False
                    await self._read(name)
                    yield self._snapshot(known)
                for each in run.end_of_batch():
                    yield each
                if run.missed:
                    cycle = await self._call("GetRequestCycle", v1.GetRequestCycleRequest(name=run.run))
                    for each in run.missed_end(cycle.request_cycle):
                        yield each
                if run.over:
                    return

    # --- new input ----------------------------------------------------------------------------------------------------

    async def _conversation(self) -> v1.Conversation:
        thread = self._input.thread_id
        name = f"conversations/{thread}"
        with _about("threadId"):
            try:
                found = await self._call("GetConversation", v1.GetConversationRequest(name=name))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                if self._new_thread is None:
                    status = status_for(error)
                    status.message += "; [http.new_thread] in the settings defines how new threads begin"
                    raise StatusError(status) from None
            else:
                return cast("v1.Conversation", found.conversation)
        request = v1.CreateConversationRequest(conversation=self._new_thread)
        request.conversation.slug = thread
        if told := news_in(self._input, (), "").instructions:
            request.conversation.instructions.text = "\n\n".join(told)
        with _about("threadId", "conversation.slug"):
            made = await self._call("CreateConversation", request)
        return cast("v1.Conversation", made.conversation)

    def _tools(self, name: str) -> Any:
        tools = [
            {**_own(index, each), "name": each.name, "description": each.description}
            | ({} if each.parameters is None else {"inputSchema": each.parameters})
            for index, each in enumerate(self._input.tools or ())
        ]
        query = "updateMask=clientTools&refuseUnofferedTools=true"
        return self._from_json("UpdateConversation", name, {"clientTools": tools}, query)

    def _resumed(self, index: int, entry: ResumeEntry, conversation: str) -> Answer:
        place, name, payload = f"resume[{index}]", entry.interrupt_id, entry.payload
        resolved = entry.status == "resolved"
        content: dict[str, Any]
        if name.startswith(f"{conversation}/approvals/"):
            answer = payload if isinstance(payload, dict) else {"approved": payload}
            if resolved and not isinstance(answer.get("approved"), bool):
                raise MalformedRequestError((f"{place}.payload", 'must be {"approved": true} or {"approved": false}'))
            approved = resolved and answer["approved"]
            content = {key: value for key, value in answer.items() if resolved and key != "approved"}
            content["decision"] = f"APPROVAL_DECISION_{'APPROVE' if approved else 'DENY'}"
            call = "ResolveApproval"
        elif name.startswith(f"{conversation}/questions/"):
            content = {"decline": True} if not resolved else {} if payload is None else {"content": payload}
            call = "AnswerQuestion"
        else:
            raise MalformedRequestError((f"{place}.interruptId", f"must be an interrupt of this thread, not {name}"))
        with _about(f"{place}.payload", "content"):
            return place, call, self._from_json(call, name, content)

    def _result(self, index: int, message: ToolMessage, conversation: str) -> Answer:
        place = f"messages[{index}]"
        output, images, unused = messages.said_by(message, place)
        self._warnings += unused
        request = v1.SubmitToolResultRequest(name=f"{conversation}/toolCalls/{message.tool_call_id}")
        if message.error:
            request.error = f"{message.error}\n{output}".strip()
        else:
            request.output = output
            request.images.extend(images)
        return f"{place}.toolCallId", "SubmitToolResult", request

    async def _say(self, news: News, conversation: v1.Conversation, *, joins: bool) -> str:
        """Send the user's messages; return the run that works on them, "" if there are no messages.

        With `joins`, the messages may join the open run.
        """
        if not news.said:
            return ""
        index, last = news.said[-1]
        stored = [
            messages.without_context(messages.text_of(each)) for each in self._messages if each.role == v1.ROLE_USER
        ]
        texts, images = [], []
        for place, message in news.said:
            text, pictures, unused = messages.said_by(message, f"messages[{place}]")
            self._warnings += unused
            if message is last or text not in stored:  # an earlier one may have arrived unknown to the front end
                texts.append(text)
                images += pictures
        if not (joins or conversation.state.busy) and (self._input.tools or conversation.client_tools):
            with _about("tools", "conversation.clientTools"):
                await self._call("UpdateConversation", self._tools(conversation.name))
        request = v1.SendMessageRequest(
            name=conversation.name,
            text=messages.with_context("\n\n".join(texts), self._input.context or ()),
            images=images,
            delivery=v1.DELIVERY_STEER if joins else v1.DELIVERY_DIRECT,
            request_id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"ag-ui:{last.id}")),
        )
        with _about(f"messages[{index}]"):
            run: str = (await self._call("SendMessage", request)).run
        return run

    # --- calls --------------------------------------------------------------------------------------------------------

    async def _read(self, name: str) -> None:
        request = v1.ListMessagesRequest(parent=name, page_size=PAGE)
        request.after_sequence = self._messages[-1].sequence if self._messages else 0
        while True:
            page = await self._call("ListMessages", request)
            self._messages += page.messages
            self._revision = page.revision
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def _ids(self) -> set[str]:
        found = {messages.id_of(each) for each in self._messages}
        results = {
            messages.result_id(each, block.tool_result)
            for each in self._messages
            for block in each.content
            if block.HasField("tool_result")
        }
        return found | results | set(map(messages.reasoning_id, found))

    def _snapshot(self, known: set[str]) -> MessagesSnapshotEvent:
        return MessagesSnapshotEvent(messages=list(messages.converted(self._messages, known)))

    async def _call(self, name: str, request: Message) -> Any:
        return await self._upstream.unary(self._routes[name], request, self._http)

    def _from_json(self, call: str, name: str, content: dict[str, Any], query: str = "") -> Any:
        return request_of(self._routes[call], name, query, content)

    @contextmanager
    def _needless(self, place: str, but: str = "") -> Generator[None]:
        """Turn the refusal of an answer that is no longer needed into a warning, unless its cause is `but`."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            status, info = status_for(error), details.ErrorInfo()
            found = any(each.Unpack(info) for each in status.details)
            if not found or info.reason not in DECIDED or (but and info.metadata.get("cause", but) == but):
                raise
            self._warnings.append(f"{place}: {status.message}")


def _own(index: int, tool: Tool) -> dict[str, Any]:
    """Bedrock's own part of a tool's metadata. Raises MalformedRequestError."""
    found = (tool.metadata or {}).get(STATE, {})
    if not isinstance(found, dict):
        raise MalformedRequestError((f"tools[{index}].metadata.{STATE}", "must be an object"))
    return found


@contextmanager
def _about(place: str, ours: str = "") -> Generator[None]:
    """Make a call's errors name the place in the input that led to the call; `ours` is the field's name in the call."""
    try:
        yield
    except MalformedRequestError as error:
        raise MalformedRequestError(*((_named(place, ours, field), text) for field, text in error.violations)) from None
    except (grpc.aio.AioRpcError, StatusError) as error:
        status = status_for(error)
        text = status.message
        if ours and text.startswith(ours):
            status.message = place + text[len(ours) :]
        else:
            status.message = f"{place}: {text}"
        raise StatusError(status) from None


def _named(place: str, ours: str, field: str) -> str:
    if ours and field.startswith(ours):
        return place + field[len(ours) :]
    return f"{place}.{field}" if field else place
