# Generated from protos/ by `make protos`; edit the contract.
"""Values that a server answers with, and some that callers make: those without methods of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from bedrock import v1
from bedrock._shared.wrapper import Value, Wrapper
from bedrock.types import (
    AuditDecider,
    AuditOutcome,
    AuditVerdict,
    CallStatus,
    ErrorKind,
    JobStatus,
    Mode,
    ModelProtocol,
    ReasoningEffort,
    RequestPhase,
    SandboxTier,
    StateKind,
    StopReason,
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
    """The result of a tool call. Every call gets exactly one result, whatever happens to it."""

    tool_use_id: str
    """The id of the call."""
    outcome: ToolOutcome
    """How the call ended."""
    output: str
    """The text that the model gets. Long output is shortened in the middle, and says so."""
    images: tuple[Image, ...]
    """Images that the model gets with the output."""
    display: dict[str, Any] = field(hash=False)
    """Data that clients can show to people instead of the output, for example a diff. The keys depend on the tool;
    the value of `for_agent` is a part of the output that need not be shown to people, and that of
    `structured_content` is what a tool of an MCP server returns beside its text. Unset if the tool offers no such
    data.
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
    nothing internal of the server.
    """


@dataclass(frozen=True, slots=True)
class ModeUpgrade(Wrapper[v1.PendingApproval.ModeUpgrade]):
    """The agent requests a mode with more rights."""

    tool_use_id: str
    """The id of the tool call by which the agent requests the mode."""
    reason: str
    """The reason in the agent's own words. Do not trust it blindly."""
    mode: Mode
    """The requested mode, "workspace" or "unrestricted". Approval sets this mode and never one with more rights."""
    workspace_available: bool
    """Whether "workspace" can be granted instead: set this mode with SetMode, and deny the request. False if the
    directory or the machine cannot have it, or if `mode` or the mode of the conversation gives no fewer rights.
    """


@dataclass(frozen=True, slots=True)
class PendingSubAgent(Wrapper[v1.SubAgent]):
    """A sub-agent that is working, with the data that its parent has about it.

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
    parent was cancelled and no longer waits for it.
    """

    pending: tuple[PendingSubAgent, ...]
    """The sub-agents that are still working, in the order of their tasks."""
    reports: tuple[SubAgentReport, ...]
    """How the others ended, in the order in which they ended."""


@dataclass(frozen=True, slots=True)
class LlmRequestingDetail(Wrapper[v1.ConversationState.LlmRequesting]):
    """A request to the model."""

    llm_request_id: str
    """Identifies the request. All its attempts have the same id. Text deltas name the request by this id and the
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
    """Whether the limits above are assumed, because neither the provider nor the server's catalogue contains them.
    They are then 32,768 tokens over OpenAI's protocols, otherwise those of the smallest known window.
    """
    images: bool
    """Whether the model is sent images: it accepts them, or it is not known whether it does. If false, a message
    with an image is refused, and requests contain a note instead of each image of the history, for example of a
    tool's result.
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
    """Whether it is not known if the model accepts images, so that `images` is assumed. It becomes false, as
    `images` does, when the provider refuses images.
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
    """Whether a call may be tried again after a failure of the infrastructure. Only tools that change nothing may; a
    call of a tool that can change something is never started twice.
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
    """What the sandbox can do on a machine, as tested once when the server starts."""

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
    """Whether the operator chose this tier with the setting `sandbox`, so that the machine may support a better one."""
    kernel_bounds_processes: bool
    """Whether the kernel limits how many processes a tool has at once. If not, the server counts them many times a
    second, and kills a tool that has too many.
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
    """The maximum number of bytes of a response message, also of a page or a batch of events."""
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
    """The maximum number of sub-agents that one call may start."""
    default_sub_agent_turns: int
    """The maximum number of turns (model requests) of a sub-agent whose task names no number."""
    default_sub_agent_timeout: timedelta
    """The time limit of a sub-agent whose task names none."""
    max_sub_agent_turns: int
    """The highest limit of turns that a task may name."""
    max_sub_agent_timeout: timedelta
    """The longest time limit that a task may name."""
    max_streams: int
    """The maximum number of streams that may be open on the server at the same time, including waiting calls of
    WaitRequestCycle.
    """
    heartbeat_interval: timedelta
    """The longest time without an event on a stream; after it, a heartbeat is sent."""
    watcher_stall_timeout: timedelta
    """How long a client may read nothing from its stream while events wait for it, before the server ends the
    stream.
    """


@dataclass(frozen=True, slots=True)
class McpToolLeftOut(Wrapper[v1.McpServer.ToolLeftOut]):
    """A tool that an MCP server lists, but that is not offered."""

    name: str
    """The name that the server gives to the tool, shortened. Empty if it gives none."""
    reason: str
    """Why the tool is not offered, as text for people."""


@dataclass(frozen=True, slots=True)
class Quota(Wrapper[v1.Quota]):
    """A limit of what a principal, or all principals together, may use.

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
    """How much is used, in the same unit. Stored bytes are measured only from time to time."""
    reset_time: datetime | None
    """When the use is reset to zero. Unset for quotas that become free when runs, requests or streams end."""


