# Generated from protos/ by `make protos`; edit the contract.
"""Values that a server answers with, and some that callers make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from bedrock import v1
from bedrock._shared.wrapper import Value, Wrapper
from bedrock.types import (
    ApprovalDecision,
    ApprovalPolicy,
    AuditDecider,
    AuditOutcome,
    AuditVerdict,
    CallStatus,
    ContextState,
    Delivery,
    ErrorKind,
    EventKind,
    Fate,
    FollowUpPolicy,
    JobStatus,
    ListEventKind,
    McpServerState,
    Mode,
    ModelProtocol,
    QuestionStatus,
    ReasoningEffort,
    RequestPhase,
    Role,
    RuleAction,
    RuleOrigin,
    SandboxTier,
    StateKind,
    StopReason,
    SystemMessageKind,
    ToolAudience,
    ToolGroup,
    ToolOutcome,
    UnofferedReason,
)


@dataclass(frozen=True, slots=True)
class Image(Wrapper[v1.Image]):
    """An image.

    Clients send `data`; the server stores the original, and responses and events refer to it by `attachment`.
    """

    media_type: str
    """The format: image/png, image/jpeg, image/gif or image/webp. The server checks the bytes, too, and refuses an
    image of another format.
    """
    attachment: str
    """The stored original, `conversations/{conversation}/attachments/{attachment}`, which DownloadAttachment reads.
    Ignored in requests.
    """
    width: int
    """The width in pixels. Ignored in requests."""
    height: int
    """The height in pixels. Ignored in requests."""


@dataclass(frozen=True, slots=True)
class Attachment(Wrapper[v1.Attachment]):
    """A stored image."""

    name: str
    """The resource name, `conversations/{conversation}/attachments/{attachment}`."""
    media_type: str
    """The format of the image, for example image/png."""
    size_bytes: int
    """The size of the image in bytes."""
    width: int
    """The width in pixels."""
    height: int
    """The height in pixels."""


@dataclass(frozen=True, slots=True)
class ToolCall(Wrapper[v1.ToolCall]):
    """A tool call that the model requested."""

    tool_use_id: str
    """The id of the call, unique in the conversation."""
    tool: str
    """The tool as the model named it, without the prefix `tools/`. A call of a tool that does not exist gets an
    error result.
    """
    input: dict[str, Any] = field(hash=False)
    """The input. Unset if the model did not write a valid JSON object, or if the object is too large or too deeply
    nested for a Struct.
    """
    raw_input: str
    """The input as the model wrote it, if `input` is unset; otherwise empty. A call whose input is not a valid JSON
    object gets an error result and never runs; a call whose input is only too large or too deeply nested for a
    Struct runs like any other.
    """
    group: ToolGroup | Literal[""]
    """The kind of work that the tool does."""


@dataclass(frozen=True, slots=True)
class ToolResult(Wrapper[v1.ToolResult]):
    """The result of a tool call. Every call gets exactly one result, whatever happens."""

    tool_use_id: str
    """The id of the call."""
    outcome: ToolOutcome
    """How the call ended."""
    output: str
    """The text that the model gets. Long output is shortened in the middle, and says so."""
    images: tuple[Image, ...]
    """Images that the model gets with the output."""
    display: dict[str, Any] = field(hash=False)
    """Data that clients can show to people instead of the output, for example a diff. The keys depend on the tool:
    `for_agent` is the part of the output that need not be shown to people, and `structured_content` is an MCP
    tool's structured result. Unset if the tool returns no such data.
    """
    duration: timedelta | None
    """How long the call ran. Unset if it never started."""


@dataclass(frozen=True, slots=True)
class ContentBlock(Wrapper[v1.ContentBlock]):
    """One part of a message."""

    text: str
    """Text. The agent's text is in Markdown."""
    reasoning: str
    """The model's reasoning, if the provider shows it."""
    image: Image | None
    """An image."""
    tool_call: ToolCall | None
    """A tool call that the model requested."""
    tool_result: ToolResult | None
    """The result of a tool call."""


@dataclass(frozen=True, slots=True)
class RunError(Wrapper[v1.RunError]):
    """Why a run, an attempt or a sub-agent failed."""

    kind: ErrorKind
    """The kind of failure."""
    message: str
    """One or two sentences for people: what happened, after how many attempts, and what to do about it. They reveal
    no internals of the server.
    """


@dataclass(frozen=True, slots=True)
class Message(Wrapper[v1.Message]):
    """A stored message. Messages are only appended: none is changed or removed while the conversation exists."""

    name: str
    """The resource name, `conversations/{conversation}/messages/{message}`. A queued message already has its final
    name.
    """
    sequence: int
    """The number of the message in the conversation, counted from 1 without gaps. Zero while the message waits in
    the queue.
    """
    role: Role
    """Who wrote the message."""
    delivery: Delivery | Literal[""]
    """How the message entered the conversation. Unset unless the role is "user"."""
    content: tuple[ContentBlock, ...]
    """The parts of the message, in order."""
    usage: Usage | None
    """The tokens and the cost of the response. Unset unless a model wrote the message and the provider reported its
    usage.
    """
    create_time: datetime
    """When the message was stored or, while it waits in the queue, accepted."""
    request_cycle: str
    """The request cycle that the message belongs to, `conversations/{conversation}/requestCycles/{request_cycle}`.
    Empty for a message between cycles, such as a change of the mode while no run is open, and for a follow-up
    that waits.
    """
    llm_request_id: str
    """The model request to which the message is the response. The text that was streamed for this request and
    `attempt` is part of the message. Empty unless a model wrote the message.
    """
    attempt: int
    """The attempt of that request. Zero unless a model wrote the message."""
    system_kind: SystemMessageKind | Literal[""]
    """Why the server wrote the message. Unset unless the server wrote it for the model."""
    error_kind: ErrorKind | Literal[""]
    """Why the run failed, or no summary was written. Unset unless the role is "error"."""
    meta: bool
    """Whether the server wrote the message only for the model, for example "Continue.", or that the last run was
    interrupted. Clients need not show it to people.
    """

    @property
    def text(self) -> str:
        """All text of the message; empty if there is none, as in tool results."""
        return "\n\n".join(block.text for block in self.content if block.text)

    @property
    def reasoning(self) -> str:
        """The reasoning that the model made visible; empty if there is none."""
        return "\n\n".join(block.reasoning for block in self.content if block.reasoning)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in the message, in order."""
        return tuple(block.tool_call for block in self.content if block.tool_call is not None)

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The tool results in the message."""
        return tuple(block.tool_result for block in self.content if block.tool_result is not None)

    @property
    def images(self) -> tuple[Image, ...]:
        """The images in the message, also those in tool results.

        `Conversation.attachment` reads an image by its name.
        """
        found: list[Image] = []
        for block in self.content:
            if block.image is not None:
                found.append(block.image)
            if block.tool_result is not None:
                found += block.tool_result.images
        return tuple(found)


@dataclass(frozen=True, slots=True)
class QueuedMessage(Wrapper[v1.QueuedMessage]):
    """A queued message (a steer or a follow-up), and what happened to it."""

    message: Message
    """The message. Its `delivery` is either that of a steer or that of a follow-up."""
    fate: Fate
    """What happened to the message."""
    settle_time: datetime | None
    """When the message left the queue. Unset while it waits."""


@dataclass(frozen=True, slots=True)
class ApprovalRule(Wrapper[v1.ApprovalRule]):
    """A rule that decides whether tool calls run immediately, need a person's approval, or never run.

    Rules that deny take precedence over rules that ask, and those over rules that allow, regardless of who made
    them. If no rule matches, the conversation's `approval_policy` decides. Rules are for convenience; the mode
    limits what tools can do at all.
    """

    name: str
    """The name of the rule, `conversations/{conversation}/approvalRules/{approval_rule}`, or
    `approvalRules/{approval_rule}` for a rule of the server's operator. Set by the server; empty in a suggestion.
    """
    action: RuleAction
    """What happens to the calls that the rule matches. Required; ignored in a request of ResolveApproval, where the
    decision determines the action.
    """
    tool: str
    """All calls of one tool, `tools/{tool}`."""
    command: str
    """One shell command: either the whole text of a call, or one command in it with exactly these words, however
    they are quoted. 4096 characters at most.
    """
    command_prefix: str
    """Shell commands that begin with these words, however they are quoted. A rule that allows them also allows
    operands after them, and options that it names or that are known to be harmless. It can allow only programs
    that never execute what their arguments name (`git status`, `make`, `ls`, …), not `env`, `docker run` or
    programs that the server does not know, and no words whose value is known only when the command runs
    (variables, patterns). A call is allowed if each command of its pipelines and lists is. A text whose commands
    cannot be determined before it runs (because of substitutions, assignments, redirections to files, loops or
    functions) is never allowed by a prefix, and needs approval if a prefix is denied. A rule that denies or asks
    matches wherever in a command its words begin. 4096 characters at most.
    """
    path: str
    """Reading and writing beneath a directory, by tools that take a path: an absolute path on the server. Symbolic
    links in the path are resolved once, when the rule is made. Paths do not match shell commands. 4096 characters
    at most.
    """
    mcp_server: str
    """All calls of the tools of the MCP server with this name."""
    create_time: datetime | None
    """When the rule was made. Unset if that is unknown, and for rules of the operator."""
    creator: str
    """The principal that made the rule. Empty if that is unknown, and for rules of the operator."""
    origin: RuleOrigin
    """Who made the rule."""

    @property
    def kind(self) -> str:
        """The name of the field that is set: "tool", "command", "command_prefix", "path" or "mcp_server"."""
        return self.proto.WhichOneof("subject") or ""

    @property
    def subject(self) -> str:
        """The value of the field that `kind` names; a tool's name comes without ``tools/``."""
        return str(getattr(self, self.kind)).removeprefix("tools/") if self.kind else ""


