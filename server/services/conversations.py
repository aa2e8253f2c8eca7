"""The ConversationService of the gRPC API: stores images, passes commands to the conversation's actor, and reads.

Commands are not checked against the database before they are passed on: the conversation may change in between, so
only its actor, which handles one command at a time, can check them.

The images of one message are decoded one at a time, so that principals take turns image by image.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc.aio
from bedrock import v1

from actors import messages as requests
from actors.core.content import Image
from actors.core.errors import Reason, Rejected
from actors.messages import InvalidFieldError, TaskRefusedError, UnknownApprovalRuleError, UnknownConversationError
from actors.ports import CancelToken, ConversationRecord, FencedError, Images, InvalidImageError
from actors.ports.workspace import IMAGE_TYPES
from actors.runtime.services import Services
from server.auth.authentication import OWN_USER, caller
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import AnswerTimeoutError, ConversationNotFoundError, ImageRefusedError, NestedFieldError
from server.contract.resource_names import parse_approval_rule
from server.queries.audit import AttachmentDownloads, ConversationExports, StoredAudits
from server.queries.listings import Listings, find_approval, find_question, list_approvals, list_questions, list_queue
from server.queries.read_pool import NameResolver, ReadPool
from server.queries.request_cycles import find_cycle, list_cycles
from server.streams.subscribe import Sources, SubscribeStreams
from server.streams.watch_conversations import ConversationListStreams
from server.wire import commands
from server.wire.conversation_messages import approval_rule, present, question

THREADS = 2


def any_model(_conversation_id: str) -> None:
    """Do not check whether a conversation's model takes images."""


class ImageUploads:
    """Decodes and stores uploaded images, and owns the threads for that. Use only on the event loop."""

    def __init__(
        self,
        images: Images,
        reserve_bytes: Callable[[str, int], None] = lambda _principal, _more: None,
        check_model: Callable[[str], None] = any_model,
    ) -> None:
        """Start the threads. `reserve_bytes` and `check_model` may block.

        `reserve_bytes` raises QuotaExceededError for too many bytes, and `check_model` raises Rejected if a
        conversation's model takes no images.
        """
        self._images = images
        self._reserve_bytes = reserve_bytes
        self._check_model = check_model
        self._threads = ReadPool(THREADS, name="bedrock-image")

    async def upload(
        self, conversation_id: str, request: v1.SendMessageRequest | v1.SubmitToolResultRequest, seconds: float
    ) -> tuple[Image, ...]:
        """Store the images in a message or result, and return references to them.

        Their bytes in the request are replaced by ids (hashes of the contents), so that a repeated request has the same
        hash, and its bytes are not counted again. Raises ImageRefusedError (for the first invalid image),
        ConversationNotFoundError, AnswerTimeoutError, QuotaExceededError, Rejected (the model takes no images),
        ImagesUnavailableError or StoreError.
        """
        for index, picture in enumerate(pictures := list(request.images)):
            _check(index, picture)
        cancel, principal = CancelToken(), caller.get(OWN_USER).principal
        try:
            async with asyncio.timeout(seconds):
                images = await self._ingested(principal, conversation_id, request, cancel)
        except TimeoutError:
            raise AnswerTimeoutError from None
        finally:
            cancel.cancel()  # stops the work if the caller has timed out
        for picture, image in zip(pictures, images, strict=True):
            picture.CopyFrom(v1.Image(media_type=image.media_type, attachment=image.attachment))
        return images

    async def _ingested(
        self,
        principal: str,
        conversation_id: str,
        request: v1.SendMessageRequest | v1.SubmitToolResultRequest,
        cancel: CancelToken,
    ) -> tuple[Image, ...]:
        taken: list[Image] = []
        check_model = self._check_model if isinstance(request, v1.SendMessageRequest) else any_model
        for index, picture in enumerate(request.images):
            try:
                image = await self._threads(self._ingest, principal, conversation_id, picture.data, cancel, check_model)
            except InvalidImageError as invalid:
                raise ImageRefusedError(index, str(invalid)) from None
            except FencedError:
                raise ConversationNotFoundError(names.conversation(conversation_id)) from None
            if image.media_type != picture.media_type:
                raise ImageRefusedError(index, f"is {image.media_type}, not {picture.media_type}")
            taken.append(image)
        return tuple(taken)

    def _ingest(
        self, principal: str, conversation_id: str, data: bytes, cancel: CancelToken, check_model: Callable[[str], None]
    ) -> Image:
        """Store an image, within the quota if it is new. Blocks, on an upload thread."""
        image = self._images.stored(conversation_id, data)
        if image is None:
            check_model(conversation_id)
            self._reserve_bytes(principal, len(data))  # now, as images are kept even if their message is refused
            image = self._images.ingest(conversation_id, data, cancel, uploaded=True)
        return image

    def close(self) -> None:
        self._threads.close()


