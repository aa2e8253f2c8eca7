"""A Bedrock server in a box: the real contract over real gRPC, with scripted answers and scripted faults.

It serves one conversation, ``conversations/c1`` (slug ``brave-otter``). What a message causes is a list of steps:
events in order, and gates at which the world waits for an approval or a cancel. The world moves on only when a watcher
has seen all there is, so that a test decides at which step a connection breaks:

* ``cuts``: the n-th stream breaks after so many events;
* ``skips``: after the n-th break the world moves on by so many steps while no watcher is connected.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc
from bedrock import Approval, v1
from bedrock.v1 import catalog_service_pb2, conversation_service_pb2
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from tests.support.patience import PATIENCE

Context = grpc.ServicerContext

Asked = TypeVar("Asked", bound=Message)

NAME = "conversations/c1"
SLUG = "brave-otter"
PAGE_SIZE = 2


@dataclass
class Gate:
    """The world waits here until the approval, or the tool's question, is answered or the run is cancelled.

    Who follows it is told an error if nobody does that for PATIENCE seconds, so that a test fails and does not hang.
    """

    approval: v1.PendingApproval | None = None
    approved: list[Step] = field(default_factory=list)
    denied: list[Step] = field(default_factory=list)
    question: v1.Question | None = None


T = TypeVar("T")
Step = v1.Event | Gate
Answer = Callable[[str], list[Step]]
"""What a message causes, given the name of the run."""


@dataclass(eq=False)
class Refusal(Exception):
    """How to answer a call instead of doing what it asks."""

    code: grpc.StatusCode
    reason: str = ""
    message: str = "refused"
    details: list[Message] = field(default_factory=list)

    def abort(self, context: Context) -> NoReturn:
        """End a call with this status and its details."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        info = [error_details_pb2.ErrorInfo(reason=self.reason, domain="bedrock.dev")] if self.reason else []
        for detail in (*info, *self.details):
            status.details.add().Pack(detail)
        context.abort_with_status(rpc_status.to_status(status))
        raise AssertionError("abort returned")


SHUTTING_DOWN = Refusal(grpc.StatusCode.UNAVAILABLE, message="shutting down")


def methods() -> list[MethodDescriptor]:
    """Every method of the contract."""
    files = (conversation_service_pb2.DESCRIPTOR, catalog_service_pb2.DESCRIPTOR)
    return [method for file in files for service in file.services_by_name.values() for method in service.methods]


def serve(server: grpc.Server, method: MethodDescriptor, behaviour: Callable[[Any, Context], Any]) -> None:
    """Have a server answer a method of the contract with what `behaviour` returns, or refuse it as that raises."""

    def one(request: Message, context: Context) -> Message:
        try:
            return behaviour(request, context)  # type: ignore[no-any-return]
        except Refusal as refusal:
            refusal.abort(context)

    def many(request: Message, context: Context) -> Iterator[Message]:
        try:
            yield from behaviour(request, context)
        except Refusal as refusal:
            refusal.abort(context)

    decode = message_factory.GetMessageClass(method.input_type).FromString
    encode = message_factory.GetMessageClass(method.output_type).SerializeToString
    handler = (
        grpc.unary_stream_rpc_method_handler(many, decode, encode)
        if method.server_streaming
        else grpc.unary_unary_rpc_method_handler(one, decode, encode)
    )
    service = method.containing_service.full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method.name: handler}),))