@dataclass(frozen=True, slots=True)
class ModeUpgrade(Wrapper[v1.PendingApproval.ModeUpgrade]):
    """The agent requests a mode with more rights."""

    tool_use_id: str
    """The id of the tool call with which the agent requests the mode."""
    reason: str
    """The reason in the agent's own words. Do not trust it blindly."""
    mode: Mode
    """The requested mode, "workspace" or "unrestricted". Approval sets this mode and never one with more rights."""
    workspace_available: bool
    """Whether "workspace" can be granted instead: set this mode with SetMode, and deny the request. False if the
    directory or the machine cannot have it, or if `mode` or the mode of the conversation gives no fewer rights.
    """


@dataclass(frozen=True, slots=True)
class Approval(Wrapper[v1.PendingApproval]):
    """A tool call that a person must approve or deny before it can run.

    The request for approval stays open until it is decided or withdrawn: it never times out, and a restart of the
    server withdraws it.
    """

    name: str
    """The name of the request for approval, `conversations/{conversation}/approvals/{approval}`, which
    ResolveApproval takes.
    """
    tool_call: ToolCall | None
    """Permission to run this tool call."""
    mode_upgrade: ModeUpgrade | None
    """Permission to change to a mode with more rights."""
    create_time: datetime | None
    """When the approval was requested."""
    suggestions: tuple[ApprovalRule, ...]
    """Rules that would allow calls like this one, the narrowest first: for its exact command, for the beginning of
    its command, for its directory, for its tool. Send one of them with the decision to create it; with a denial,
    the rule denies such calls. Empty if no rule can help.
    """
    rule: ApprovalRule | None
    """The rule that requires approval, as it was at that time: either a rule that asks, or a rule that denies and
    might match, which only running the call would show. Unset if the approval policy or the tool itself requires
    approval.
    """

    @property
    def tool_use_id(self) -> str:
        """The id of the tool call that needs approval, or by which the agent asks for a wider mode."""
        return self.name.rpartition("/")[2]

    @property
    def tool(self) -> str:
        """The name of the tool that is to run; "request_mode_upgrade" if the agent asks for a wider mode."""
        if self.mode_upgrade is not None:
            return "request_mode_upgrade"
        return "" if self.tool_call is None else self.tool_call.tool

    @property
    def input(self) -> dict[str, Any]:
        """The input of the call; ``{"reason": …}`` for the request of a wider mode.

        If the model wrote no valid JSON object, the input is ``{"raw_input": …}``.
        """
        if self.mode_upgrade is not None:
            return {"reason": self.mode_upgrade.reason}
        return {} if (call := self.tool_call) is None else call.input or {"raw_input": call.raw_input}

    @property
    def conversation(self) -> str:
        """The resource name of the conversation that waits for the answer."""
        return self.name.partition("/approvals/")[0]


@dataclass(frozen=True, slots=True)
class Question(Wrapper[v1.Question]):
    """A question that a running tool call asks a person.

    MCP servers can ask such questions in the middle of a call (elicitation). The call continues whatever the
    answer is; its own time limit does not run while it waits.

    The text comes from the MCP server: do not trust it blindly. Never enter secrets into a form: the answer goes
    to the MCP server, is stored in the conversation's log, and may be shown to the model.
    """

    name: str
    """The name of the question, `conversations/{conversation}/questions/{question}`, which AnswerQuestion takes."""
    tool_use_id: str
    """The id of the tool call that asks."""
    tool: str
    """The tool of that call, `tools/{tool}`."""
    mcp_server: str
    """The name of the MCP server."""
    message: str
    """The text of the question. 4096 characters at most."""
    requested_schema: dict[str, Any] | None = field(hash=False)
    """Fill in a form. This is a JSON Schema of an object without nesting: each of its `properties` is a string, a
    number, a boolean or a choice. `propertyOrder` lists their names in the order of the form, because a Struct
    has no order.
    """
    url: str
    """Visit this URL, for example to log in. The server never visits it. Accepting the question means that the
    person has visited the URL, or is about to.
    """
    create_time: datetime
    """When the question was asked."""
    deadline: datetime
    """The deadline for an answer."""
    status: QuestionStatus
    """Whether the question is still waiting, and if not, how it ended."""

    @property
    def conversation(self) -> str:
        """The resource name of the conversation that waits for the answer."""
        return self.name.partition("/questions/")[0]


@dataclass(frozen=True, slots=True)
class PendingSubAgent(Wrapper[v1.SubAgent]):
    """A working sub-agent, with its parent's data about it.

    The sub-agent's own conversation can be read and watched like any other: GetConversation and Subscribe show
    its state, its running tool, when it began and what it has used; its first message is its whole task.
    """

    conversation: str
    """The sub-agent's conversation, `conversations/{conversation}`."""
    task: str
    """The first line of the sub-agent's task, 200 characters at most."""
    task_index: int
    """The position of the task among those started together, counted from 0."""
    deadline: datetime
    """The time limit. A sub-agent that is still working then is stopped, and fails with "timed_out"."""


@dataclass(frozen=True, slots=True)
class SubAgentReport(Wrapper[v1.Event.SubAgentsChanged.Report]):
    """How one sub-agent ended."""

    conversation: str
    """The sub-agent's conversation, `conversations/{conversation}`. Empty if the sub-agent could not be started."""
    task: str
    """The first line of the sub-agent's task, 200 characters at most."""
    task_index: int
    """The position of the task among those started together, counted from 0."""
    state: StateKind
    """"completed" or "failed"."""
    result: str
    """The first 4096 characters of the result that the sub-agent submitted; its own conversation contains the whole
    result. Empty unless it completed.
    """
    error: RunError | None
    """Why the sub-agent failed. Unset unless it failed."""
    partial_result: str
    """The first 4096 characters of the last text that the sub-agent wrote. Empty unless it failed."""


@dataclass(frozen=True, slots=True)
class SubAgentsChanged(Wrapper[v1.Event.SubAgentsChanged]):
    """A sub-agent ended while the conversation was waiting for it.

    The event lists all sub-agents that were started together, so the latest of these events shows the state of
    all. When the last one has ended, `pending` is empty, and the next event is the message with all results.

    The start of sub-agents is reported by `state_changed`: the state names the sub-agents and their tasks. To
    show what a sub-agent is doing, watch its own conversation. That conversation is created a moment after the
    state names it, so at first it can be NOT_FOUND. Its last state shows how the sub-agent ended, even if the
    parent was cancelled and is no longer waiting for it.
    """

    pending: tuple[PendingSubAgent, ...]
    """The sub-agents that are still working, in the order of their tasks."""
    reports: tuple[SubAgentReport, ...]
    """How the others ended, in the order in which they ended."""


@dataclass(frozen=True, slots=True)
class LlmRequestingDetail(Wrapper[v1.ConversationState.LlmRequesting]):
    """A request to the model."""

    llm_request_id: str
    """Identifies the request. All its attempts have the same id. Text deltas refer to the request by this id and the
    attempt.
    """
    attempt: int
    """The number of the running attempt, counted from 1; while the phase is "backoff", that of the next one."""
    max_attempts: int
    """The maximum number of attempts."""
    phase: RequestPhase
    """The phase of the attempt."""
    retry_time: datetime | None
    """When the next attempt starts. Set only while the phase is "backoff"."""
    last_error: RunError | None
    """Why the previous attempt failed. Unset on the first attempt."""


@dataclass(frozen=True, slots=True)
class AwaitingApprovalDetail(Wrapper[v1.ConversationState.AwaitingApproval]):
    """Tool calls in a response wait until a person has decided. No call in the response has run yet."""

    pending: tuple[Approval, ...]
    """The calls that are still undecided, in the order of the response. If all of them are approved, all calls in
    the response run; the first denial ends the wait, and none of them runs.
    """


@dataclass(frozen=True, slots=True)
class ToolExecutingDetail(Wrapper[v1.ConversationState.ToolExecuting]):
    """The tool calls in a response are running, one after another."""

    current: ToolCall
    """The call that is running, or that will run again at `retry_time`."""
    attempt: int
    """The number of the attempt, counted from 1. Only a call of a tool that changes nothing can have a second
    attempt.
    """
    max_attempts: int
    """The maximum number of attempts."""
    retry_time: datetime | None
    """When the next attempt starts. Unset while the call runs."""
    remaining_count: int
    """The number of calls in the response that have not started yet."""
    completed_count: int
    """The number of calls in the response that have ended."""
    deadline: datetime | None
    """If a client runs the tool: until when the client's answer is accepted. Unset for tools of the server."""
    questions: tuple[Question, ...]
    """The unanswered questions that the tool asks a person, in the order of asking."""


@dataclass(frozen=True, slots=True)
class AwaitingSubAgentsDetail(Wrapper[v1.ConversationState.AwaitingSubAgents]):
    """Sub-agents are working."""

    pending: tuple[PendingSubAgent, ...]
    """The sub-agents that are still working, in the order of their tasks."""
    completed_count: int
    """The number of sub-agents that have ended, with or without success."""


@dataclass(frozen=True, slots=True)
class CompletedDetail(Wrapper[v1.ConversationState.Completed]):
    """A sub-agent submitted its result."""

    result: str
    """The result that the sub-agent submitted."""


@dataclass(frozen=True, slots=True)
class FailedDetail(Wrapper[v1.ConversationState.Failed]):
    """A sub-agent ended without a result."""

    error: RunError
    """Why the sub-agent failed."""
    partial_result: str
    """The last text that the sub-agent wrote. Empty if it wrote none, or if it reported the failure itself."""


