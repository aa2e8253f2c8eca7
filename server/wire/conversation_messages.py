"""Converts conversations, their states, approvals and questions to API messages, and caches the conversations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from bedrock import v1

from actors.core import states
from actors.core.context import (
    NOT_OFFERED,
    Action,
    ApprovalRule,
    ChosenMcpServer,
    ClientTool,
    ConvContext,
    Generation,
    Origin,
    Profile,
    Suggested,
    unoffered,
)
from actors.core.errors import ErrorKind
from actors.core.notifications import ApprovalRequested, CallStatus, ClientToolCall, QuestionChanged
from actors.core.steps.approvals import approval_kind, requested_mode
from actors.core.summary import AgentSummary, StateSummary, heading, summarize, summarize_agent
from actors.ports import ConversationRecord, etag_of
from actors.ports.tools import McpServerStatus, McpState
from server.contract import resource_names as names
from server.contract.limits import REPORT_CHARS
from server.wire import messages


def chosen_mcp_servers(wanted: Iterable[v1.McpServer]) -> tuple[ChosenMcpServer, ...]:
    return tuple(
        ChosenMcpServer(
            name=server.name,
            command=tuple(server.stdio.command),
            environment=dict(server.stdio.environment),
            url=server.http.url,
            headers=dict(server.http.headers),
            read_only=tuple(server.read_only_tools),
        )
        for server in wanted
    )


def mcp_server(status: McpServerStatus) -> v1.McpServer:
    """The API message of an MCP server, without its environment and headers."""
    server = v1.McpServer(
        name=status.name,
        state=messages.MCP_STATE[status.state],
        error=status.error,
        tools=[names.tool(spec.name) for spec in status.tools],
        tools_left_out=[v1.McpServer.ToolLeftOut(name=each.name, reason=each.reason) for each in status.left_out],
    )
    if status.url:
        server.http.url = status.url
    else:
        server.stdio.command.extend(status.command)
    return server


def servers_of(servers: Sequence[ChosenMcpServer], statuses: Iterable[McpServerStatus]) -> list[v1.McpServer]:
    """The API messages of a conversation's MCP servers. A server without a status counts as stopped."""
    known = {status.name: status for status in statuses}
    found: list[v1.McpServer] = []
    for each in servers:
        stopped = McpServerStatus(each.name, McpState.STOPPED, each.command, each.url)
        server = mcp_server(known.get(each.name, stopped))
        if each.environment:
            server.stdio.environment.update(each.environment)
        if each.headers:
            server.http.headers.update(each.headers)
        server.read_only_tools.extend(each.read_only)
        found.append(server)
    return found


_ACTIONS: dict[int, Action] = {number: action for action, number in messages.ACTION.items()}


def approval_rule(conversation_id: str, rule: ApprovalRule) -> v1.ApprovalRule:
    """The API message of an approval rule. A suggested rule has no id yet, so its name is ""."""
    answer = v1.ApprovalRule(
        name=names.approval_rule("" if rule.origin is Origin.OPERATOR else conversation_id, rule.id),
        action=messages.ACTION[rule.action],
        create_time=messages.timestamp(rule.created_at),
        creator=rule.creator,
        origin=messages.ORIGIN[rule.origin],
    )
    if rule.tool:
        answer.tool = names.tool(rule.tool)
    for field in ("command", "command_prefix", "path", "mcp_server"):
        if value := getattr(rule, field):
            setattr(answer, field, value)
    return answer


def parsed_rule(rule: v1.ApprovalRule) -> ApprovalRule:
    """The approval rule in a request. Only its action (ALLOW if unset) and what it matches are converted."""
    return ApprovalRule(
        id="",
        action=_ACTIONS.get(rule.action, Action.ALLOW),
        tool=names.parse_tool(rule.tool) or "",
        command=rule.command,
        command_prefix=rule.command_prefix,
        path=rule.path,
        mcp_server=rule.mcp_server,
    )


def sub_agent(agent: AgentSummary) -> v1.SubAgent:
    return v1.SubAgent(
        conversation=names.conversation(agent.id),
        task=agent.heading,
        task_index=agent.index,
        deadline=messages.timestamp(agent.deadline),
    )


def sub_agents_changed(
    pending: Iterable[AgentSummary], reports: Iterable[states.AgentReport]
) -> v1.Event.SubAgentsChanged:
    """The event about the sub-agents that one call has started: those still running, and the reports of ended ones."""
    return v1.Event.SubAgentsChanged(pending=map(sub_agent, pending), reports=map(_report, reports))


def standing(state: states.AwaitingSubAgents) -> v1.Event.SubAgentsChanged:
    """The event about the sub-agents that a conversation is waiting for, made from the conversation's state."""
    return sub_agents_changed(map(summarize_agent, state.pending), state.completed_results)