def _check(index: int, picture: v1.Image) -> None:
    if picture.media_type not in IMAGE_TYPES:
        raise ImageRefusedError(index, f"must have one of the media types {', '.join(IMAGE_TYPES)}")
    if not picture.data:
        raise ImageRefusedError(index, "has no data")
    if len(picture.data) > limits.MAX_IMAGE_BYTES:
        raise ImageRefusedError(index, f"must have at most {limits.MAX_IMAGE_BYTES} bytes")


log = logging.getLogger(__name__)

T = TypeVar("T")
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Conversations(Protocol):
    """The conversations of this server; `Supervisor` implements this. No method blocks."""

    def create(self, request: requests.CreatingCommand, *, deadline: float | None = None) -> Future[ConversationRecord]:
        """Create a conversation or a fork, or return the one that an earlier call with the same request id created."""
        ...

    def ask(
        self, conversation_id: str, request: requests.ConversationCommand, *, deadline: float | None = None
    ) -> Future[Any]: ...

    def wake(self, ids: tuple[str, ...]) -> None:
        """Make conversations record the work that ended with their former owner. Returns immediately."""
        ...


class ConversationService(v1.ConversationServiceServicer):
    """Serves the ConversationService, and raises errors that the interceptor converts. Use only on the event loop."""

    def __init__(
        self,
        services: Services,
        conversations: Conversations,
        resolver: NameResolver,
        sources: Sources,
        *,
        watchers: SubscribeStreams,
        watch_list: ConversationListStreams,
        pictures: ImageUploads,
    ) -> None:
        store, reads = services.store, sources.reads
        self._store = store
        self._conversations = conversations
        self._resolver = resolver
        self._watchers = watchers
        self._watch_list = watch_list
        self._pictures = pictures
        self._clock = services.clock
        self._reads = reads
        self._conversion = sources.conversion
        self._encoded = sources.encoded
        self._listings = Listings(store, sources.conversion, services.approval_rules)
        self._downloads = AttachmentDownloads(store, reads)
        self._audits = StoredAudits(store, reads)
        self._exports = ConversationExports(store, reads, sources.conversion)

    # --- commands -----------------------------------------------------------------------------------------------------

    async def CreateConversation(
        self, request: v1.CreateConversationRequest, context: Context
    ) -> v1.CreateConversationResponse:
        seconds = _seconds(context)
        create = commands.create_conversation(request, caller.get().principal)
        future = self._conversations.create(create, deadline=self._clock.monotonic() + seconds)
        with _within("conversation"):
            record = await self._answer(future, seconds)
        return v1.CreateConversationResponse(conversation=self._with_warning(record))

    async def UpdateConversation(
        self, request: v1.UpdateConversationRequest, context: Context
    ) -> v1.UpdateConversationResponse:
        update = commands.update_conversation(request)
        with _within("conversation"):
            record = await self._ask(context, request.conversation.name, update)
        shown = self._encoded.message if update.client_tools is None else self._with_warning
        return v1.UpdateConversationResponse(conversation=shown(record))

    async def ArchiveConversation(
        self, request: v1.ArchiveConversationRequest, context: Context
    ) -> v1.ArchiveConversationResponse:
        record = await self._ask(context, request.name, requests.ArchiveConversationCommand(archived=True))
        return v1.ArchiveConversationResponse(conversation=self._encoded.message(record))

    async def UnarchiveConversation(
        self, request: v1.UnarchiveConversationRequest, context: Context
    ) -> v1.UnarchiveConversationResponse:
        record = await self._ask(context, request.name, requests.ArchiveConversationCommand(archived=False))
        return v1.UnarchiveConversationResponse(conversation=self._encoded.message(record))

    async def DeleteConversation(
        self, request: v1.DeleteConversationRequest, context: Context
    ) -> v1.DeleteConversationResponse:
        try:
            delete = requests.DeleteConversationCommand(force=request.force, etag=request.etag)
            warnings = await self._ask(context, request.name, delete)
        except ConversationNotFoundError:
            if not request.allow_missing:
                raise
            warnings = ()
        return v1.DeleteConversationResponse(warnings=warnings)

    async def SendMessage(self, request: v1.SendMessageRequest, context: Context) -> v1.SendMessageResponse:
        conversation_id = await self._resolver.identify(request.name)
        images = await self._pictures.upload(conversation_id, request, _seconds(context)) if request.images else ()
        answer = await self._ask_id(context, request.name, conversation_id, commands.send_message(request, images))
        return commands.send_message_response(self._conversion, conversation_id, answer)

    async def CancelConversation(
        self, request: v1.CancelConversationRequest, context: Context
    ) -> v1.CancelConversationResponse:
        conversation_id = await self._resolver.identify(request.name)
        answer = await self._ask_id(context, request.name, conversation_id, commands.cancel_conversation(request))
        return commands.cancel_conversation_response(self._conversion, conversation_id, answer)

    async def ResolveApproval(self, request: v1.ResolveApprovalRequest, context: Context) -> v1.ResolveApprovalResponse:
        conversation_id, approval = await self._child(request.name, "approvals")
        resolve = commands.resolve_approval(request, approval, caller.get().principal)
        record = await self._ask_id(context, request.name, conversation_id, resolve)
        return v1.ResolveApprovalResponse(conversation=self._encoded.message(record))

    async def SubmitToolResult(
        self, request: v1.SubmitToolResultRequest, context: Context
    ) -> v1.SubmitToolResultResponse:
        conversation_id, call = await self._child(request.name, "toolCalls")
        images = await self._pictures.upload(conversation_id, request, _seconds(context)) if request.images else ()
        answer = await self._ask_id(
            context, request.name, conversation_id, commands.submit_tool_result(request, call, images)
        )
        return commands.submit_tool_result_response(self._conversion, conversation_id, answer)

    async def AnswerQuestion(self, request: v1.AnswerQuestionRequest, context: Context) -> v1.AnswerQuestionResponse:
        conversation_id, number = await self._child(request.name, "questions")
        changed = await self._ask_id(context, request.name, conversation_id, commands.answer_question(request, number))
        return v1.AnswerQuestionResponse(question=question(conversation_id, changed))

    async def CreateApprovalRule(
        self, request: v1.CreateApprovalRuleRequest, context: Context
    ) -> v1.CreateApprovalRuleResponse:
        conversation_id = await self._resolver.identify(request.parent)
        command = commands.create_approval_rule(request, caller.get().principal)
        with _within("approval_rule"):
            rule = await self._ask_id(context, request.parent, conversation_id, command)
        return v1.CreateApprovalRuleResponse(approval_rule=approval_rule(conversation_id, rule))

    async def DeleteApprovalRule(
        self, request: v1.DeleteApprovalRuleRequest, context: Context
    ) -> v1.DeleteApprovalRuleResponse:
        conversation_id, rule = await self._child(request.name, "approvalRules")
        command = requests.DeleteApprovalRuleCommand(rule, caller.get().principal)
        await self._ask_id(context, request.name, conversation_id, command)
        return v1.DeleteApprovalRuleResponse()

    async def WithdrawMessage(self, request: v1.WithdrawMessageRequest, context: Context) -> v1.WithdrawMessageResponse:
        conversation_id, message_id = await self._child(request.name, "messages")
        withdraw = requests.WithdrawMessageCommand(message_id)
        answer = await self._ask_id(context, request.name, conversation_id, withdraw)
        return commands.withdraw_message_response(conversation_id, answer)

    async def SetMode(self, request: v1.SetModeRequest, context: Context) -> v1.SetModeResponse:
        answer: requests.SetModeResult = await self._ask(context, request.name, commands.set_mode(request))
        return v1.SetModeResponse(
            conversation=self._with_warning(answer.record),
            surviving_jobs=answer.surviving_jobs,
            surviving_tool_use_ids=answer.surviving_calls,
            ended_jobs=answer.ended_jobs,
            stopped_tool_use_ids=answer.stopped_calls,
            surviving_mcp_servers=answer.surviving_mcp_servers,
            stopped_mcp_servers=answer.stopped_mcp_servers,
        )

    async def TriggerContinuation(
        self, request: v1.TriggerContinuationRequest, context: Context
    ) -> v1.TriggerContinuationResponse:
        record = await self._ask(context, request.name, requests.TriggerContinuationCommand())
        return v1.TriggerContinuationResponse(conversation=self._encoded.message(record))

    async def ContinueConversation(
        self, request: v1.ContinueConversationRequest, context: Context
    ) -> v1.ContinueConversationResponse:
        record = await self._ask(context, request.name, commands.continue_conversation(request))
        return v1.ContinueConversationResponse(conversation=self._with_warning(record))

    async def ForkConversation(
        self, request: v1.ForkConversationRequest, context: Context
    ) -> v1.ForkConversationResponse:
        seconds = _seconds(context)
        origin = await self._resolver.identify(request.name)
        fork = commands.fork_conversation(request, origin, caller.get().principal)
        future = self._conversations.create(fork, deadline=self._clock.monotonic() + seconds)
        record = await self._answer(future, seconds)
        return v1.ForkConversationResponse(conversation=self._with_warning(record))

    async def SpawnSubAgents(self, request: v1.SpawnSubAgentsRequest, context: Context) -> v1.SpawnSubAgentsResponse:
        conversation_id = await self._resolver.identify(request.name)
        try:
            answer = await self._ask_id(context, request.name, conversation_id, commands.spawn_sub_agents(request))
        except TaskRefusedError as refusal:
            raise NestedFieldError(f"tasks[{refusal.index}]", refusal) from None
        return commands.spawn_sub_agents_response(self._conversion, conversation_id, answer)

    def _with_warning(self, record: ConversationRecord) -> v1.Conversation:
        shown = self._encoded.message(record)
        if names := ", ".join(tool.name for tool in shown.unoffered_tools):
            log.warning(
                "client tools not offered in %s mode: %s", record.mode, names, extra={"conversation": record.id}
            )
        return shown

    async def _child(self, name: str, kind: str) -> tuple[str, str]:
        """The two ids in a name such as `conversations/abc/messages/m`. Raises ConversationNotFoundError."""
        parsed = names.parse_child(name, kind)
        if parsed is None:
            raise ConversationNotFoundError(name)
        return await self._resolver.identify(names.conversation(parsed[0])), parsed[1]

    async def _ask(self, context: Context, name: str, request: requests.ConversationCommand) -> Any:
        return await self._ask_id(context, name, await self._resolver.identify(name), request)

    async def _ask_id(
        self, context: Context, name: str, conversation_id: str, request: requests.ConversationCommand
    ) -> Any:
        """Ask the actor of a conversation.

        A cancel has no deadline in the actor, so it takes effect even after a timeout. Raises
        ConversationNotFoundError, AnswerTimeoutError, or what the actor raises.
        """
        seconds = _seconds(context)
        deadline = (
            None if isinstance(request, requests.CancelConversationCommand) else self._clock.monotonic() + seconds
        )
        try:
            return await self._answer(self._conversations.ask(conversation_id, request, deadline=deadline), seconds)
        except (UnknownConversationError, UnknownApprovalRuleError):
            raise ConversationNotFoundError(name) from None

    async def _answer(self, future: Future[T], seconds: float) -> T:
        """Wait for an actor's answer. Raises what the actor raises, or AnswerTimeoutError after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise AnswerTimeoutError from None

    # --- reads --------------------------------------------------------------------------------------------------------

    async def GetConversation(self, request: v1.GetConversationRequest, context: Context) -> v1.GetConversationResponse:
        record = await self._resolver.record(request.name)
        return v1.GetConversationResponse(conversation=present(self._conversion, record))

    async def ListConversations(
        self, request: v1.ListConversationsRequest, context: Context
    ) -> v1.ListConversationsResponse:
        parent = await self._resolver.locate(request.parent) if request.parent else None
        return await self._reads(self._listings.conversations, request, caller.get().principal, parent)

    async def ListMessages(self, request: v1.ListMessagesRequest, context: Context) -> v1.ListMessagesResponse:
        conversation_id = await self._resolver.identify(request.parent)
        return await self._reads(self._listings.messages, request, conversation_id)

    async def ListRequestCycles(
        self, request: v1.ListRequestCyclesRequest, context: Context
    ) -> v1.ListRequestCyclesResponse:
        record = await self._resolver.record(request.parent)
        return await self._reads(list_cycles, self._store, self._conversion, request, record.id)

    async def GetMessage(self, request: v1.GetMessageRequest, context: Context) -> v1.GetMessageResponse:
        found = await self._child(request.name, "messages")
        return v1.GetMessageResponse(message=await self._reads(self._listings.message, request.name, *found))

    async def ListApprovals(self, request: v1.ListApprovalsRequest, context: Context) -> v1.ListApprovalsResponse:
        one = None if request.parent == names.ALL_CONVERSATIONS else await self._resolver.identify(request.parent)
        return await self._reads(list_approvals, self._store, self._conversion, request, caller.get().principal, one)

    async def GetApproval(self, request: v1.GetApprovalRequest, context: Context) -> v1.GetApprovalResponse:
        conversation_id, _ = await self._child(request.name, "approvals")
        approval = await self._reads(find_approval, self._store, self._conversion, request, conversation_id)
        return v1.GetApprovalResponse(approval=approval)

    async def ListQuestions(self, request: v1.ListQuestionsRequest, context: Context) -> v1.ListQuestionsResponse:
        one = None if request.parent == names.ALL_CONVERSATIONS else await self._resolver.identify(request.parent)
        return await self._reads(list_questions, self._store, self._conversion, request, caller.get().principal, one)

    async def GetQuestion(self, request: v1.GetQuestionRequest, context: Context) -> v1.GetQuestionResponse:
        conversation_id, _ = await self._child(request.name, "questions")
        asked = await self._reads(find_question, self._store, self._conversion, request, conversation_id)
        return v1.GetQuestionResponse(question=asked)

    async def GetAttachment(self, request: v1.GetAttachmentRequest, context: Context) -> v1.GetAttachmentResponse:
        conversation_id, _ = await self._child(request.name, "attachments")
        return v1.GetAttachmentResponse(attachment=await self._downloads.described(conversation_id, request.name))

    async def GetRequestCycle(self, request: v1.GetRequestCycleRequest, context: Context) -> v1.GetRequestCycleResponse:
        conversation_id, run = await self._child(request.name, "requestCycles")
        cycle = await self._reads(find_cycle, self._store, self._conversion, conversation_id, run, request)
        return v1.GetRequestCycleResponse(request_cycle=cycle)

    async def WaitRequestCycle(
        self, request: v1.WaitRequestCycleRequest, context: Context
    ) -> v1.WaitRequestCycleResponse:
        conversation_id, run = await self._child(request.name, "requestCycles")
        await self._watchers.until_ended(conversation_id, run, request)
        cycle = await self._reads(find_cycle, self._store, self._conversion, conversation_id, run, request)
        return v1.WaitRequestCycleResponse(request_cycle=cycle)

    async def ListQueue(self, request: v1.ListQueueRequest, context: Context) -> v1.ListQueueResponse:
        conversation_id = await self._resolver.identify(request.parent)
        return await self._reads(list_queue, self._store, request, conversation_id)

    async def GetApprovalRule(self, request: v1.GetApprovalRuleRequest, context: Context) -> v1.GetApprovalRuleResponse:
        conversation_id, rule_id = parse_approval_rule(request.name) or ("", "")
        record = await self._resolver.record(f"conversations/{conversation_id}") if conversation_id else None
        return v1.GetApprovalRuleResponse(approval_rule=self._listings.approval_rule(request.name, rule_id, record))

    async def ListApprovalRules(
        self, request: v1.ListApprovalRulesRequest, context: Context
    ) -> v1.ListApprovalRulesResponse:
        record = await self._resolver.record(request.parent)
        return self._listings.approval_rules(request, record)

    async def DownloadAttachment(  # type: ignore[override]
        self, request: v1.DownloadAttachmentRequest, context: Context
    ) -> None:
        conversation_id, _ = await self._child(request.name, "attachments")
        await self._downloads.serve(conversation_id, request, context.write)

    async def VerifyConversation(
        self, request: v1.VerifyConversationRequest, context: Context
    ) -> v1.VerifyConversationResponse:
        conversation_id = await self._resolver.locate(request.name)
        return await self._reads.long(self._audits.verify, conversation_id, request.name)

    async def ListTransitions(self, request: v1.ListTransitionsRequest, context: Context) -> v1.ListTransitionsResponse:
        record = await self._resolver.record(request.parent)
        return await self._reads.long(self._audits.transitions, record, request)

    async def ListAuditEntries(
        self, request: v1.ListAuditEntriesRequest, context: Context
    ) -> v1.ListAuditEntriesResponse:
        return await self._reads.long(self._audits.entries, request)

    async def ReplayConversation(  # type: ignore[override]
        self, request: v1.ReplayConversationRequest, context: Context
    ) -> None:
        conversation_id = await self._resolver.identify(request.name)
        await self._audits.replay(conversation_id, request, context.write)

    async def ExportConversation(  # type: ignore[override]
        self, request: v1.ExportConversationRequest, context: Context
    ) -> None:
        conversation_id = await self._resolver.identify(request.name)
        await self._exports.serve(conversation_id, request, context.write)

    async def Subscribe(self, request: v1.SubscribeRequest, context: Context) -> None:  # type: ignore[override]
        conversation_id = await self._resolver.identify(request.name)
        # Each response is encoded once, and its bytes are sent to all clients that need it.
        await self._watchers.serve(conversation_id, request, context.write)

    async def WatchConversations(  # type: ignore[override]
        self, request: v1.WatchConversationsRequest, context: Context
    ) -> None:
        await self._watch_list.serve(caller.get().principal, request, context.write)


@contextmanager
def _within(field: str) -> Generator[None, None, None]:
    """Turn any refusal except SHUTTING_DOWN in the `with` block into a NestedFieldError about `field`."""
    try:
        yield
    except (Rejected, InvalidFieldError) as refusal:
        if isinstance(refusal, Rejected) and refusal.reason is Reason.SHUTTING_DOWN:
            raise
        raise NestedFieldError(field, refusal) from None


def _seconds(context: Context) -> float:
    remaining: float | None = context.time_remaining()
    return limits.ANSWER_SECONDS if remaining is None else max(0.0, remaining)