@dataclass(frozen=True, slots=True)
class ConversationState(Wrapper[v1.ConversationState]):
    """The state of a conversation, and the details of that state."""

    kind: StateKind | Literal[""]
    """The kind of the state."""
    enter_time: datetime
    """When the conversation entered the state."""
    llm_requesting: LlmRequestingDetail | None
    """For "llm_requesting" and for "awaiting_continuation", because the request for a summary streams and is retried
    like any other request.
    """
    awaiting_approval: AwaitingApprovalDetail | None
    """For "awaiting_tool_approval"."""
    tool_executing: ToolExecutingDetail | None
    """For "tool_executing"."""
    awaiting_sub_agents: AwaitingSubAgentsDetail | None
    """For "awaiting_sub_agents"."""
    error: RunError | None
    """For "error"."""
    completed: CompletedDetail | None
    """For "completed"."""
    failed: FailedDetail | None
    """For "failed"."""
    busy: bool
    """Whether a message with "direct" would be refused because the conversation is busy. False in idle, error and
    terminal states.
    """
    run: str
    """The open run, `conversations/{conversation}/requestCycles/{request_cycle}`. Empty if no run is open."""

    @property
    def failure(self) -> RunError | None:
        """Why the last run failed (state "error") or the sub-agent failed (state "failed"); None in other states."""
        return self.error if self.failed is None else self.failed.error

    @property
    def approvals(self) -> tuple[Approval, ...]:
        """The open approvals; empty in states without approvals."""
        return () if self.awaiting_approval is None else self.awaiting_approval.pending

    @property
    def questions(self) -> tuple[Question, ...]:
        """The open questions of the running tool to a person; empty in states without questions."""
        return () if self.tool_executing is None else self.tool_executing.questions


@dataclass(frozen=True, slots=True)
class ToolCallGroup(Wrapper[v1.ToolCallGroup]):
    """Tool calls that follow each other and whose tools are of the same group."""

    group: ToolGroup
    """The group."""
    calls: tuple[ToolCall, ...]
    """The calls, in order."""
    results: dict[str, ToolResult] = field(hash=False)
    """The results of the calls, by `tool_use_id`. A call that is not in the map has no result yet."""


@dataclass(frozen=True, slots=True)
class AiBlock(Wrapper[v1.AiBlock]):
    """One text of the agent, with the tool calls that followed before the next text."""

    assistant: str
    """The text that the agent wrote for people. Empty if `synthetic` is set."""
    reasoning: str
    """The agent's reasoning."""
    synthetic: bool
    """Whether the agent called tools without writing a text before, so that this block exists only to contain the
    calls.
    """
    tool_call_groups: tuple[ToolCallGroup, ...]
    """The calls, in order. Adjacent calls whose tools are of the same group are in one entry."""
    message: str
    """The message that contains the text, `conversations/{conversation}/messages/{message}`. Empty if `synthetic` is
    set.
    """


@dataclass(frozen=True, slots=True)
class ResolutionStep(Wrapper[v1.ResolutionStep]):
    """One step of the view for people."""

    root: Message | None
    """The first message of the cycle. It is always the first step."""
    steer: Message | None
    """A message that the model got during the run."""
    ai_block: AiBlock | None
    """One text of the agent, with the tool calls that belong to it."""


@dataclass(frozen=True, slots=True)
class InferenceRound(Wrapper[v1.InferenceRound]):
    """One request to the model and its response."""

    llm_request_id: str
    """The id of the model request."""
    inputs: tuple[str, ...]
    """The new messages of this request since the round before, `conversations/{conversation}/messages/{message}`:
    the root, tool results, steers. Empty if the model was only asked to continue.
    """
    output: str
    """The message that is the response. Empty if there is none yet."""
    usage: Usage | None
    """The tokens and the cost of the response. Unset if there is none yet."""
    output_time: datetime | None
    """When the response was stored. Unset if there is none yet."""
    tool_use_ids: tuple[str, ...]
    """The ids of the tool calls that the response contains, in order, as in ToolCall.tool_use_id."""


@dataclass(frozen=True, slots=True)
class RequestCycle(Wrapper[v1.RequestCycle]):
    """All the work for one user message: the message.

    The agent's work on it, and the messages that joined the run (steers), until the run ended. Each run is one
    request cycle with the same name.

    A cycle has two views: `steps` is made for people, and `rounds` shows the requests to the model.
    """

    name: str
    """The resource name, `conversations/{conversation}/requestCycles/{request_cycle}`."""
    root_delivery: Delivery
    """How the first message (root) entered the conversation: "direct" or "follow_up". A steer that came while no run
    was open counts as direct.
    """
    stop_reason: StopReason | Literal[""]
    """How the run ended. Unset while it is open."""
    stop_detail: str
    """A more detailed reason, as in Event.RunStopped. Empty if there is none."""
    steps: tuple[ResolutionStep, ...]
    """The view for people. Empty if the request did not ask for it."""
    rounds: tuple[InferenceRound, ...]
    """The view of the model requests. Empty if the request did not ask for it, and for a cycle without a model
    request.
    """
    start_time: datetime
    """When the first message was stored."""
    end_time: datetime | None
    """When the run ended. Unset while it is open."""
    events: tuple[str, ...]
    """The events from which the views are made, each as a JSON object, in order: `user-message` (the root), `agent-
    output`, `tool-result` and at the end `run-stop`. Empty if the request did not ask for them. The command
    `bedrock cycles` makes cycles of such lines. In a list of several cycles, the `user-message` of a follow-up
    comes before the `run-stop` for which the follow-up waited.
    """
    output: Any = field(hash=False)
    """The value that the run ended with, as in Event.RunStopped."""


@dataclass(frozen=True, slots=True)
class Model(Wrapper[v1.Model]):
    """A model that conversations can use."""

    name: str
    """The resource name, `models/{model}`. The id may contain slashes."""
    display_name: str
    """The name of the model for people."""
    provider: str
    """The provider that serves the model, by its name in the server's configuration."""
    protocol: ModelProtocol
    """The protocol in which the server talks to the provider."""
    context_window_tokens: int
    """The maximum number of tokens of input and output together. Zero if unknown."""
    input_limit_tokens: int
    """The maximum number of tokens of input. Zero if no limit is known apart from the context window."""
    max_output_tokens: int
    """The maximum number of tokens that the server allows in one response."""
    usable_window_tokens: int
    """The number of tokens that a conversation can use: the input limit, or the context window minus the tokens
    reserved for an answer, whichever is smaller. The thresholds of 80 and 90 percent are parts of this number.
    Always set.
    """
    limits_assumed: bool
    """Whether the limits above are assumed, because neither the provider nor the server's catalogue contains them:
    32,768 tokens over OpenAI's protocols, otherwise the limits of the smallest known window.
    """
    images: bool
    """Whether the server sends images to the model: it accepts them, or this is unknown. If false, a message with an
    image is refused, and requests contain a note instead of each image of the history, for example of a tool's
    result.
    """
    default: bool
    """Whether conversations use this model if they are created without naming one. True for exactly one model,
    unless the list is empty.
    """
    reasoning_efforts: tuple[ReasoningEffort, ...]
    """The reasoning efforts that `Generation` can set for the model. Empty if there are none."""
    temperature: bool
    """Whether `Generation` can set the temperature of the model."""
    structured_output: bool
    """Whether the provider itself makes the model keep to the `output_schema` of a run. With other models the agent
    ends the run by calling a tool.
    """
    images_assumed: bool
    """Whether `images` is only assumed, because it is unknown if the model accepts images. Both become false when
    the provider refuses images.
    """


@dataclass(frozen=True, slots=True)
class Tool(Wrapper[v1.Tool]):
    """A tool that agents can call."""

    name: str
    """The resource name, `tools/{tool}`."""
    description: str
    """What the tool does, as text for the model."""
    input_schema: dict[str, Any] = field(hash=False)
    """The JSON Schema of the tool's input."""
    modes: tuple[Mode, ...]
    """The modes in which the tool works. In other modes a call of the tool gets an error result that explains how to
    ask for more rights.
    """
    group: ToolGroup
    """The kind of work that the tool does."""
    retry_safe: bool
    """Whether a call can be retried after an infrastructure failure. This is true only of tools that change nothing;
    a call of a tool that can change something is never started twice.
    """
    requires_approval: bool
    """Whether a person must approve every call of the tool, whatever the approval policy. For other tools the policy
    of the conversation decides.
    """
    writes: bool
    """Whether the tool can change something, so that "ask_writes" requires approval of its calls."""
    audience: ToolAudience
    """The agents that can call the tool."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry(Wrapper[v1.BrowseDirectoryResponse.Entry]):
    """An entry of a directory."""

    name: str
    """The name of the entry, without the path."""
    directory: bool
    """Whether the entry is a directory, or a symbolic link to one."""


@dataclass(frozen=True, slots=True)
class DirectoryListing(Wrapper[v1.BrowseDirectoryResponse]):
    """The response of BrowseDirectory."""

    path: str
    """The real path of the directory: absolute, without symbolic links."""
    entries: tuple[DirectoryEntry, ...]
    """One page of the entries of the directory: directories first, then files, each ordered by name."""
    truncated: bool
    """Whether the directory has more than 100000 entries. Then only 100000 of them, chosen arbitrarily, are listed."""


@dataclass(frozen=True, slots=True)
class Sandbox(Wrapper[v1.GetServerInfoResponse.Sandbox]):
    """The capabilities of the sandbox on this machine, as tested when the server starts."""

    tier: SandboxTier
    """The technique that enforces "restricted"."""
    restricted_available: bool
    """Whether conversations can be in "restricted". If not, a request for that mode is refused with
    MODE_UNAVAILABLE.
    """
    reason: str
    """Why no better tier is used, and what an operator can do about it. Never empty if "restricted" is not
    available, always empty with "a".
    """
    landlock_abi: int
    """The version of the kernel's Landlock interface. Zero if the kernel has none."""
    hides_server_files: bool
    """Whether tools cannot read the server's own files (its data, token, keys and settings) even in "unrestricted".
    In "restricted" they never can.
    """
    by_setting: bool
    """Whether the operator chose this tier with the `sandbox` setting, so that the machine may support a better one."""
    kernel_bounds_processes: bool
    """Whether the kernel limits a tool's number of processes. If not, the server counts them many times a second,
    and kills a tool that has too many.
    """
    kernel_bounds_memory: bool
    """Whether the kernel limits how much memory all processes of a tool use together. If not, the server measures
    it, and kills a tool that uses too much.
    """
    workspace_available: bool
    """Whether conversations can be in "workspace". Some directories cannot be workspaces even then; a request for
    the mode there is refused with MODE_UNAVAILABLE.
    """
    workspace_reason: str
    """Why conversations cannot be in "workspace", and what an operator can do about it. Empty if they can."""