def _report(report: states.AgentReport) -> v1.Event.SubAgentsChanged.Report:
    answer = v1.Event.SubAgentsChanged.Report(
        conversation=names.conversation(report.agent_id), task=heading(report.task), task_index=report.index
    )
    match report.outcome:
        case states.AgentSucceeded(result=result):
            answer.state = v1.STATE_KIND_COMPLETED
            answer.result = result[:REPORT_CHARS]
        case states.AgentFailed(kind=kind, error=error, partial_result=partial):
            answer.state = v1.STATE_KIND_FAILED
            answer.error.CopyFrom(messages.run_error(kind, error[:REPORT_CHARS]))
            answer.partial_result = partial[:REPORT_CHARS]
        case states.AgentTimedOut(partial_result=partial):
            answer.state = v1.STATE_KIND_FAILED
            answer.error.CopyFrom(messages.run_error(ErrorKind.TIMED_OUT, "the sub-agent ran out of time"))
            answer.partial_result = partial[:REPORT_CHARS]
    return answer


def conversation(
    conversion: messages.ConversionContext, record: ConversationRecord, known_state: v1.ConversationState | None = None
) -> v1.Conversation:
    """A conversation as in lists and events: `in_full` adds instructions, client tools and MCP servers.

    `known_state` is its state's message, if already built.
    """
    ledger = record.state.ledger
    summary = record.state.summary if isinstance(record.state, states.ContextExhausted) else ""
    return v1.Conversation(
        name=names.conversation(record.id),
        slug=record.slug,
        title=record.title,
        working_directory=record.cwd,
        model=names.model(record.model),
        state=state_of(conversion, record) if known_state is None else known_state,
        mode=messages.MODE[record.mode],
        context_usage=v1.ContextUsage(
            used_tokens=ledger.used_tokens,
            usable_window_tokens=conversion.usable_window(record.model),
            warning=ledger.warned,
            assumed=conversion.window_assumed(record.model),
        ),
        total_usage=messages.usage(ledger.total_usage),
        aside_usage=messages.usage(ledger.aside_usage),
        parent=names.conversation(record.parent_conversation_id or ""),
        continued_from=names.conversation(record.continued_from),
        continued_by=names.conversation(record.continued_by),
        continuation_summary=summary,
        forked_from=names.conversation(record.profile.forked_from),
        forked_at=names.cycle(record.profile.forked_from, record.profile.forked_at),
        create_time=messages.timestamp(record.created_at),
        update_time=messages.timestamp(record.updated_at),
        archive_time=messages.timestamp(record.archived_at or 0),
        revision=record.revision,
        etag=etag_of(record),
        labels=record.labels,
        approval_policy=messages.APPROVAL_POLICY[record.approval_policy],
        approval_rules=[approval_rule(record.id, rule) for rule in record.approval_rules],
        follow_up_policy=messages.FOLLOW_UP_POLICY[record.follow_up_policy],
        budget=messages.budget(record.budget),
        tools=_selection(record.profile),
        generation=_generation(record.profile.generation),
        auto_continue=record.profile.auto_continue,
        unoffered_tools=[
            v1.UnofferedTool(name=name, reason=v1.UnofferedTool.REASON_MODE, text=NOT_OFFERED)
            for name in unoffered(record.profile.client_tools, record.mode)
        ],
    )


def _selection(profile: Profile) -> v1.ToolSelection | None:
    return None if profile.tools is None else v1.ToolSelection(tools=map(names.tool, profile.tools))


def _generation(generation: Generation) -> v1.Generation | None:
    if generation == Generation():
        return None
    effort = generation.reasoning_effort
    return v1.Generation(
        reasoning_effort=messages.REASONING_EFFORT[effort] if effort else v1.REASONING_EFFORT_UNSPECIFIED,
        temperature=generation.temperature,
        max_output_tokens=generation.max_output_tokens or None,
    )


def in_full(
    conversion: messages.ConversionContext, record: ConversationRecord, statuses: Sequence[McpServerStatus] = ()
) -> v1.Conversation:
    """A conversation with instructions, client tools and MCP servers; a server without a status counts as stopped."""
    answer = conversation(conversion, record)
    profile = record.profile
    if profile.instructions:
        answer.instructions.CopyFrom(v1.Instructions(text=profile.instructions, replace=profile.replaces_prompt))
    answer.client_tools.extend(map(_client_tool, profile.client_tools))
    answer.mcp_servers.extend(servers_of(profile.mcp_servers, statuses))
    return answer