@dataclass(frozen=True, slots=True)
class Node(Wrapper[v1.Node]):
    """A running server, as it is seen by itself or by another server that shares its database."""

    incarnation: int
    """The number of the node: no other node ever has the same number, and nodes that start later have greater
    numbers. Zero for a server with a database of its own.
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
    """The number of conversations that the node has in memory, as it last reported."""
    answering: bool
    """Whether this is the node that answers the call."""
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
    refusals that were too many to be stored one by one, which `count` counts.
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
    """A tool of clients that the agent is not offered."""

    name: str
    """The name of the tool, as in ClientTool."""
    reason: UnofferedReason | Literal[""]
    """Why the tool is not offered."""
    text: str
    """Why the tool is not offered, and what to change, as text for people."""


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
    """A call of a tool that clients run began to wait for an answer, or stopped waiting.

    Every call that waited gets exactly one later event with another status, which is stored together with the
    call's result.
    """

    call: ToolCall
    """The call. Its `input` matches the tool's schema."""
    status: CallStatus
    """Whether the call still waits, and if not, why."""
    deadline: datetime
    """Until when an answer is accepted."""


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

    * with "completed": "max_tokens" (the answer was cut off at its token limit, and the server has asked for the
    rest as often as it may; or the limit was used up before the text began), "refusal" (the model declined to
    answer, or its provider's content filter cut the answer off), "empty" (the answer has no text, at most
    reasoning), "context_exhausted" (the answer was complete, but the context is full now); * with "interrupted":
    "cancel_timeout" (sub-agents did not end in time and were abandoned), "restart" (the server was restarted),
    "round_cap" (the run made as many requests to the model as allowed), "budget" (the budget is used up),
    "not_run" (a follow-up was discarded before its run began), "context_exhausted" (the context was nearly full
    and tool calls were not run); * with "error": the name of the ErrorKind in lower case without its prefix, for
    example "auth", "rate_limit", "context_exhausted", "turn_limit", "no_result" or "sub_agent_error".

    Clients should expect that values are added.
    """
    error: RunError | None
    """Why the run failed. Set if and only if the reason is "error"."""
    output: Any = field(hash=False)
    """The value that the run ended with, which matches the `output_schema` of the message that began the run. Unset
    if that message had no schema, and if the run was not completed.
    """


@dataclass(frozen=True, slots=True)
class Retrying(Wrapper[v1.Event.Retrying]):
    """A request to the model or a tool failed and will be tried again."""

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
    the end. If the server was killed, the event comes when the conversation is watched or used for the first time
    after that.
    """

    handle: str
    """The handle of the job, as in Conversation.background_jobs. After a restart of the server, handles are used
    again.
    """
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
class ContextUsage(Value[v1.ContextUsage]):
    """How full the context window of a conversation is."""

    used_tokens: int = 0
    """The tokens in the context after the last response that reported them; zero before the first one."""
    usable_window_tokens: int = 0
    """The tokens that the context can hold: the input limit of the model, or its context window minus the tokens
    reserved for an answer, whichever is smaller. The thresholds are parts of this number.
    """
    warning: bool = False
    """Whether at least 80 percent of the usable window are used. At 90 percent the server asks the model for a
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
    """How many tokens and how much money a conversation may use. Zero in any field means that there is no limit.

    The budget is checked before every request to the model. If it is used up, the run ends with "interrupted" and
    the detail "budget". A request that has begun is not aborted, so one response may exceed the budget.
    """

    run_tokens: int = 0
    """The tokens, counted as in Usage, that one run may use."""
    conversation_tokens: int = 0
    """The tokens that all runs of the conversation together may use, including small requests beside the runs, such
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
    """The sampling temperature, from 0 to 2. Most models that reason accept none."""
    max_output_tokens: int | None = None
    """The maximum number of tokens of one answer, including its reasoning. An answer that is cut off at this limit
    is continued a few times, like any other cut-off answer.
    """


@dataclass(frozen=True, slots=True)
class McpStdio(Value[v1.McpServer.Stdio]):
    """A program with which Bedrock communicates through its stdin and stdout.

    Each conversation that calls one of its tools gets a process of its own, in the conversation's working
    directory and mode.
    """

    command: tuple[str, ...]
    """The program and its arguments: 1 to 64, of 4096 characters at most."""
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    """Environment variables for the program, beside those that every tool gets: 64 at most, with values of 4096
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