@dataclass(frozen=True, slots=True)
class Limits(Wrapper[v1.GetServerInfoResponse.Limits]):
    """The limits that apply to clients. All of them are set."""

    max_request_bytes: int
    """The maximum number of bytes of a request message. gRPC itself refuses a larger one with RESOURCE_EXHAUSTED,
    without an ErrorInfo.
    """
    max_response_bytes: int
    """The maximum number of bytes of a response message, including a page or a batch of events."""
    max_text_bytes: int
    """The maximum number of bytes (in UTF-8) of the text of one message."""
    max_image_bytes: int
    """The maximum number of bytes of one image."""
    max_image_pixels: int
    """The maximum number of pixels of one image: its width times its height."""
    max_images_per_message: int
    """The maximum number of images in one message."""
    max_queue_length: int
    """The maximum number of queued messages (steers and follow-ups) of one conversation."""
    max_conversations_page_size: int
    """The maximum number of conversations on one page of ListConversations."""
    max_messages_page_size: int
    """The maximum number of messages on one page of ListMessages."""
    max_request_cycles_page_size: int
    """The maximum number of cycles on one page of ListRequestCycles."""
    max_queue_page_size: int
    """The maximum number of messages on one page of ListQueue."""
    max_recent_messages: int
    """The maximum number of recent messages in the snapshot of Subscribe."""
    max_model_response_bytes: int
    """The maximum number of bytes (in UTF-8) of one response of the model: its text, its reasoning, and the names
    and inputs of its tool calls together. A larger response fails the run with "response_too_large", and so does
    one with more than 2,048 parts (texts, pieces of reasoning and tool calls).
    """
    max_attempts: int
    """The maximum number of attempts of a model request, including the first one."""
    max_rounds_per_run: int
    """The maximum number of model requests in one run."""
    max_sub_agents: int
    """The maximum number of sub-agents that one call can start."""
    default_sub_agent_turns: int
    """The maximum number of turns (model requests) of a sub-agent whose task sets no limit."""
    default_sub_agent_timeout: timedelta
    """The time limit of a sub-agent whose task sets none."""
    max_sub_agent_turns: int
    """The highest turn limit that a task can set."""
    max_sub_agent_timeout: timedelta
    """The longest time limit that a task can set."""
    max_streams: int
    """The maximum number of streams that can be open on the server at the same time, including waiting calls of
    WaitRequestCycle.
    """
    heartbeat_interval: timedelta
    """The longest time without an event on a stream; after it, a heartbeat is sent."""
    watcher_stall_timeout: timedelta
    """How long a client can stop reading its stream while events wait, before the server ends the stream."""


@dataclass(frozen=True, slots=True)
class McpToolLeftOut(Wrapper[v1.McpServer.ToolLeftOut]):
    """A tool that an MCP server lists, but that is not offered."""

    name: str
    """The server's name for the tool, shortened. Empty if it has none."""
    reason: str
    """Why the tool is not offered, as text for people."""


@dataclass(frozen=True, slots=True)
class ServerInfo(Wrapper[v1.GetServerInfoResponse]):
    """The response of GetServerInfo."""

    version: str
    """The version of the server (semantic versioning)."""
    sandbox: Sandbox
    """The capabilities of the sandbox on this machine."""
    limits: Limits
    """The limits that apply to clients."""
    default_model: str
    """The model of conversations that are created without naming one, `models/{model}`. Empty if there is none."""
    default_mode: Mode
    """The mode of conversations that are created without naming one."""
    sqlite_version: str
    """The version of the SQLite library that the store uses. Empty if the store uses another database."""
    mcp_servers: tuple[McpServer, ...]
    """The MCP servers that the operator has set up, in the order of the settings. Their tools are offered in every
    conversation, but not to sub-agents.
    """
    ends_when_unused: bool
    """Whether the server stops by itself once no client is connected and no run is open, like a server started by a
    terminal. Background jobs end with it.
    """
    principal: str
    """The principal of the caller."""
    role: str
    """The caller's role: "reader" (read only), "user" or "operator", as in AuditEntry."""


@dataclass(frozen=True, slots=True)
class Quota(Wrapper[v1.Quota]):
    """A limit on usage by one principal, or by all together.

    A call that exceeds it is refused with QUOTA_EXCEEDED, or waits for its turn.
    """

    principal: str
    """The principal. Empty for all principals together."""
    quota: str
    """The name of the quota in the operator's settings: `concurrent_runs`, `concurrent_model_requests`, `streams`,
    `calls_per_second`, `stored_bytes`, `tokens_per_day`, `tokens_per_month`, `cost_per_day` or `cost_per_month`.
    More names may be added.
    """
    limit: int
    """The limit. Costs are in millionths of a US dollar. Zero means no limit."""
    used: int
    """The current usage, in the same unit. Stored bytes are measured only from time to time."""
    reset_time: datetime | None
    """When the usage is reset to zero. Unset for quotas whose usage falls when runs, requests or streams end."""


@dataclass(frozen=True, slots=True)
class Node(Wrapper[v1.Node]):
    """A running server, as it is seen by itself or by another server that shares its database."""

    incarnation: int
    """The number of the node: no other node ever has the same number, and nodes that start later have greater
    numbers. Zero for a server that shares no database.
    """
    name: str
    """The name that the operator gave to the node. Empty unless the node shares its conversations with others."""
    address: str
    """The address at which other nodes reach this one, `host:port`. Empty if it shares its conversations with no
    other node.
    """
    version: str
    """The version of the node's software."""
    draining: bool
    """Whether the node is about to stop and accepts no more conversations."""
    active_conversations: int
    """The number of conversations in the node's memory, as last reported."""
    answering: bool
    """Whether this node answers the call."""
    workspaces: tuple[str, ...]
    """Directories that this node has and some other nodes do not have. Conversations that work in one of them run
    only on nodes that have it.
    """


@dataclass(frozen=True, slots=True)
class AuditDecision(Wrapper[v1.AuditEntry.Decision]):
    """A decision about a tool call."""

    tool_use_id: str
    """The id of the tool call."""
    tool: str
    """Its tool, `tools/{tool}`. Empty for the answer of a person."""
    verdict: AuditVerdict
    """The decision."""
    decider: AuditDecider
    """Who or what decided."""
    approval_rules: tuple[str, ...]
    """The approval rules that led to the decision: those that allow the call, require approval of it, or deny it."""


@dataclass(frozen=True, slots=True)
class AuditEntry(Wrapper[v1.AuditEntry]):
    """An entry of the audit trail."""

    time: datetime
    """When the call was made or the decision was taken."""
    outcome: AuditOutcome
    """Whether the call was accepted or refused."""
    reason: str
    """Why the call was refused: a RefusalReason without its prefix, or the name of the gRPC status. Empty for
    accepted calls.
    """
    principal: str
    """The principal of the caller. Empty for a caller without a valid token, and for entries that no caller caused,
    such as decisions by rules.
    """
    role: str
    """The role of the caller: `reader`, `user` or `operator`."""
    token: str
    """The id of the token, as `bedrock token list` shows it. Empty for the server's own user."""
    peer: str
    """The address of the caller without its port, in the form of gRPC: `ipv4:192.0.2.1`, or `unix:` for a program on
    the same machine.
    """
    method: str
    """The name of the called method, such as `SendMessage`. Empty for entries that no caller caused, and for
    refusals too numerous to store one by one, which `count` counts.
    """
    conversation: str
    """The conversation of the call. Empty if the call was refused before the server looked for the conversation."""
    request_id: str
    """The `request_id` of the call. Empty if it had none."""
    count: int
    """The number of calls that the entry represents: refusals for the same reason within a minute are counted in one
    entry.
    """
    decisions: tuple[AuditDecision, ...]
    """The decisions about tool calls, and who or what made them."""
    step: int
    """The number of the step in the conversation's log that contains the entry, as ReplayConversation counts them.
    Zero if no log contains the entry.
    """


@dataclass(frozen=True, slots=True)
class UnofferedTool(Wrapper[v1.UnofferedTool]):
    """A client tool that the agent is not offered."""

    name: str
    """The name of the tool, as in ClientTool."""
    reason: UnofferedReason | Literal[""]
    """Why the tool is not offered."""
    text: str
    """Why the tool is not offered, and what to change, as text for people."""