def _client_tool(tool: ClientTool) -> v1.ClientTool:
    return v1.ClientTool(
        name=tool.name,
        description=tool.description,
        input_schema=messages.struct(tool.input_schema),
        group=messages.TOOL_GROUP[tool.group],
        timeout=messages.duration(tool.timeout_ms),
        read_only=tool.read_only,
        requires_approval=tool.requires_approval,
    )


def present(conversion: messages.ConversionContext, record: ConversationRecord) -> v1.Conversation:
    """A conversation with its running jobs, its MCP servers' states, and the tokens that prompt and tools take.

    Thread-safe.
    """
    answer = in_full(conversion, record, conversion.mcp_servers(record) if record.profile.mcp_servers else ())
    answer.background_jobs.extend(conversion.background_jobs(record.id))
    answer.context_usage.fixed_tokens = conversion.fixed_tokens(record)
    return answer


def state_of(conversion: messages.ConversionContext, record: ConversationRecord) -> v1.ConversationState:
    return state(conversion, record.id, summary_of(conversion, record.id, record.state), record.state_updated_at)


def summary_of(conversion: messages.ConversionContext, conversation_id: str, stored: states.State) -> StateSummary:
    context = ConvContext(conversation_id, working_dir="", model_id="", usable_window=0, limits=conversion.limits)
    return summarize(stored, context)


def state(
    conversion: messages.ConversionContext, conversation_id: str, summary: StateSummary, entered: int
) -> v1.ConversationState:
    answer = v1.ConversationState(
        kind=messages.STATE_KIND[summary.kind],
        enter_time=messages.timestamp(entered),
        busy=summary.busy,
        run=names.cycle(conversation_id, summary.run),
    )
    match summary.kind:
        case "llm_requesting" | "awaiting_continuation":
            answer.llm_requesting.CopyFrom(_llm_requesting(summary))
        case "awaiting_tool_approval":
            questions = pending_approvals(conversion, conversation_id, summary)
            answer.awaiting_approval.CopyFrom(v1.ConversationState.AwaitingApproval(pending=questions))
        case "tool_executing":
            answer.tool_executing.CopyFrom(_tool_executing(conversion, conversation_id, summary))
        case "awaiting_sub_agents":
            pending = map(sub_agent, summary.pending_agents)
            answer.awaiting_sub_agents.CopyFrom(
                v1.ConversationState.AwaitingSubAgents(pending=pending, completed_count=summary.completed_count)
            )
        case "error":
            answer.error.CopyFrom(_error(summary))
        case "completed":
            answer.completed.CopyFrom(v1.ConversationState.Completed(result=summary.result))
        case "failed":
            answer.failed.CopyFrom(
                v1.ConversationState.Failed(error=_error(summary), partial_result=summary.partial_result)
            )
        case _:
            pass
    return answer


def _llm_requesting(summary: StateSummary) -> v1.ConversationState.LlmRequesting:
    return v1.ConversationState.LlmRequesting(
        llm_request_id=summary.request_id,
        attempt=summary.attempt,
        max_attempts=summary.max_attempts,
        phase=messages.PHASE.get(summary.phase, v1.ConversationState.LlmRequesting.PHASE_UNSPECIFIED),  # type: ignore[call-overload]
        retry_time=messages.timestamp(summary.retry_at),
        last_error=messages.failure(summary.last_error),
    )


def _tool_executing(
    conversion: messages.ConversionContext, conversation_id: str, summary: StateSummary
) -> v1.ConversationState.ToolExecuting:
    return v1.ConversationState.ToolExecuting(
        current=None if summary.current_call is None else messages.tool_call(conversion, summary.current_call),
        attempt=summary.attempt,
        max_attempts=summary.max_attempts,
        retry_time=messages.timestamp(summary.retry_at),
        remaining_count=summary.remaining_count,
        completed_count=summary.completed_count,
        deadline=messages.timestamp(summary.deadline),
        questions=pending_questions(conversation_id, summary),
    )


def client_tool_call(conversion: messages.ConversionContext, awaited: ClientToolCall) -> v1.Event.ClientToolCallChanged:
    return v1.Event.ClientToolCallChanged(
        call=messages.tool_call(conversion, awaited.call),
        status=messages.CALL_STATUS[awaited.status],
        deadline=messages.timestamp(awaited.deadline),
    )


def pending_client_tool_calls(
    conversion: messages.ConversionContext, summary: StateSummary
) -> list[v1.Event.ClientToolCallChanged]:
    """The event about the running tool call whose result a client must provide; [] if there is none."""
    if summary.current_call is None or not summary.deadline:
        return []
    awaited = ClientToolCall(summary.current_call, CallStatus.PENDING, summary.deadline)
    return [client_tool_call(conversion, awaited)]