def text(said: str, *, chunks: int = 2, request: str = "r1", attempt: int = 1) -> list[Step]:
    """Stream a text and store it."""
    size = max(1, -(-len(said) // chunks))
    steps: list[Step] = [
        delta(said[at : at + size], at, request=request, attempt=attempt) for at in range(0, len(said), size)
    ]
    steps.append(stored("agent", v1.ContentBlock(text=said), request=request, attempt=attempt))
    return steps


def delta(piece: str, offset: int, *, request: str = "r1", attempt: int = 1, reasoning: bool = False) -> v1.Event:
    return v1.Event(
        text_delta=v1.Event.TextDelta(
            llm_request_id=request, attempt=attempt, offset=offset, text=piece, reasoning=reasoning
        )
    )


def output(piece: str, offset: int, *, call: str = "t1") -> v1.Event:
    return v1.Event(tool_output_delta=v1.Event.ToolOutputDelta(tool_use_id=call, attempt=1, offset=offset, text=piece))


def stored(role: str, *blocks: v1.ContentBlock, request: str = "", attempt: int = 0) -> v1.Event:
    return v1.Event(
        message_added=v1.Message(
            role=v1.Role.Value(f"ROLE_{role.upper()}"), content=blocks, llm_request_id=request, attempt=attempt
        )
    )


def call(tool: str, given: dict[str, str], *, call_id: str = "t1") -> v1.ContentBlock:
    struct = Struct()
    struct.update(given)
    return v1.ContentBlock(tool_call=v1.ToolCall(tool_use_id=call_id, tool=tool, input=struct))


def result(
    said: str, *, call_id: str = "t1", outcome: v1.ToolOutcome.ValueType = v1.TOOL_OUTCOME_OK
) -> v1.ContentBlock:
    return v1.ContentBlock(tool_result=v1.ToolResult(tool_use_id=call_id, outcome=outcome, output=said))


def question(tool: str, given: dict[str, Any] | None = None, *suggestions: v1.ApprovalRule) -> Approval:
    """The question whether a tool may run with an input."""
    asked = v1.PendingApproval(
        name=f"{NAME}/approvals/t1", tool_call=v1.ToolCall(tool_use_id="t1", tool=tool), suggestions=suggestions
    )
    asked.tool_call.input.update(given or {})
    return Approval.from_proto(asked)


def discarded(*, request: str = "r1", attempt: int = 1) -> v1.Event:
    return v1.Event(stream_discarded=v1.Event.StreamDiscarded(llm_request_id=request, attempt=attempt))


def state(kind: str, run: str = "", **detail: Message) -> v1.Event:
    value = v1.ConversationState(
        kind=v1.StateKind.Value(f"STATE_KIND_{kind.upper()}"),
        run=run,
        busy=kind not in ("idle", "error", "context_exhausted"),
        **detail,  # type: ignore[arg-type]
    )
    return v1.Event(state_changed=v1.Event.StateChanged(state=value))


def stopped(run: str, reason: str = "completed", detail: str = "", error: v1.RunError | None = None) -> v1.Event:
    return v1.Event(
        run_stopped=v1.Event.RunStopped(
            request_cycle=run, reason=v1.StopReason.Value(f"STOP_REASON_{reason.upper()}"), detail=detail, error=error
        )
    )


def ends_with(value: Any, said: str = "") -> Answer:
    """A run that ends with a value."""

    def end(run: str) -> list[Step]:
        end = stopped(run)
        json_format.ParseDict(value, end.run_stopped.output)
        return [state("llm_requesting", run), *text(said, chunks=1), state("idle"), end]

    return end


def says(said: str, *, chunks: int = 2, detail: str = "") -> Answer:
    """A run that answers with a text, or with none if it is empty; `detail` says why the answer is not whole."""
    parts = text(said, chunks=chunks) if said else []
    return lambda run: [state("llm_requesting", run), *parts, state("idle"), stopped(run, detail=detail)]


def allows(**subject: str) -> v1.ApprovalRule:
    """A rule as a question suggests it."""
    origin = v1.ApprovalRule.ORIGIN_CONVERSATION
    return v1.ApprovalRule(**{"action": v1.ApprovalRule.ACTION_ALLOW, "origin": origin, **subject})  # type: ignore[arg-type]


def uses_tool(
    command: str, printed: str, said: str, *, ask: bool = False, mode: v1.Mode.ValueType = v1.MODE_UNSPECIFIED
) -> Answer:
    """A run that says so, calls bash, perhaps after asking, and answers with a text; `mode`: it asks for that."""

    def steps(run: str) -> list[Step]:
        agent = stored("agent", v1.ContentBlock(text="Let me look."), call("bash", {"command": command}))
        agent.message_added.llm_request_id, agent.message_added.attempt = "r1", 1
        going: list[Step] = [
            state("tool_executing", run),
            output(printed, 0),
            stored("tool", result(printed)),
            *text(said, request="r2"),
            state("idle"),
            stopped(run),
        ]
        refused: list[Step] = [
            stored("tool", result("Denied by user", outcome=v1.TOOL_OUTCOME_DENIED)),
            *text("Then not.", request="r2"),
            state("idle"),
            stopped(run),
        ]
        start: list[Step] = [state("llm_requesting", run), delta("Let me look.", 0), agent]
        if not ask:
            return [*start, *going]
        approval = v1.PendingApproval(
            name=f"{NAME}/approvals/t1",
            tool_call=agent.message_added.content[1].tool_call,
            suggestions=[allows(command=command), allows(command_prefix=command.split(maxsplit=1)[0])],
        )
        if mode:
            approval = v1.PendingApproval(name=f"{NAME}/approvals/t1")
            approval.mode_upgrade.CopyFrom(
                v1.PendingApproval.ModeUpgrade(
                    tool_use_id="t1", reason="to write", mode=mode, workspace_available=mode == v1.MODE_UNRESTRICTED
                )
            )
        asking = state("awaiting_tool_approval", run)
        asking.state_changed.state.awaiting_approval.pending.append(approval)
        asked = v1.Event(approval_changed=v1.Event.ApprovalChanged(approval=approval))
        return [*start, asking, asked, Gate(approval, going, refused)]

    return steps


def asks_person(*, url: str = "", server: str = "t") -> Answer:
    """A run whose tool asks a person something, and which says whether that was answered."""

    def steps(run: str) -> list[Step]:
        asked = v1.Question(
            name=f"{NAME}/questions/1",
            tool=f"tools/mcp__{server}__ask",
            mcp_server=server,
            message="Which branch?",
            url=url,
            status=v1.Question.STATUS_PENDING,
        )
        if not url:
            asked.requested_schema.update({"type": "object", "properties": {"branch": {"type": "string"}}})
            asked.requested_schema.update({"required": ["branch"]})
        executing = state("tool_executing", run)
        executing.state_changed.state.tool_executing.questions.append(asked)
        tell = v1.Event(question_changed=v1.Event.QuestionChanged(question=asked))
        end = [state("idle"), stopped(run)]
        gate = Gate(None, [*text("Done."), *end], [*text("Then not."), *end], question=asked)
        return [state("llm_requesting", run), executing, tell, gate]

    return steps


def fails(kind: str, message: str) -> Answer:
    """A run that ends in an error."""
    error = v1.RunError(kind=v1.ErrorKind.Value(f"ERROR_KIND_{kind.upper()}"), message=message)
    return lambda run: [
        state("llm_requesting", run),
        stored("error", v1.ContentBlock(text=message)),
        state("error", error=error),
        stopped(run, "error", kind, error),
    ]


class FakeBedrock:
    """Both services, a method for each of theirs, and the world behind them."""

    def __init__(self) -> None:
        self.conversation = v1.Conversation(
            name=NAME,
            slug=SLUG,
            working_directory="/tmp",
            model="models/demo",
            mode=v1.MODE_RESTRICTED,
            state=v1.ConversationState(kind=v1.STATE_KIND_IDLE),
            context_usage=v1.ContextUsage(used_tokens=4200, usable_window_tokens=100_000),
        )
        self.others: list[v1.Conversation] = []
        """Conversations that are listed before `conversation`, and have nothing else."""
        self.models = [
            v1.Model(name="models/demo", provider="demo", protocol=v1.Model.PROTOCOL_DEMO, default=True),
            v1.Model(name="models/big", provider="acme", usable_window_tokens=180_000, images=True),
        ]
        self.answers: deque[Answer] = deque()
        self.refusals: dict[str, deque[Refusal]] = {}
        self.cuts: deque[int] = deque()
        self.skips: deque[int] = deque()
        self.accepted: Callable[[], object] = lambda: None
        """Called when a message was accepted, before its sender hears of it."""
        self.requests: list[Message] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.deleted = False
        self.unreadable: list[str] = []
        self.before_questions = False
        """Whether it is of a version that does not list what tools ask."""
        self.quotas: list[v1.Quota] = []
        self.nodes = [v1.Node(version="0.2.0", answering=True)]
        self.info = v1.GetServerInfoResponse(
            version="0.1.0", default_model="models/demo", default_mode=v1.MODE_RESTRICTED
        )
        self.info.sandbox.restricted_available, self.info.sandbox.landlock_abi = True, 4
        self.info.sandbox.tier = v1.GetServerInfoResponse.Sandbox.TIER_B
        self.info.sandbox.reason = "namespaces are forbidden"
        files = self.info.mcp_servers.add(name="files", state=v1.McpServer.STATE_FAILED, error="it is not installed")
        files.stdio.command.extend(["mcp-files", "."])
        self.info.mcp_servers.add(name="web", state=v1.McpServer.STATE_READY, tools=["tools/mcp__web__get"])
        self.info.mcp_servers[1].http.url = "https://mcp.test"
        self.info.mcp_servers[1].tools_left_out.add(name="put", reason="it has no input schema")
        self.full = False
        """The store takes nothing: a cancel is carried out and not recorded."""
        self.jobs: list[str] = []
        """Handles of background jobs."""
        self.oldest_revision = 0
        self._feed: list[v1.Event] = []
        self.queued: list[v1.QueuedMessage] = []
        self.operator_rules: list[v1.ApprovalRule] = []
        """What ListQueue answers, the oldest first."""
        self.cycles: list[v1.RequestCycle] = []
        """What ListRequestCycles answers instead of what the feed tells."""
        self.summary: list[Step] = [state("context_exhausted")]
        """What comes of TriggerContinuation."""
        self.over: set[str] = set()
        """The names of the questions of tools that are answered."""
        self.waits = 0
        """How many calls of WaitRequestCycle return before the run has ended."""
        self._pending: deque[Step] = deque()
        self._accepted: dict[str, v1.SendMessageResponse] = {}
        self._runs = 0
        self._closing = False
        self._changed = threading.Condition()

    # What the tests do and look at.

    def asked(self, kind: type[Asked]) -> list[Asked]:
        """The requests of one kind, in order."""
        return [request for request in self.requests if isinstance(request, kind)]

    def refuse(self, method: str, *refusals: Refusal) -> None:
        self.refusals.setdefault(method, deque()).extend(refusals)

    def happen(self, *steps: Step) -> None:
        """Let something happen that no message asked for."""
        with self._changed:
            self._pending.extend(steps)
            self._changed.notify_all()

    def resolve(self, name: str, decision: v1.ApprovalDecision.ValueType, note: str = "") -> bool:
        """Answer the approval at which the world waits; False if it waits for no such thing."""
        self.settle()  # the state and the question are one commit
        with self._changed:
            gate = self._pending[0] if self._pending else None
            if not isinstance(gate, Gate) or gate.approval is None or gate.approval.name != name:
                return False
            self._pending.popleft()
            open_questions = self.conversation.state.awaiting_approval.pending
            for question in [asked for asked in open_questions if asked.name == name]:
                open_questions.remove(question)
            denied = decision == v1.APPROVAL_DECISION_DENY
            self._pending.extendleft(reversed(gate.denied if denied else gate.approved))
            decided = v1.Event.ApprovalChanged(
                approval=v1.PendingApproval(name=name),
                decision=v1.APPROVAL_DECISION_DENY if denied else v1.APPROVAL_DECISION_APPROVE,
                note=note,
            )
            self._append(v1.Event(approval_changed=decided))
            return True

    def settle(self) -> None:
        """Let everything happen that happens by itself."""
        with self._changed:
            while self._advance():
                pass

    def move(self) -> None:
        """Take one step, as if a watcher had asked for it."""
        with self._changed:
            self._advance()

    @property
    def durable(self) -> list[v1.Event]:
        return [event for event in self._feed if event.revision]

    @property
    def revision(self) -> int:
        return len(self.durable)

    def open(self) -> None:
        self._closing = False

    def close(self) -> None:
        self._closing = True
        self._wake()

    # The world.

    def _advance(self) -> bool:
        """Take one step; False if there is none to take."""
        if not self._pending or isinstance(self._pending[0], Gate):
            return False
        step = self._pending.popleft()
        assert isinstance(step, v1.Event)
        self._append(step)
        return True

    def _append(self, step: v1.Event) -> v1.Event:
        event = v1.Event()
        event.CopyFrom(step)
        event.time.FromSeconds(1_750_000_000 + len(self._feed))
        if event.WhichOneof("event") not in ("text_delta", "tool_output_delta"):
            event.revision = self.revision + 1
        if event.HasField("message_added"):
            self._store(event.message_added)
        if event.HasField("state_changed"):
            self.conversation.state.CopyFrom(event.state_changed.state)
        self._feed.append(event)
        self._changed.notify_all()
        return event

    def _store(self, message: v1.Message) -> None:
        message.sequence = sum(1 for event in self._feed if event.HasField("message_added")) + 1
        message.name = message.name or f"{NAME}/messages/{message.sequence}"
        message.request_cycle = message.request_cycle or self.conversation.state.run

    def _partial(self) -> list[v1.Event.TextDelta]:
        slots: dict[tuple[str, int, bool], str] = {}
        for event in self._feed:
            if event.HasField("text_delta"):
                piece = event.text_delta
                slot = (piece.llm_request_id, piece.attempt, piece.reasoning)
                slots[slot] = slots.get(slot, "") + piece.text
            elif event.HasField("message_added") or event.HasField("stream_discarded"):
                closed = event.message_added if event.HasField("message_added") else event.stream_discarded
                for reasoning in (False, True):
                    slots.pop((closed.llm_request_id, closed.attempt, reasoning), None)
        return [
            v1.Event.TextDelta(llm_request_id=request, attempt=attempt, reasoning=reasoning, text=text)
            for (request, attempt, reasoning), text in slots.items()
        ]

    # The calls.

    def answer(self, method: MethodDescriptor, request: Message, context: Context) -> Any:
        """Answer a call, or raise a Refusal."""
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        if waiting := self.refusals.get(method.name):
            raise waiting.popleft()
        name = getattr(request, "name", "") or getattr(request, "parent", "")
        if name.startswith("conversations/") and name.split("/")[1] not in ("c1", SLUG, "-"):
            resource = error_details_pb2.ResourceInfo(resource_type="bedrock.v1.Conversation", resource_name=name)
            raise Refusal(grpc.StatusCode.NOT_FOUND, "NOT_FOUND", f"{name} does not exist", [resource])
        context.add_callback(self._wake)
        streams = (context,) if method.name in ("Subscribe", "WatchConversations") else ()
        if behaviour := getattr(self, method.name, None):
            return behaviour(request, *streams)
        answer = message_factory.GetMessageClass(method.output_type)()
        resource = getattr(answer, method.output_type.fields[0].name)
        resource.MergeFrom(self.conversation if isinstance(resource, v1.Conversation) else type(resource)(name=name))
        return answer

    @property
    def created(self) -> list[v1.Conversation]:
        """The conversations as clients wanted them."""
        return [each.conversation for each in self.requests if isinstance(each, v1.CreateConversationRequest)]

    def CreateConversation(self, request: v1.CreateConversationRequest) -> v1.CreateConversationResponse:
        self.conversation.working_directory = request.conversation.working_directory
        return v1.CreateConversationResponse(conversation=self.conversation)

    def GetConversation(self, request: v1.GetConversationRequest) -> v1.GetConversationResponse:
        shown = v1.Conversation(background_jobs=self.jobs)
        shown.MergeFrom(self.conversation)
        return v1.GetConversationResponse(conversation=shown)

    def ListConversations(self, request: v1.ListConversationsRequest) -> v1.ListConversationsResponse:
        none = "archived = true" in request.filter or self.conversation.name in self.unreadable
        shown = [] if none else [*self.others, self.conversation]
        if "working_directory" in request.filter:
            shown = [each for each in shown if f'working_directory = "{each.working_directory}"' in request.filter]
        return v1.ListConversationsResponse(conversations=shown, unreadable=self.unreadable)

    def UpdateConversation(self, request: v1.UpdateConversationRequest) -> v1.UpdateConversationResponse:
        request.update_mask.MergeMessage(request.conversation, self.conversation, replace_repeated_field=True)
        return v1.UpdateConversationResponse(conversation=self.conversation)

    def DeleteConversation(self, request: v1.DeleteConversationRequest) -> v1.DeleteConversationResponse:
        self.deleted = True
        self._wake()
        return v1.DeleteConversationResponse()

    def SetMode(self, request: v1.SetModeRequest) -> v1.SetModeResponse:
        self.conversation.mode = request.mode
        jobs, calls, servers = self.jobs, ["t1"] * bool(self.jobs), ["files"] * bool(self.jobs)
        answer = v1.SetModeResponse(conversation=self.conversation)
        if request.stop_running:
            self.jobs = []
            self.conversation.ClearField("background_jobs")
            stopped = v1.SetModeResponse(ended_jobs=jobs, stopped_tool_use_ids=calls, stopped_mcp_servers=servers)
            answer.MergeFrom(stopped)
        else:
            left = v1.SetModeResponse(surviving_jobs=jobs, surviving_tool_use_ids=calls, surviving_mcp_servers=servers)
            answer.MergeFrom(left)
        return answer

    def TriggerContinuation(self, request: v1.TriggerContinuationRequest) -> v1.TriggerContinuationResponse:
        with self._changed:
            self._append(state("awaiting_continuation"))
            self._pending.extend(self.summary)
        return v1.TriggerContinuationResponse(conversation=self.conversation)

    def SendMessage(self, request: v1.SendMessageRequest) -> v1.SendMessageResponse:
        with self._changed:
            if request.request_id in self._accepted:
                again = v1.SendMessageResponse()
                again.CopyFrom(self._accepted[request.request_id])
                again.disposition = v1.DISPOSITION_DUPLICATE
                return again
            busy = self.conversation.state.busy
            if busy and request.delivery in (v1.DELIVERY_UNSPECIFIED, v1.DELIVERY_DIRECT):
                raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, "AGENT_BUSY", "agent is busy")
            response = self._queue(request) if busy else self._start(request)
            self._accepted[request.request_id] = response
        self.accepted()
        return response

    def _start(self, request: v1.SendMessageRequest) -> v1.SendMessageResponse:
        before, run = self.revision, self._next_run()
        added = stored("user", v1.ContentBlock(text=request.text))
        added.message_added.request_cycle = run
        message = self._append(added).message_added
        self.conversation.state.run, self.conversation.state.busy = run, True
        self._pending.extend(self.answers.popleft()(run))
        return v1.SendMessageResponse(message=message, disposition=v1.DISPOSITION_DIRECT, run=run, revision=before)

    def _next_run(self) -> str:
        self._runs += 1
        return f"{NAME}/requestCycles/{self._runs}"

    def _queue(self, request: v1.SendMessageRequest) -> v1.SendMessageResponse:
        before = self.revision
        follow_up = request.delivery == v1.DELIVERY_FOLLOW_UP
        message = v1.Message(
            name=f"{NAME}/messages/queued-{len(self._accepted)}",
            role=v1.ROLE_USER,
            delivery=request.delivery,
            content=[v1.ContentBlock(text=request.text)],
        )
        queued = v1.QueuedMessage(message=message, fate=v1.QueuedMessage.FATE_QUEUED)
        self._append(v1.Event(queue_changed=queued))
        if follow_up:
            self._pending.extend(self._promotion(message))
        return v1.SendMessageResponse(
            message=message,
            disposition=v1.DISPOSITION_FOLLOW_UP_QUEUED if follow_up else v1.DISPOSITION_STEER_QUEUED,
            run="" if follow_up else self.conversation.state.run,
            revision=before,
        )

    def _promotion(self, message: v1.Message) -> list[Step]:
        run = self._next_run()
        delivered = v1.QueuedMessage(message=message, fate=v1.QueuedMessage.FATE_DELIVERED)
        added = v1.Event(message_added=message)
        added.message_added.request_cycle = run
        return [v1.Event(queue_changed=delivered), added, *self.answers.popleft()(run)]

    def CancelConversation(self, request: v1.CancelConversationRequest) -> v1.CancelConversationResponse:
        with self._changed:
            state_now = self.conversation.state
            ended, self.jobs = (self.jobs, []) if request.kill_jobs else ([], self.jobs)
            answer = v1.CancelConversationResponse(state=state_now, ended_jobs=ended, surviving_jobs=self.jobs)
            if not state_now.busy:
                answer.no_op = not ended
                return answer
            run = state_now.run
            if self.full:
                answer.run, answer.llm_request_id, answer.unrecorded = run, "r1", True
                return answer
            self._pending.clear()
            self._append(state("cancelling", run))
            self._append(state("idle"))
            self._append(stopped(run, "interrupted"))
            answer.run, answer.revision = run, self.revision
            answer.state.CopyFrom(self.conversation.state)
            return answer

    def ResolveApproval(self, request: v1.ResolveApprovalRequest) -> v1.ResolveApprovalResponse:
        if self.deleted:
            raise Refusal(grpc.StatusCode.NOT_FOUND, "NOT_FOUND", "the conversation does not exist")
        if not self.resolve(request.name, request.decision, request.note):
            raise Refusal(grpc.StatusCode.ABORTED, "UNKNOWN_OR_DECIDED", "decided already")
        if request.rule.WhichOneof("subject"):
            denied = request.decision == v1.APPROVAL_DECISION_DENY
            made = v1.CreateApprovalRuleRequest(approval_rule=request.rule)
            made.approval_rule.action = v1.ApprovalRule.ACTION_DENY if denied else v1.ApprovalRule.ACTION_ALLOW
            self.CreateApprovalRule(made)
        return v1.ResolveApprovalResponse(conversation=self.conversation)

    def SubmitToolResult(self, request: v1.SubmitToolResultRequest) -> v1.SubmitToolResultResponse:
        result = v1.ToolResult(tool_use_id=request.name.rpartition("/")[2], output=request.output or request.error)
        message = v1.Message(role=v1.ROLE_TOOL, content=[v1.ContentBlock(tool_result=result)])
        return v1.SubmitToolResultResponse(message=message)

    def AnswerQuestion(self, request: v1.AnswerQuestionRequest) -> v1.AnswerQuestionResponse:
        status = v1.Question.STATUS_DECLINED if request.decline else v1.Question.STATUS_ANSWERED
        if request.name in self.over:
            raise Refusal(grpc.StatusCode.ABORTED, "UNKNOWN_OR_DECIDED", "answered already")
        self.settle()  # the state and the question are one commit
        with self._changed:
            gate = self._pending[0] if self._pending else None
            if isinstance(gate, Gate) and gate.question and gate.question.name == request.name:
                self.over.add(request.name)
                self._pending.popleft()
                self._pending.extendleft(reversed(gate.denied if request.decline else gate.approved))
                ended = v1.Question(name=request.name, status=status)
                self._append(v1.Event(question_changed=v1.Event.QuestionChanged(question=ended)))
        return v1.AnswerQuestionResponse(question=v1.Question(name=request.name, status=status))

    def CreateApprovalRule(self, request: v1.CreateApprovalRuleRequest) -> v1.CreateApprovalRuleResponse:
        rule = v1.ApprovalRule(
            name=f"{NAME}/approvalRules/r{len(self.conversation.approval_rules) + 1}",
            origin=v1.ApprovalRule.ORIGIN_CONVERSATION,
            creator="default",
        )
        rule.MergeFrom(request.approval_rule)
        self.conversation.approval_rules.append(rule)
        return v1.CreateApprovalRuleResponse(approval_rule=rule)

    def DeleteApprovalRule(self, request: v1.DeleteApprovalRuleRequest) -> v1.DeleteApprovalRuleResponse:
        wanted = request.name.rpartition("/")[2]
        kept = [rule for rule in self.conversation.approval_rules if rule.name.rpartition("/")[2] != wanted]
        if len(kept) == len(self.conversation.approval_rules):
            raise Refusal(grpc.StatusCode.NOT_FOUND, "NOT_FOUND", "approval rule not found")
        del self.conversation.approval_rules[:]
        self.conversation.approval_rules.extend(kept)
        return v1.DeleteApprovalRuleResponse()

    def ListApprovalRules(self, request: v1.ListApprovalRulesRequest) -> v1.ListApprovalRulesResponse:
        page, more = _page([*self.operator_rules, *self.conversation.approval_rules], request.page_token)
        return v1.ListApprovalRulesResponse(approval_rules=page, next_page_token=more)

    def ListMessages(self, request: v1.ListMessagesRequest) -> v1.ListMessagesResponse:
        messages = [event.message_added for event in self._feed if event.HasField("message_added")]
        messages = [message for message in messages if message.sequence > request.after_sequence]
        if request.descending:
            messages.reverse()
        page, more = _page(messages, request.page_token)
        return v1.ListMessagesResponse(messages=page, next_page_token=more, revision=self.revision)

    def ListQueue(self, request: v1.ListQueueRequest) -> v1.ListQueueResponse:
        waiting = v1.QueuedMessage.FATE_QUEUED
        found = [each for each in self.queued if request.include_settled or each.fate == waiting]
        page, more = _page(found[::-1] if request.descending else found, request.page_token)
        return v1.ListQueueResponse(messages=page, next_page_token=more)

    def WithdrawMessage(self, request: v1.WithdrawMessageRequest) -> v1.WithdrawMessageResponse:
        known = [each.message for each in self.queued if each.message.name == request.name]
        taken = v1.QueuedMessage(
            message=known[0] if known else v1.Message(name=request.name), fate=v1.QueuedMessage.FATE_WITHDRAWN
        )
        return v1.WithdrawMessageResponse(message=taken)

    def ListRequestCycles(self, request: v1.ListRequestCyclesRequest) -> v1.ListRequestCyclesResponse:
        if self.cycles:
            return v1.ListRequestCyclesResponse(request_cycles=self.cycles[:: -1 if request.descending else 1])
        cycles = []
        for event in self._feed:
            if event.HasField("run_stopped"):
                end = event.run_stopped
                cycles.append(v1.RequestCycle(name=end.request_cycle, stop_reason=end.reason, stop_detail=end.detail))
        return v1.ListRequestCyclesResponse(request_cycles=cycles)

    def GetRequestCycle(self, request: v1.GetRequestCycleRequest) -> v1.GetRequestCycleResponse:
        found = self.ListRequestCycles(v1.ListRequestCyclesRequest()).request_cycles
        same = (cycle for cycle in found if cycle.name.rpartition("/")[2] == request.name.rpartition("/")[2])
        return v1.GetRequestCycleResponse(request_cycle=next(same, v1.RequestCycle(name=request.name)))

    def WaitRequestCycle(self, request: v1.WaitRequestCycleRequest) -> v1.WaitRequestCycleResponse:
        """Return at once: after `waits` such calls, the end of the run."""
        cycle = self.GetRequestCycle(v1.GetRequestCycleRequest(name=request.name)).request_cycle
        if len(self.asked(v1.WaitRequestCycleRequest)) > self.waits:
            cycle.stop_reason = cycle.stop_reason or v1.STOP_REASON_COMPLETED
            cycle.end_time.GetCurrentTime()
        return v1.WaitRequestCycleResponse(request_cycle=cycle)

    def VerifyConversation(self, request: v1.VerifyConversationRequest) -> v1.VerifyConversationResponse:
        broken = ["the conversation's row cannot be read"] if request.name in self.unreadable else []
        return v1.VerifyConversationResponse(revision=self.revision, violations=broken)

    def ExportConversation(self, request: v1.ExportConversationRequest) -> Iterator[v1.ExportConversationResponse]:
        yield v1.ExportConversationResponse(line='{"kind": "conversation"}')

    def ReplayConversation(self, request: v1.ReplayConversationRequest) -> Iterator[v1.ReplayConversationResponse]:
        yield v1.ReplayConversationResponse(step=1, revision=1, event_json="{}")

    def ListTransitions(self, request: v1.ListTransitionsRequest) -> v1.ListTransitionsResponse:
        event = '{"type": "user_message"}'
        steps = [v1.Transition(step=step, event_type="user_message", event_json=event) for step in (1, 2)]
        left = [step for step in steps if step.step > request.after_step]
        page, more = _page(left[::-1] if request.descending else left, request.page_token, size=1)
        return v1.ListTransitionsResponse(transitions=page, next_page_token=more)

    def DownloadAttachment(self, request: v1.DownloadAttachmentRequest) -> Iterator[v1.DownloadAttachmentResponse]:
        yield v1.DownloadAttachmentResponse(media_type="image/png", size_bytes=4, data=b"\x89P")
        yield v1.DownloadAttachmentResponse(data=b"NG")

    def SpawnSubAgents(self, request: v1.SpawnSubAgentsRequest) -> v1.SpawnSubAgentsResponse:
        with self._changed:
            started = self._start(v1.SendMessageRequest(text="\n".join(task.task for task in request.tasks)))
        return v1.SpawnSubAgentsResponse(
            message=started.message,
            run=started.run,
            sub_agents=[f"{NAME}-a{number}" for number, _ in enumerate(request.tasks, start=1)],
            revision=started.revision,
        )

    def Subscribe(self, request: v1.SubscribeRequest, context: Context) -> Iterator[v1.SubscribeResponse]:
        if self._closing:
            raise SHUTTING_DOWN
        resume = request.HasField("after_revision")
        if resume and request.after_revision < self.oldest_revision:
            raise Refusal(grpc.StatusCode.OUT_OF_RANGE, "REVISION_TOO_OLD", "too old")
        cut = self.cuts.popleft() if self.cuts else None
        for sent, event in enumerate(self._watch(request, context)):
            if cut is not None and sent >= cut:
                for _ in range(self.skips.popleft() if self.skips else 0):
                    with self._changed:
                        self._advance()
                raise Refusal(grpc.StatusCode.UNAVAILABLE, message="the wire was cut")
            yield v1.SubscribeResponse(events=[event])

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _watch(self, request: v1.SubscribeRequest, context: Context) -> Iterator[v1.Event]:
        with self._changed:
            position = len(self._feed)
            self.conversation.revision = self.revision
            recent = [event.message_added for event in self._feed if event.HasField("message_added")]
            resume = request.HasField("after_revision")
            snapshot = v1.Event.Snapshot(
                conversation=self.conversation,
                messages=[] if resume else recent,
                partial=[] if request.omit_deltas else self._partial(),
                pending_approvals=self.conversation.state.awaiting_approval.pending,
                pending_questions=self.conversation.state.tool_executing.questions,
                queue=[each for each in self.queued if each.fate == v1.QueuedMessage.FATE_QUEUED],
            )
            missed = [event for event in self.durable if event.revision > request.after_revision] if resume else []
            head = self.revision
        yield v1.Event(snapshot=snapshot)
        yield from missed
        yield v1.Event(caught_up=v1.Event.CaughtUp(head_revision=head))
        while True:
            with self._changed:
                until = time.monotonic() + PATIENCE
                while position == len(self._feed) and not self._advance():
                    if self._pending and time.monotonic() > until:
                        raise Refusal(
                            grpc.StatusCode.FAILED_PRECONDITION, message=f"nobody answered {self._pending[0]}"
                        )
                    if self.deleted or self._closing or not context.is_active():
                        break
                    if request.until_settled and (self._pending or not self.conversation.state.busy):
                        return
                    self._changed.wait(5)
                if position == len(self._feed):
                    break
                fresh, position = self._feed[position:], len(self._feed)
            for event in fresh:
                passing = event.WhichOneof("event") in ("text_delta", "tool_output_delta")
                if not (passing and request.omit_deltas):
                    yield event
        if self.deleted:
            yield v1.Event(deleted=v1.Event.Deleted())
        elif self._closing:
            raise SHUTTING_DOWN

    def WatchConversations(
        self, request: v1.WatchConversationsRequest, context: Context
    ) -> Iterator[v1.WatchConversationsResponse]:
        yield v1.WatchConversationsResponse(conversation_changed=self.conversation)
        yield v1.WatchConversationsResponse(caught_up=v1.WatchConversationsResponse.CaughtUp())

    def ListApprovals(self, request: v1.ListApprovalsRequest) -> v1.ListApprovalsResponse:
        open_ = self.conversation.state.awaiting_approval.pending
        return v1.ListApprovalsResponse(approvals=open_, unreadable=self.unreadable)

    def ListAuditEntries(self, request: v1.ListAuditEntriesRequest) -> v1.ListAuditEntriesResponse:
        """Answer two pages of one entry that tells what was asked for."""
        entry = v1.AuditEntry(
            principal=request.principal or "ann", conversation=request.conversation, outcome=request.outcome
        )
        entry.time.CopyFrom(request.start_time)
        return v1.ListAuditEntriesResponse(entries=[entry], next_page_token="" if request.page_token else "1")

    def ListQuestions(self, request: v1.ListQuestionsRequest) -> v1.ListQuestionsResponse:
        if self.before_questions:
            raise Refusal(grpc.StatusCode.UNIMPLEMENTED, "", "Method not found!")
        open_ = self.conversation.state.tool_executing.questions
        return v1.ListQuestionsResponse(questions=open_, unreadable=self.unreadable)

    def GetQuestion(self, request: v1.GetQuestionRequest) -> v1.GetQuestionResponse:
        if request.name in self.over:
            raise Refusal(grpc.StatusCode.NOT_FOUND, "NOT_FOUND", "it is answered")
        return v1.GetQuestionResponse(question=v1.Question(name=request.name, message="Sure?"))

    def GetAttachment(self, request: v1.GetAttachmentRequest) -> v1.GetAttachmentResponse:
        return v1.GetAttachmentResponse(attachment=v1.Attachment(name=request.name, size_bytes=4))

    def GetModel(self, request: v1.GetModelRequest) -> v1.GetModelResponse:
        named = (model for model in self.models if model.name == request.name)
        return v1.GetModelResponse(model=next(named, v1.Model(name=request.name)))

    def ListModels(self, request: v1.ListModelsRequest) -> v1.ListModelsResponse:
        page, more = _page(self.models, request.page_token, size=1)
        return v1.ListModelsResponse(models=page, next_page_token=more)

    def ListTools(self, request: v1.ListToolsRequest) -> v1.ListToolsResponse:
        return v1.ListToolsResponse(tools=[v1.Tool(name="tools/bash", description="Runs a command.", writes=True)])

    def BrowseDirectory(self, request: v1.BrowseDirectoryRequest) -> v1.BrowseDirectoryResponse:
        """Answer in pages of one entry."""
        entry = v1.BrowseDirectoryResponse.Entry(name=f"file{request.page_token}")
        token = "" if request.page_token else "2"
        return v1.BrowseDirectoryResponse(path=request.path or "/root", entries=[entry], next_page_token=token)

    def ListNodes(self, request: v1.ListNodesRequest) -> v1.ListNodesResponse:
        page, more = _page(self.nodes, request.page_token, size=1)
        return v1.ListNodesResponse(nodes=page, next_page_token=more)

    def GetQuotas(self, request: v1.GetQuotasRequest) -> v1.GetQuotasResponse:
        return v1.GetQuotasResponse(quotas=self.quotas)

    def GetServerInfo(self, request: v1.GetServerInfoRequest) -> v1.GetServerInfoResponse:
        return self.info


def _page(items: list[T], token: str, size: int = PAGE_SIZE) -> tuple[list[T], str]:
    """The page of a token, and the token of the next one."""
    start = int(token or 0)
    end = start + size
    return items[start:end], str(end) if len(items) > end else ""


class FakeServer:
    """The servicer on a port of this machine, or on a Unix socket."""

    def __init__(
        self, fake: FakeBedrock, address: str = "127.0.0.1:0", *, tls: grpc.ServerCredentials | None = None
    ) -> None:
        self.fake = fake
        fake.open()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=16))
        for method in methods():
            serve(self._server, method, partial(fake.answer, method))
        server = self._server
        port = server.add_secure_port(address, tls) if tls else server.add_insecure_port(address)
        self.address = address if address.startswith("unix:") else f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        self.fake.close()
        self._server.stop(grace=None).wait(60)