@dataclass(frozen=True, slots=True)
class ConversationInfo(Wrapper[v1.Conversation]):
    """A conversation between people and one agent, in one working directory.

    Some fields are set when the conversation is created, and some can be updated: their comments say so. All
    others are set by the server, and a value that a client sends for them is ignored.
    """

    name: str
    """The resource name, `conversations/{conversation}`. It never changes. Calls also accept `conversations/{slug}`;
    responses always contain the id.
    """
    slug: str
    """A short readable name, unique among the conversations of a principal: lower-case letters, digits and hyphens,
    63 characters at most. A slug that has the form of a conversation's id is INVALID_ARGUMENT, so that every name
    is unambiguous. Set at creation; if empty there, the server chooses one. Can be updated.
    """
    title: str
    """A title for people, 256 characters at most. If none is set, the first message gives the conversation a title
    (unless the server is configured to give none), which a better one may replace within the next minute. Set at
    creation, and can be updated; the server never replaces a title that a client has set.
    """
    working_directory: str
    """The real, absolute path of the directory in which tools start. Set at creation, where it is required and must
    be an existing directory of the server; symbolic links are resolved once, at that time. If the directory
    disappears later, tools return an error result.
    """
    model: str
    """The model of the agent, `models/{model}`. Set at creation; if empty there, the server's default. Can be
    updated while no run is open.
    """
    state: ConversationState
    """What the conversation is doing."""
    mode: Mode
    """What tools can do. Set at creation; if unset there, "restricted" where the server can enforce it, otherwise
    "unrestricted". SetMode changes it, and so does a request of the agent that a person approves.
    """
    context_usage: ContextUsage
    """How full the context window is."""
    total_usage: Usage
    """The tokens and the cost of all model requests of the conversation so far, including those for summaries, and
    failed or cancelled ones as far as the provider reported their usage.
    """
    parent: str
    """For a sub-agent: the conversation that started it. Empty for a conversation that a person started."""
    continued_from: str
    """The conversation whose context was used up and which this one continues. Empty if there is none."""
    continued_by: str
    """The conversation that continues this one. There is at most one; empty if there is none yet."""
    continuation_summary: str
    """The summary that was written when the context was used up. Empty before that."""
    create_time: datetime
    """When the conversation was created."""
    update_time: datetime
    """When the last durable event of the conversation happened."""
    archive_time: datetime | None
    """When the conversation was archived. Unset while it is not archived."""
    revision: int
    """The revision of the last durable event of the conversation. A stream that is opened after this revision misses
    nothing and repeats nothing.
    """
    etag: str
    """A value that changes whenever a field that UpdateConversation can set changes. Send it with UpdateConversation
    or DeleteConversation, so that the call fails if the conversation has changed since you read it.
    """
    labels: dict[str, str] = field(hash=False)
    """Labels for any use by clients. At most 64; keys up to 63 and values up to 256 characters. Set at creation, and
    can be updated.
    """
    approval_policy: ApprovalPolicy
    """Which tool calls a person must approve. Set at creation; the server's default if unset. Can be updated at any
    time; requests for approval that are open then stay open.
    """
    follow_up_policy: FollowUpPolicy
    """What happens to queued follow-ups when a run ends. Set at creation; the server's default if unset. Can be
    updated.
    """
    budget: Budget | None
    """The usage limit of the conversation. If unset, there is no limit; a negative amount is INVALID_ARGUMENT. Set
    at creation, and can be updated; a new budget applies from the next model request on.
    """
    aside_usage: Usage
    """The tokens and the cost of small requests beside the conversation, to a fast and cheap model: for its title,
    and for selecting excerpts in `keyword_search`. These requests are not in the history, do not count as
    requests of a run, and are not part of `total_usage`. The budget of the conversation counts both.
    """
    background_jobs: tuple[str, ...]
    """The handles of the running background jobs, in the order of their start. A background job is a command that
    continued after the tool call that started it. Killed jobs are not listed, even before their processes have
    ended. Set only in the response of GetConversation and in the snapshot at the beginning of a stream of
    Subscribe, as of that moment; empty everywhere else. The event `background_job_changed` reports that a job
    begins or ends. All jobs end when the server stops.
    """
    instructions: Instructions | None
    """Instructions of the creator for the agent, in addition to the server's own system prompt or instead of it. Set
    at creation and never changed, so that the beginning of every model request stays the same; a conversation
    that continues this one keeps them, and so does a fork. Because they may be long, they are set only in the
    response of GetConversation, in an export and in the snapshot at the beginning of a stream of Subscribe.
    """
    tools: ToolSelection | None
    """The tools of the server that the agent is offered. Set at creation and never changed; all of them if unset.
    Tools of MCP servers are offered in addition. The tools of sub-agents do not depend on this.
    """
    generation: Generation | None
    """Settings for the model's answers. Set at creation, and can be updated at any time; a change applies from the
    next model request on. A message can bring other settings for its run. Sub-agents use the same settings, as
    far as their model supports them.
    """
    client_tools: tuple[ClientTool, ...]
    """The tools that clients run for the agent, in addition to those of the server: at most 64, and 512 KiB in
    total. Set at creation, and can be updated while no run is open; the tools of a run do not change until it
    ends. Sub-agents do not have them. Because they may be long, they are set only in the response of
    GetConversation, in an export and in the snapshot at the beginning of a stream of Subscribe.
    """
    approval_rules: tuple[ApprovalRule, ...]
    """The conversation's own rules about tool calls, the oldest first, without those of the operator. They are
    changed by CreateApprovalRule, DeleteApprovalRule and ResolveApproval; ListApprovalRules lists all rules that
    apply.
    """
    forked_from: str
    """The conversation from which this one was forked, which may have been deleted since. Empty if this is not a
    fork.
    """
    forked_at: str
    """The last request cycle of the original conversation that was copied to this fork, by its name in the original.
    Empty if this is not a fork.
    """
    mcp_servers: tuple[McpServer, ...]
    """The MCP servers that clients have named for this conversation, in addition to those of the operator: 8 at
    most. Set at creation, and can be updated while no run is open; refused with MCP_NOT_ALLOWED unless the
    operator allows it. The server connects to each of them in the background, and a run offers the tools that are
    known when it begins: if the first message needs them, check the states first. A fork has the same servers
    with separate connections, and so does a conversation that continues this one; sub-agents do not have them.
    Set only in the response of GetConversation, in an export and in the snapshot at the beginning of a stream of
    Subscribe. The response and the snapshot contain the current states of the servers, whose changes no event
    reports.
    """
    auto_continue: bool
    """Whether the server creates the successor automatically, with the summary, when the context is used up;
    `continued_by` then names it. The successor has the same setting. Set at creation, and can be updated; it has
    no effect on a conversation whose context is already used up.
    """
    unoffered_tools: tuple[UnofferedTool, ...]
    """The `client_tools` that a run in the current mode does not offer to the agent, and why. Empty if it offers all
    of them.
    """


@dataclass(frozen=True, slots=True)
class ConversationListEvent(Wrapper[v1.WatchConversationsResponse]):
    """One entry of the stream of WatchConversations."""

    conversation_changed: ConversationInfo | None
    """A conversation that exists, is new or has changed, as it is now."""
    conversation_deleted: str
    """The name of a conversation that was deleted. With a filter, only if the conversation matched it, or if
    `changes_only` is set.
    """
    conversation_unmatched: str
    """The name of a conversation that matched the filter and no longer does: remove it from the list. With
    `changes_only`, a conversation that never matched may be named once, because the server does not know which
    conversations the client has.
    """

    @property
    def kind(self) -> ListEventKind | Literal[""]:
        """What happened: the name of the attribute that is set, or "caught_up" or "heartbeat".

        Empty if this version does not know the event.
        """
        return cast("ListEventKind", self.proto.WhichOneof("event") or "")


@dataclass(frozen=True, slots=True)
class CancelConversationResult(Wrapper[v1.CancelConversationResponse]):
    """The response of CancelConversation, which reports what was stopped.

    The event `tool_tree_reaped` reports a moment later that the processes of a tool or of a background job have
    ended.
    """

    no_op: bool
    """Whether there was nothing to cancel and no background job to kill. All other fields but `state` and
    `surviving_jobs` are then unset.
    """
    state: ConversationState
    """The state directly after the cancel. If a queued follow-up has started the next run, this is the state of that
    run.
    """
    run: str
    """The run that was cancelled, `conversations/{conversation}/requestCycles/{request_cycle}`. Empty if the writing
    of a summary was cancelled, which is not a run.
    """
    llm_request_id: str
    """The model request that was aborted, or that waited for its next attempt. Empty if there was none."""
    tool_use_ids: tuple[str, ...]
    """The tool calls that got a result from the server because they were cancelled, in the order of the response:
    first the one that was running, then those that had not started.
    """
    sub_agents: tuple[str, ...]
    """The sub-agents that were cancelled, `conversations/{conversation}`."""
    returned_steers: tuple[QueuedMessage, ...]
    """The steers that the model had not received. They are not in the history."""
    discarded_follow_ups: tuple[QueuedMessage, ...]
    """The follow-ups that were discarded."""
    surviving_jobs: tuple[str, ...]
    """The handles of the background jobs that continue to run."""
    revision: int
    """The newest revision after the cancel."""
    ended_jobs: tuple[str, ...]
    """The handles of the background jobs that `kill_jobs` killed. If no run was open, this and `revision` are the
    only fields set besides `state`.
    """
    unrecorded: bool
    """Whether the cancel is not stored yet, because the store cannot write now, for example on a full disk.
    Everything named in this response was stopped anyway. The server stores the cancel as soon as it can, and
    events then report it; until then `state` and `revision` are those before the cancel, and queued messages stay
    in the queue.
    """