def question(conversation_id: str, changed: QuestionChanged) -> v1.Question:
    asked = changed.question
    answer = v1.Question(
        name=names.question(conversation_id, asked.number),
        tool_use_id=changed.call.id,
        tool=names.tool(changed.call.name),
        mcp_server=asked.asker,
        message=asked.message,
        create_time=messages.timestamp(asked.since),
        deadline=messages.timestamp(asked.deadline),
        status=messages.QUESTION_STATUS[changed.status],
    )
    if asked.url:
        answer.url = asked.url
    elif form := messages.struct(asked.schema):
        answer.requested_schema.CopyFrom(form)
    return answer


def pending_questions(conversation_id: str, summary: StateSummary) -> list[v1.Question]:
    call = summary.current_call
    if call is None:
        return []
    waiting = (QuestionChanged(call, asked, states.QuestionStatus.PENDING) for asked in summary.questions)
    return [question(conversation_id, changed) for changed in waiting]


def _error(summary: StateSummary) -> v1.RunError:
    return messages.run_error(summary.error_kind or ErrorKind.UNKNOWN, summary.error_message)


def pending_approvals(
    conversion: messages.ConversionContext, conversation_id: str, summary: StateSummary
) -> list[v1.PendingApproval]:
    """The pending approvals, in the order of the model's tool calls."""
    known = {each.tool_use_id: each for each in summary.suggestions}
    about = ((call, known.get(call.id, Suggested(call.id, ()))) for call in summary.undecided)
    return [
        pending_approval(
            conversion,
            conversation_id,
            ApprovalRequested(call, approval_kind(call), summary.since, each.rules, each.asked_by, each.workspace),
        )
        for call, each in about
    ]


def pending_approval(
    conversion: messages.ConversionContext, conversation_id: str, asked: ApprovalRequested
) -> v1.PendingApproval:
    call = asked.call
    question = v1.PendingApproval(
        name=names.approval(conversation_id, call.id),
        create_time=messages.timestamp(asked.since),
        suggestions=[approval_rule("", rule) for rule in asked.suggestions],
        rule=None if asked.asked_by is None else approval_rule(conversation_id, asked.asked_by),
    )
    if asked.kind is states.ApprovalKind.MODE_UPGRADE:
        question.mode_upgrade.CopyFrom(
            v1.PendingApproval.ModeUpgrade(
                tool_use_id=call.id,
                reason=_reason_in(call.input),
                mode=messages.MODE[requested_mode(call)],
                workspace_available=asked.workspace,
            )
        )
    else:
        question.tool_call.CopyFrom(messages.tool_call(conversion, call))
    return question


class _UpgradeInput(msgspec.Struct):
    reason: str = ""


_UPGRADE = msgspec.json.Decoder(_UpgradeInput)


def _reason_in(raw: str) -> str:
    try:
        return _UPGRADE.decode(raw).reason
    except (msgspec.DecodeError, UnicodeError):
        return ""


# The maximum number of cached conversations. Most take one or two KB.
KEPT = 256
KEPT_BYTES = 64 * 1024


class _Encoded:
    __slots__ = ("message", "record", "window", "wire")

    def __init__(self, record: ConversationRecord, window: int, message: v1.Conversation) -> None:
        self.record = record
        self.window = window
        self.message = message
        self.wire: bytes | None = None


class EncodedConversations:
    """Caches the API messages of the most recently converted conversations. Use only on the event loop."""

    def __init__(self, conversion: messages.ConversionContext) -> None:
        self._conversion = conversion
        self._latest: dict[str, _Encoded] = {}

    def message(self, record: ConversationRecord) -> v1.Conversation:
        """The API message of a conversation's record. The message is shared: copy it before you change it."""
        return self._encoded(record).message

    def wire(self, record: ConversationRecord) -> bytes:
        found = self._encoded(record)
        if found.wire is None:
            found.wire = found.message.SerializeToString()
        return found.wire

    def _encoded(self, record: ConversationRecord) -> _Encoded:
        known = self._latest.get(record.id)
        window = self._conversion.usable_window(record.model)
        if known is not None and known.record is record and known.window == window:
            return known
        made = _Encoded(record, window, conversation(self._conversion, record, _same_state(known, record)))
        self._latest.pop(record.id, None)
        if made.message.ByteSize() <= KEPT_BYTES:
            self._latest[record.id] = made
        if len(self._latest) > KEPT:
            del self._latest[next(iter(self._latest))]
        return made


def _same_state(known: _Encoded | None, record: ConversationRecord) -> v1.ConversationState | None:
    if known is None or known.record.state is not record.state:
        return None
    return known.message.state if known.record.state_updated_at == record.state_updated_at else None
