"""Makes a trace for each run and the runs of its sub-agents, by OpenTelemetry's GenAI conventions (extra `otel`).

A run (the work on one user message) is a span `invoke_agent`. It contains a span `chat` for each attempt of a model
request and a span `execute_tool` for each tool call. Contents of messages are left out, except in the attributes that
the operator has named.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from actors.core.content import Text, ToolUse, Usage
from actors.ports.telemetry import ARGUMENTS, INPUT, OUTPUT, RESULT, RunEnd, Telemetry, ToolEnd

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

    from actors.core.content import Content
    from actors.ports.models import ModelAnswer, ModelRequest
    from actors.ports.telemetry import AttemptEnd, AttemptStart, RunStart, ToolStart

_PROPAGATOR = TraceContextTextMapPropagator()
AGENT, SUB_AGENT = "bedrock", "bedrock.sub_agent"


class _OpenRun:
    """A run's OpenTelemetry span, and the tokens that the model's answers have used so far."""

    __slots__ = ("provider", "span", "usage")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.provider = ""
        self.usage = Usage()


class Traces(Telemetry):
    """Makes a span for each run, attempt of a model request and tool call."""

    on = True

    def __init__(self, provider: TracerProvider, contents: Iterable[str] = ()) -> None:
        """Attributes that contain parts of messages are added to spans only if `contents` has their names."""
        self._provider = provider
        self._tracer = provider.get_tracer("bedrock")
        self._contents = frozenset(contents)
        self._runs: dict[str, _OpenRun] = {}
        """The run that is under way in each conversation, by the conversation's id."""
        self._attempts: dict[AttemptStart, Span] = {}
        self._calls: dict[ToolStart, Span] = {}

    def close(self) -> None:
        self._provider.shutdown()

    def run_began(self, run: RunStart) -> None:
        parent = self._inside(run.parent) or _PROPAGATOR.extract({"traceparent": run.trace_parent}, Context())
        agent = SUB_AGENT if run.parent else AGENT
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": run.conversation,
            "gen_ai.request.model": run.model,
            "bedrock.run": run.run,
        }
        span = self._tracer.start_span(f"invoke_agent {agent}", parent, SpanKind.INTERNAL, attributes)
        self._runs[run.conversation] = _OpenRun(span)

    def run_ended(self, run: RunStart, end: RunEnd) -> None:
        open_ = self._runs.pop(run.conversation, None)
        if open_ is None:
            return
        facts = {"gen_ai.provider.name": open_.provider, "bedrock.outcome": end.outcome, "bedrock.detail": end.detail}
        error = (end.detail or "error") if end.outcome == "error" else ""
        _end(open_.span, {name: fact for name, fact in facts.items() if fact} | _tokens(open_.usage), error)

    def run_recovered(self, run: RunStart, outcome: str, detail: str) -> None:
        self.run_began(run)
        self.run_ended(run, RunEnd(outcome, detail, 0.0))

    def call_left_out(self, call: ToolStart, outcome: str) -> None:
        self.tool_began(call)
        self.tool_ended(call, ToolEnd(outcome, 0.0), {}, "")

    def attempt_began(self, attempt: AttemptStart) -> None:
        open_ = self._runs.get(attempt.conversation)
        if open_ is not None:
            open_.provider = attempt.provider
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": attempt.provider,
            "gen_ai.request.model": attempt.model,
            "gen_ai.conversation.id": attempt.conversation,
            "gen_ai.request.stream": True,
            "bedrock.request": attempt.request,
            "bedrock.attempt": attempt.attempt,
            "bedrock.purpose": attempt.purpose,
        }
        inside = self._inside(attempt.conversation)
        self._attempts[attempt] = self._tracer.start_span(f"chat {attempt.model}", inside, SpanKind.CLIENT, attributes)

    def attempt_ended(
        self, attempt: AttemptStart, end: AttemptEnd, request: ModelRequest, answer: ModelAnswer | None
    ) -> None:
        span = self._attempts.pop(attempt, None)
        if span is None:
            return
        facts: dict[str, AttributeValue] = {}
        if end.first_chunk_seconds is not None:
            facts["gen_ai.response.time_to_first_chunk"] = end.first_chunk_seconds
        if end.usage is not None:
            facts |= _tokens(end.usage)
            if (open_ := self._runs.get(attempt.conversation)) is not None:
                open_.usage += end.usage
        if answer is not None:
            facts["gen_ai.response.finish_reasons"] = (_finish_reason(answer),)
            if OUTPUT in self._contents:
                facts[OUTPUT] = _messages("assistant", answer.content)
        if INPUT in self._contents and request.turns:
            facts[INPUT] = _messages(request.turns[-1].role, request.turns[-1].content)
        _end(span, facts, end.outcome if answer is None else "")

    def tool_began(self, call: ToolStart) -> None:
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.tool,
            "gen_ai.tool.call.id": call.call,
            "gen_ai.tool.type": "function" if call.group in {call.tool, "client"} else "extension",
            "gen_ai.conversation.id": call.conversation,
        }
        inside = self._inside(call.conversation)
        self._calls[call] = self._tracer.start_span(f"execute_tool {call.tool}", inside, SpanKind.INTERNAL, attributes)

    def trace_parent_of(self, call: ToolStart) -> str:
        span = self._calls.get(call)
        carrier: dict[str, str] = {}
        if span is not None:
            _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
        return carrier.get("traceparent", "")

    def tool_ended(self, call: ToolStart, end: ToolEnd, arguments: Mapping[str, Any], result: str) -> None:
        span = self._calls.pop(call, None)
        if span is None:
            return
        facts: dict[str, AttributeValue] = {"bedrock.outcome": end.outcome}
        if ARGUMENTS in self._contents:
            facts[ARGUMENTS] = json.dumps(arguments, default=str)
        if RESULT in self._contents:
            facts[RESULT] = result
        _end(span, facts, "" if end.outcome in {"ok", "sub_agents", "answered"} else end.outcome)

    def _inside(self, conversation: str) -> Context:
        """Return the context of spans in a conversation's run; of new traces if no run is open."""
        open_ = self._runs.get(conversation)
        return Context() if open_ is None else trace.set_span_in_context(open_.span, Context())


def _end(span: Span, facts: Mapping[str, AttributeValue], error: str = "") -> None:
    """End a span and add the attributes `facts`; `error` is the kind of its failure, "" for none."""
    span.set_attributes(facts)
    if error:
        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR)
    span.end()


def _tokens(usage: Usage) -> dict[str, AttributeValue]:
    """Return the attributes for the tokens used. By convention, input tokens include those read from the cache."""
    counted = {
        "gen_ai.usage.input_tokens": usage.context_tokens - usage.output_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }
    return {name: tokens for name, tokens in counted.items() if tokens}


def _finish_reason(answer: ModelAnswer) -> str:
    if answer.refusal:
        return "content_filter"
    if answer.truncated:
        return "length"
    return "tool_call" if any(isinstance(each, ToolUse) for each in answer.content) else "stop"


def _messages(role: str, content: Iterable[Content]) -> str:
    """Return one message as JSON in the form of OpenTelemetry's conventions; only texts and tool calls are included."""
    parts: list[dict[str, str]] = []
    for each in content:
        if isinstance(each, Text):
            parts.append({"type": "text", "content": each.text})
        elif isinstance(each, ToolUse):
            parts.append({"type": "tool_call", "id": each.id, "name": each.name, "arguments": each.input})
    return json.dumps([{"role": role, "parts": parts}])