@dataclass(frozen=True, slots=True)
class SetModeResult(Wrapper[v1.SetModeResponse]):
    """The response of SetMode."""

    conversation: ConversationInfo
    """The conversation in its new mode."""
    surviving_jobs: tuple[str, ...]
    """The handles of the background jobs that continue to run with more rights than the mode gives. `stop_running`
    kills them.
    """
    surviving_tool_use_ids: tuple[str, ...]
    """The ids of the tool calls that continue to run with more rights than the mode gives; one at most.
    `stop_running` kills it.
    """
    ended_jobs: tuple[str, ...]
    """The handles of the background jobs that `stop_running` killed."""
    stopped_tool_use_ids: tuple[str, ...]
    """The ids of the tool calls that `stop_running` killed."""
    surviving_mcp_servers: tuple[str, ...]
    """The names of the MCP servers whose programs continue to run with more rights than the mode gives. Calls of
    their tools are refused, until the next message that begins a run restarts the programs in the new mode.
    `stop_running` kills them.
    """
    stopped_mcp_servers: tuple[str, ...]
    """The names of the MCP servers whose programs `stop_running` killed. The next call of one of their tools starts
    the program in the new mode.
    """


@dataclass(frozen=True, slots=True)
class ReplayStep(Wrapper[v1.ReplayConversationResponse]):
    """One step of a replay."""

    step: int
    """The number of the step, counted from 1. Each transition of the state machine is one step."""
    revision: int
    """The newest revision after the step."""
    event_json: str
    """The event that the step applied, as JSON in the form of the server's log, which may change between versions.
    Empty if it is longer than 1 MiB.
    """
    state_json: str
    """The state after the step, as JSON in the form of the server's log. Empty if it is longer than 1 MiB."""
    difference: str
    """How the result differs from what was stored. Empty if there is no difference."""
    effects_json: str
    """The effects of the transition, except that the state is stored: a JSON array in the form of the server's log.
    Empty if it is longer than 1 MiB, and for steps that are not transitions, such as changed settings.
    """


@dataclass(frozen=True, slots=True)
class Transition(Wrapper[v1.Transition]):
    """A transition as stored in a conversation's log.

    The JSON has the form of the server's log, which may change between versions.
    """

    step: int
    """The number of the step, counted from 1."""
    time: datetime
    """When the transition was made."""
    revision: int
    """The newest revision after the step."""
    event_type: str
    """The type of the event that caused the transition, such as `user_message`. Empty if the event cannot be read."""
    event_json: str
    """That event, as JSON. Empty if it is longer than 1 MiB."""
    context_json: str
    """The facts on which transitions depend, such as the model, the mode and the approval rules, as a JSON object,
    if they have changed since the step before. Empty if they have not, or if it is longer than 1 MiB.
    """
    effects_json: str
    """The effects that the log has: the messages and notifications of the step, as a JSON array. The revision of the
    last one is `revision`. Empty if it is longer than 1 MiB.
    """
    digest: str
    """The SHA-256 digest of the step and of the digest before it, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class TextDelta(Wrapper[v1.Event.TextDelta]):
    """A piece of text that the model is writing.

    It is a preview: the message that is stored when the attempt ends contains the final text.
    """

    llm_request_id: str
    """The model request. Together with `attempt` it identifies the text that this piece belongs to (the delta slot)."""
    attempt: int
    """The attempt, counted from 1."""
    offset: int
    """Where this piece begins: the number of Unicode code points before it in the text, or in the reasoning, of this
    attempt. A client that has this part already can skip it.
    """
    text: str
    """The text of the piece. The server may merge several pieces into one."""
    reasoning: bool
    """Whether this is reasoning. Text and reasoning have separate offsets."""


@dataclass(frozen=True, slots=True)
class ToolOutputDelta(Wrapper[v1.Event.ToolOutputDelta]):
    """A piece of output that a tool is writing.

    It is a preview: the tool result that ends the call contains the final output.
    """

    tool_use_id: str
    """The call."""
    attempt: int
    """The attempt of the call, counted from 1. Output of earlier attempts is void."""
    offset: int
    """Where this piece begins: the number of Unicode code points before it in the output of this attempt."""
    text: str
    """The text of the piece. The server may merge several pieces into one."""


@dataclass(frozen=True, slots=True)
class ClientToolCallChanged(Wrapper[v1.Event.ClientToolCallChanged]):
    """A client tool call started or stopped waiting for an answer.

    Every call that waited gets exactly one later event with another status, which is stored together with the
    call's result.
    """

    call: ToolCall
    """The call. Its `input` matches the tool's schema."""
    status: CallStatus
    """Whether the call is still waiting, and if not, why."""
    deadline: datetime
    """The deadline for an answer."""


@dataclass(frozen=True, slots=True)
class QuestionChanged(Wrapper[v1.Event.QuestionChanged]):
    """A tool call asked a person a question, or such a question has ended.

    Every question gets exactly one later event with a status other than "pending", at the latest together with
    the result of its call.
    """

    question: Question
    """The question."""


@dataclass(frozen=True, slots=True)
class CaughtUp(Wrapper[v1.Event.CaughtUp]):
    """Marks the end of the events that the client had missed."""

    head_revision: int
    """The newest durable revision at that moment. All events up to it have been sent or are contained in the
    snapshot.
    """


@dataclass(frozen=True, slots=True)
class RunStopped(Wrapper[v1.Event.RunStopped]):
    """A run ended.

    Every run has exactly one such event. Later events no longer refer to the run, except ToolTreeReaped and
    BackgroundJobChanged.
    """

    request_cycle: str
    """The run, `conversations/{conversation}/requestCycles/{request_cycle}`."""
    reason: StopReason
    """How it ended."""
    detail: str
    """A more detailed reason. Empty if there is nothing to add; otherwise one of

    * with "completed": "max_tokens" (the answer was cut off at its token limit, even after the maximum number of
    continuations; or reasoning used up the limit before the text began), "refusal" (the model declined to answer,
    or the provider's content filter cut the answer off), "empty" (the answer has no text, at most reasoning),
    "context_exhausted" (the answer is complete, but the context is now full); * with "interrupted":
    "cancel_timeout" (sub-agents did not end in time and were abandoned), "restart" (the server was restarted),
    "round_cap" (the run made as many requests to the model as allowed), "budget" (the budget is used up),
    "not_run" (a follow-up was discarded before its run began), "context_exhausted" (the context was nearly full
    and tool calls were not run); * with "error": the name of the ErrorKind in lower case without its prefix, for
    example "auth", "rate_limit", "context_exhausted", "turn_limit", "no_result" or "sub_agent_error".

    Clients should expect more values to be added.
    """
    error: RunError | None
    """Why the run failed. Set if and only if the reason is "error"."""
    output: Any = field(hash=False)
    """The value that the run ended with, which matches the `output_schema` of the message that began the run. Unset
    if that message had no schema, and if the run was not completed.
    """


@dataclass(frozen=True, slots=True)
class Retrying(Wrapper[v1.Event.Retrying]):
    """A request to the model or a tool failed and will be retried."""

    llm_request_id: str
    """A request to the model."""
    tool_use_id: str
    """A tool call."""
    attempt: int
    """The number of the next attempt, counted from 1."""
    max_attempts: int
    """The maximum number of attempts."""
    retry_time: datetime
    """When the next attempt starts."""
    error: RunError
    """Why the last attempt failed."""


@dataclass(frozen=True, slots=True)
class StreamDiscarded(Wrapper[v1.Event.StreamDiscarded]):
    """The text that was streamed for one attempt of a model request is void.

    Because the attempt failed, was cancelled, was interrupted by a restart, or resulted in no message. No part of
    that text is in the history, and clients should remove it from the screen.
    """

    llm_request_id: str
    """The model request."""
    attempt: int
    """The attempt, counted from 1."""


@dataclass(frozen=True, slots=True)
class ToolTreeReaped(Wrapper[v1.Event.ToolTreeReaped]):
    """The processes of a cancelled tool call, or of a killed background job, have ended.

    This event may follow RunStopped, because only the next tool call waits for the processes, not the
    conversation. It is missing for a call that had not started any process.
    """

    tool_use_id: str
    """The call; for a background job, the call that had started the job."""
    pids: tuple[int, ...]
    """The ids of the processes that were killed."""
    duration: timedelta
    """The time from the cancel until the last process had ended."""
    leaked: bool
    """Whether some processes could not be confirmed dead within two seconds, which is rare. The server's log then
    names them for the operator.
    """


@dataclass(frozen=True, slots=True)
class BackgroundJobChanged(Wrapper[v1.Event.BackgroundJobChanged]):
    """A command continues as a background job after the tool call that started it, or such a job has ended.

    The agent gets a message about the end with its next request to the model, unless a tool result has shown it
    the end. If the server was killed, the event is sent when the conversation is next watched or used.
    """

    handle: str
    """The handle of the job, as in Conversation.background_jobs. After a restart of the server, handles are reused."""
    tool_use_id: str
    """The id of the tool call that started the job."""
    command: str
    """The beginning of the command, on one line."""
    status: JobStatus
    """Whether the job still runs, and if not, how it ended."""
    exit_code: int | None
    """The exit code of the command, or 128 and the number of the signal that ended it. Set if and only if the status
    is "exited".
    """


@dataclass(frozen=True, slots=True)
class ApprovalChanged(Wrapper[v1.Event.ApprovalChanged]):
    """A person was asked to approve a tool call, or that request was answered or withdrawn.

    Every request ends in exactly one event with a decision.
    """

    approval: Approval
    """The request for approval. After the decision, only its `name` is certainly set."""
    decision: ApprovalDecision | Literal[""]
    """The decision. Unset if the approval has just been requested."""
    note: str
    """The note that the person gave with the decision. Empty if there is none."""


@dataclass(frozen=True, slots=True)
class StateChanged(Wrapper[v1.Event.StateChanged]):
    """The state changed.

    The changes that are stored together (one commit) can include several of these events, one for each step.
    """

    state: ConversationState
    """The state after the step."""
    fsm_path: tuple[ContextState, ...]
    """The states of the more detailed life cycle (ContextState) that the conversation passed in this step. Empty if
    only details of the state changed.
    """


@dataclass(frozen=True, slots=True)
class Snapshot(Wrapper[v1.Event.Snapshot]):
    """The state of a conversation at one revision."""

    conversation: ConversationInfo
    """The conversation. Its `revision` is the one at which the whole snapshot was taken."""
    messages: tuple[Message, ...]
    """The latest messages, oldest first. Empty if the stream resumes after a revision."""
    partial: tuple[TextDelta, ...]
    """The text that has been streamed so far of the response that is arriving: at most one entry of text and one of
    reasoning, each with offset 0. Empty if no response is arriving, or if the client asked for no deltas.
    """
    pending_approvals: tuple[Approval, ...]
    """The tool calls that wait for a person's approval."""
    queue: tuple[QueuedMessage, ...]
    """The queued messages (steers and follow-ups), oldest first."""
    sub_agents: SubAgentsChanged | None
    """The state of the sub-agents that were started together. Set if and only if the conversation is in
    "awaiting_sub_agents".
    """
    pending_client_tool_calls: tuple[ClientToolCallChanged, ...]
    """The calls waiting for a client's answer: at most one, because tools run one after another."""
    pending_questions: tuple[Question, ...]
    """The questions that the running tool asks a person, in the order of asking."""


@dataclass(frozen=True, slots=True)
class Event(Wrapper[v1.Event]):
    """One event of a conversation, as Subscribe sends it to the clients that watch the conversation.

    Durable events are stored together with the change that they report, have a revision (a number), and can be
    read again later. Passing events have revision 0, are never stored, and are sent only to clients that watch at
    that moment. The comment of ConversationService.Subscribe says what a client can rely on.
    """

    revision: int
    """The number of a durable event in the conversation, counted from 1 without gaps; zero for passing events. To
    resume a broken stream, subscribe after the last revision that you have seen.
    """
    time: datetime
    """When the event happened, by the clock of the server."""
    snapshot: Snapshot | None
    """Passing. The current state of the conversation; the first event of every stream."""
    caught_up: CaughtUp | None
    """Passing. All events that the client had missed have been sent; from here on, events are sent as they happen."""
    state_changed: StateChanged | None
    """Durable. The state changed."""
    message_added: Message | None
    """Durable. A message was stored."""
    run_stopped: RunStopped | None
    """Durable. A run ended."""
    conversation_updated: ConversationInfo | None
    """Durable. The settings, the mode, the token usage or the links of the conversation changed, or it was archived
    or unarchived. The event contains the conversation as it is when the event is sent: if the event is read again
    later, it may show newer values.
    """
    context_warning: ContextUsage | None
    """Durable. At least 80 percent of the usable context window is used. This is sent each time the usage rises
    above that mark.
    """
    queue_changed: QueuedMessage | None
    """Durable. A message that arrived during a run (a steer or a follow-up) was queued, or has left the queue."""
    approval_changed: ApprovalChanged | None
    """Durable. A person was asked to approve a tool call, or that request was answered or withdrawn."""
    retrying: Retrying | None
    """Durable. A request to the model or a tool failed and will be retried."""
    stream_discarded: StreamDiscarded | None
    """Durable. The text streamed for one attempt of a model request is discarded."""
    sub_agents_changed: SubAgentsChanged | None
    """Durable. A sub-agent ended while the conversation was waiting for it."""
    tool_tree_reaped: ToolTreeReaped | None
    """Durable. The processes of a cancelled tool call, or of a killed background job, have ended."""
    text_delta: TextDelta | None
    """Passing. A piece of text that the model is writing."""
    tool_output_delta: ToolOutputDelta | None
    """Passing. A piece of output that a tool is writing."""
    client_tool_call_changed: ClientToolCallChanged | None
    """Durable. A client tool call started or stopped waiting for an answer."""
    question_changed: QuestionChanged | None
    """Durable. A tool call asked a person a question, or such a question has ended."""
    background_job_changed: BackgroundJobChanged | None
    """Durable. A background job started or ended."""

    @property
    def kind(self) -> EventKind | Literal[""]:
        """What happened; see the table in `bedrock.events`. Empty if this version does not know the kind."""
        if self.text_delta is not None and self.text_delta.reasoning:
            return "reasoning_delta"
        return cast("EventKind", self.proto.WhichOneof("event") or "")

    @property
    def text(self) -> str:
        """The piece of text of a delta, or the whole text of a message that was added; empty for all other events."""
        written = self.text_delta or self.tool_output_delta or self.message_added
        return "" if written is None else written.text

    @property
    def message(self) -> Message | None:
        """The message that was added, or whose place in the queue changed; None for all other events."""
        return self.message_added if self.queue_changed is None else self.queue_changed.message

    @property
    def role(self) -> Role | Literal[""]:
        """Who wrote the message that was added: "user", "agent", "tool", "system" or "error"; else empty."""
        return "" if self.message_added is None else self.message_added.role

    @property
    def messages(self) -> tuple[Message, ...]:
        """The recent messages of a snapshot; empty for all other events."""
        return () if self.snapshot is None else self.snapshot.messages

    @property
    def fate(self) -> Fate | Literal[""]:
        """The present status of a queued message: "queued", "delivered", "returned", "discarded" or "withdrawn".

        Empty for all other events.
        """
        return "" if self.queue_changed is None else self.queue_changed.fate

    @property
    def conversation(self) -> ConversationInfo | None:
        """The conversation in a snapshot or update event; None for all other events."""
        return self.conversation_updated if self.snapshot is None else self.snapshot.conversation

    @property
    def state(self) -> ConversationState | None:
        """The conversation's state, in a state change, a snapshot or an update; None for all other events."""
        if self.state_changed is not None:
            return self.state_changed.state
        return None if self.conversation is None else self.conversation.state

    @property
    def approval(self) -> Approval | None:
        """The approval that this event requests; None for all other events, including the answer and the withdrawal."""
        changed = self.approval_changed
        return None if changed is None or changed.decision else changed.approval

    @property
    def question(self) -> Question | None:
        """The question that a tool asks with this event; None for all other events, including the end of a question."""
        changed = self.question_changed
        return None if changed is None or changed.question.status != "pending" else changed.question

    @property
    def decision(self) -> ApprovalDecision | Literal[""]:
        """How an approval was decided: "approve", "deny" or "withdrawn"; empty while it is open.

        Empty for all other events, too.
        """
        return "" if self.approval_changed is None else self.approval_changed.decision

    @property
    def note(self) -> str:
        """The note that was given with the decision about an approval; empty if there is none."""
        return "" if self.approval_changed is None else self.approval_changed.note

    @property
    def sub_agents(self) -> tuple[SubAgentStatus, ...]:
        """All sub-agents that were started together, in the order of their tasks.

        Set when they start, when one of them ends, and in a snapshot while the conversation waits for them.
        """
        changed = self.sub_agents_changed if self.snapshot is None else self.snapshot.sub_agents
        if changed is not None:
            return SubAgentStatus.in_order(changed.pending, changed.reports)
        waiting = None if self.state_changed is None else self.state_changed.state.awaiting_sub_agents
        return () if waiting is None or waiting.completed_count else SubAgentStatus.in_order(waiting.pending)

    @property
    def error(self) -> RunError | None:
        """Why an attempt or a run failed; None if the event reports no failure."""
        failed = self.retrying or self.run_stopped
        return None if failed is None else failed.error

    @property
    def stop(self) -> Stop | None:
        """How the run ended; None unless the event reports the end of a run."""
        return None if self.run_stopped is None else Stop.of(self.run_stopped)

    @property
    def run(self) -> str:
        """The resource name of the run that is in progress or has ended; empty if the event has no such information."""
        if self.run_stopped is not None:
            return self.run_stopped.request_cycle
        if self.message is not None:
            return self.message.request_cycle
        return "" if self.state is None else self.state.run

    def to_dict(self) -> dict[str, Any]:
        """Return the event as values for JSON: ``{"kind": "text_delta", "text_delta": {…}, "revision": …, …}``.

        The result is that of `Wrapper.to_dict`, with `kind` added.
        """
        return {"kind": self.kind, **Wrapper.to_dict(self)}


@dataclass(frozen=True, slots=True)
class Usage(Value[v1.Usage]):
    """The tokens and the cost of one response of the model, or of several.

    The four counts of tokens do not overlap, whatever the provider's own convention is: their sum is the size of
    the request and its response in the context.
    """

    input_tokens: int = 0
    """Input tokens that were neither read from nor written to a cache."""
    output_tokens: int = 0
    """Tokens that the model wrote, reasoning included."""
    cache_read_tokens: int = 0
    """Input tokens that the provider read from its cache."""
    cache_write_tokens: int = 0
    """Input tokens that the provider wrote to its cache."""
    cost_micros: int = 0
    """The cost in millionths of a US dollar, computed from the prices that the server knows. Tokens of a model
    without a known price count as zero.
    """

    def __add__(self, other: Usage) -> Usage:
        """Return the sum of two usages."""
        return Usage(*[getattr(self, each.name) + getattr(other, each.name) for each in fields(self) if each.init])

    @property
    def total_tokens(self) -> int:
        """The sum of all counts of tokens, input and output."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class ContextUsage(Value[v1.ContextUsage]):
    """How full the context window of a conversation is."""

    used_tokens: int = 0
    """The tokens in the context after the last response that reported them; zero before the first one."""
    usable_window_tokens: int = 0
    """The tokens that the context can hold: the input limit of the model, or its context window minus the tokens
    reserved for an answer, whichever is smaller. The thresholds are parts of this number.
    """
    warning: bool = False
    """Whether at least 80 percent of the usable window is used. At 90 percent the server asks the model for a
    summary, and the conversation ends.
    """
    fixed_tokens: int = 0
    """The estimated tokens of the system prompt and the tools, which each request contains. Set by GetConversation
    and in snapshots of Subscribe; zero elsewhere.
    """
    assumed: bool = False
    """Whether the window is assumed, because neither the provider nor the server knows that of the model."""


@dataclass(frozen=True, slots=True)
class Budget(Value[v1.Budget]):
    """The tokens and money that a conversation can use. Zero in any field means that there is no limit.

    The budget is checked before every request to the model. If it is used up, the run ends with "interrupted" and
    the detail "budget". A request that has begun is not aborted, so one response may exceed the budget.
    """

    run_tokens: int = 0
    """The tokens, counted as in Usage, that one run can use."""
    conversation_tokens: int = 0
    """The tokens that all runs of the conversation together can use, including small requests outside the runs, such
    as for a title.
    """
    conversation_cost_micros: int = 0
    """The cost of these tokens in millionths of a US dollar, computed as in Usage: the limit has no effect while the
    price of the model is unknown.
    """


@dataclass(frozen=True, slots=True)
class Instructions(Value[v1.Instructions]):
    """Instructions that the creator of a conversation gives its agent."""

    text: str = ""
    """The instructions, as text for the model. At most 64 KiB in UTF-8."""
    replace: bool = False
    """Whether the text replaces the server's own system prompt and the instructions in the repository, instead of
    being added. The parts of the prompt about the working directory, modes and notices stay.
    """


@dataclass(frozen=True, slots=True)
class ToolSelection(Value[v1.ToolSelection]):
    """A selection of the tools that ListTools names."""

    tools: tuple[str, ...] = ()
    """The names of the tools, `tools/{tool}`. An empty list selects no tool at all."""


@dataclass(frozen=True, slots=True)
class Generation(Value[v1.Generation]):
    """Settings for the model's answers.

    A setting that is unset is left to the model and the server. A setting that the model does not support is
    refused with GENERATION_UNSUPPORTED; the message Model lists what each model supports.
    """

    reasoning_effort: ReasoningEffort | Literal[""] = ""
    """How much to reason before an answer."""
    temperature: float | None = None
    """The sampling temperature, from 0 to 2. Most reasoning models do not support it."""
    max_output_tokens: int | None = None
    """The maximum number of tokens of one answer, including its reasoning. An answer that is cut off at this limit
    is continued a few times, like any other cut-off answer.
    """


@dataclass(frozen=True, slots=True)
class ClientTool(Value[v1.ClientTool]):
    """A tool that clients run.

    A call of the tool becomes a durable event, `client_tool_call_changed`; any authorised client can answer it
    with SubmitToolResult.
    """

    name: str
    """The name by which the model calls the tool: 1 to 64 letters, digits, `_` and `-`. It must not be the name of a
    tool of the server, nor begin with `mcp__`. Required.
    """
    description: str = ""
    """What the tool does, as text for the model. At most 4096 characters."""
    input_schema: dict[str, Any] = field(default_factory=dict, hash=False)
    """The JSON Schema (draft 2020-12) of the tool's input, of type object; at most 16 KiB. A call whose input does
    not match the schema gets an error result, and no client is asked. If unset, the tool takes no input.
    """
    group: ToolGroup | Literal[""] = ""
    """The kind of work that the tool does; "other" if unset."""
    timeout: timedelta = timedelta()
    """How long a call waits for an answer: 1 second to 24 hours; 5 minutes if unset."""
    read_only: bool = False
    """Whether the tool changes nothing. Only such tools are offered in "restricted", and "ask_writes" does not
    require approval of their calls.
    """
    requires_approval: bool = False
    """Whether a person must approve every call of the tool, under every policy."""


@dataclass(frozen=True, slots=True)
class McpStdio(Value[v1.McpServer.Stdio]):
    """A program that Bedrock communicates with through stdin and stdout.

    Each conversation that calls one of its tools gets a separate process, in the conversation's working directory
    and mode.
    """

    command: tuple[str, ...]
    """The program and its arguments: 1 to 64, of 4096 characters at most."""
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    """Environment variables for the program, in addition to those of every tool: 64 at most, with values of 4096
    characters at most. They are stored and shown unchanged, so put no secret here. Never set for servers of the
    operator.
    """


@dataclass(frozen=True, slots=True)
class McpHttp(Value[v1.McpServer.Http]):
    """A server that Bedrock reaches by streamable HTTP."""

    url: str
    """The URL of the server, 4096 characters at most. Clients can only name URLs that the operator allows."""
    headers: dict[str, str] = field(default_factory=dict, hash=False)
    """Headers of every HTTP request, 64 at most. A value is not a secret itself, but the name of one that the
    operator has set up for this URL: `secret:NAME`. Never set for servers of the operator.
    """


@dataclass(frozen=True, slots=True)
class McpServer(Value[v1.McpServer]):
    """A server that offers tools through the Model Context Protocol (MCP): one that the operator has set up.

    Or one that a client names for a conversation.
    """

    name: str
    """The name of the server: 1 to 32 lower-case letters, digits and hyphens, not beginning with a hyphen. Its tools
    are called `mcp__{name}__{tool}`; a character of `{tool}` that is not an ASCII letter, digit, `_` or `-` is
    written as its code point in hexadecimal between `_x` and `_`, such as `_x2e_` for a dot. It must not be the
    name of one of the operator's servers. Required.
    """
    stdio: McpStdio | None = None
    """A program that Bedrock starts."""
    http: McpHttp | None = None
    """The URL of a web service."""
    read_only_tools: tuple[str, ...] = ()
    """The tools that change nothing, by the server's names for them; 64 at most. In "restricted" only these tools
    run, and "ask_writes" requires approval of all others: what the server itself claims about its tools is
    ignored. Unset for servers of the operator, whose settings contain this.
    """
    state: McpServerState | Literal[""] = ""
    """What Bedrock knows about the connection to the server."""
    error: str = ""
    """Why the connection failed, or how to log in, as text for people. Empty in other states."""
    tools: tuple[str, ...] = ()
    """The server's tools, `tools/mcp__{name}__{tool}`, as in the server's latest list. Empty before the first one. A
    run offers the tools known when it began.
    """
    tools_left_out: tuple[McpToolLeftOut, ...] = ()
    """Tools in the server's latest list that are not offered, because models cannot use them. At most 128 are named."""


@dataclass(frozen=True, slots=True)
class SubAgentStatus:
    """A sub-agent, running or ended, as the events of its parent show it. Details are in its own conversation."""

    name: str
    """The resource name of the sub-agent's conversation; empty if it could not be started."""
    task: str
    """The first line of the sub-agent's task."""
    index: int
    """The position of the sub-agent's task among the tasks that were started together, counted from 0."""
    outcome: StateKind | Literal[""] = ""
    """"completed" or "failed"; empty while the sub-agent is at work."""
    result: str = ""
    """The result that the sub-agent submitted or, if it failed, the last text it wrote; a long one is truncated."""
    error_kind: ErrorKind | Literal[""] = ""
    """The kind of failure, e.g. "timed_out"; empty unless the sub-agent failed."""
    error_message: str = ""
    """The error message for people; empty unless the sub-agent failed."""

    @classmethod
    def in_order(
        cls, pending: Iterable[PendingSubAgent], reports: Iterable[SubAgentReport] = ()
    ) -> tuple[SubAgentStatus, ...]:
        """Return all sub-agents that were started together, in the order of their tasks."""
        working = [cls(agent.conversation, agent.task, agent.task_index) for agent in pending]
        ended = [
            cls(
                name=report.conversation,
                task=report.task,
                index=report.task_index,
                outcome=report.state,
                result=report.result or report.partial_result,
                error_kind=report.error.kind if report.error else "",
                error_message=report.error.message if report.error else "",
            )
            for report in reports
        ]
        return tuple(sorted([*working, *ended], key=lambda agent: agent.index))


@dataclass(frozen=True, slots=True)
class Stop:
    """How a run ended, or why a queued message never started a run."""

    reason: StopReason | Literal["deleted", "withdrawn", ""]
    """"completed", "interrupted" or "error"; "withdrawn" or "deleted" if the run never began."""
    detail: str = ""
    """The cause in more detail, e.g. "restart"; empty if there is none."""
    error_kind: ErrorKind | Literal[""] = ""
    """The kind of failure, e.g. "auth"; empty unless the run failed."""
    error_message: str = ""
    """The error message for people, with advice; empty unless the run failed."""
    output: Any = field(default=None, hash=False)
    """The JSON value that the run ended with, fitting its output schema; None if the run had no schema."""

    @classmethod
    def of(cls, stopped: RunStopped) -> Stop:
        """Create the object from the event that reports the end of a run."""
        kind, message = ("", "") if stopped.error is None else (stopped.error.kind, stopped.error.message)
        return cls(stopped.reason, stopped.detail, cast("ErrorKind", kind), message, stopped.output)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, also empty ones, as values for JSON."""
        return asdict(self)
