"""Writes a log line when a command, stream, run, model request or tool call ends, and when a run begins."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from actors.ports.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.ports.models import ModelAnswer, ModelRequest
    from actors.ports.telemetry import AttemptEnd, AttemptStart, Rpc, RunEnd, RunStart, ToolEnd, ToolStart

log = logging.getLogger(__name__)

_RPC = ("rpc", "conversation", "principal", "peer", "request_id", "outcome", "duration_ms")

LINES: dict[str, tuple[str, ...]] = {
    "command accepted": _RPC,
    "stream ended": _RPC,
    "call answered": _RPC,
    "call refused": _RPC,
    "run began": ("conversation", "run", "model", "principal", "parent"),
    "run ended": ("conversation", "run", "model", "principal", "parent", "outcome", "detail", "duration_ms"),
    "model request ended": (
        "conversation", "run", "request", "attempt", "model", "provider", "purpose", "outcome", "duration_ms",
        "first_chunk_ms", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_micros",
    ),
    "tool call ended": ("conversation", "run", "call", "tool", "outcome", "duration_ms"),
}  # fmt: skip
"""The message of each log line, and the names of its fields. A field without a value is left out."""


class LogLines(Telemetry):
    """Writes the log lines: at level debug for gRPC calls that only read or are refused, otherwise at level info."""

    on = True

    def __init__(self) -> None:
        self._runs: dict[str, str] = {}
        """The id of the run that is under way in each conversation, by the conversation's id."""

    def rpc_ended(self, rpc: Rpc) -> None:
        if rpc.stream:
            line, level = "stream ended", logging.INFO
        elif rpc.outcome != "OK":
            line, level = "call refused", logging.DEBUG
        elif rpc.command:
            line, level = "command accepted", logging.INFO
        else:
            line, level = "call answered", logging.DEBUG
        _write(
            level,
            line,
            (
                rpc.method,
                rpc.conversation,
                rpc.principal,
                rpc.peer,
                rpc.request_id,
                rpc.outcome,
                _milliseconds(rpc.seconds),
            ),
        )

    def run_began(self, run: RunStart) -> None:
        self._runs[run.conversation] = run.run
        _write(logging.INFO, "run began", (run.conversation, run.run, run.model, run.principal, run.parent))

    def run_ended(self, run: RunStart, end: RunEnd) -> None:
        facts = (run.conversation, run.run, run.model, run.principal, run.parent)
        _write(logging.INFO, "run ended", (*facts, end.outcome, end.detail, _milliseconds(end.seconds)))
        self._runs.pop(run.conversation, None)

    def run_recovered(self, run: RunStart, outcome: str, detail: str) -> None:
        facts = (run.conversation, run.run, run.model, run.principal, run.parent)
        _write(logging.INFO, "run ended", (*facts, outcome, detail))

    def call_left_out(self, call: ToolStart, outcome: str) -> None:
        run = self._runs.get(call.conversation, "")
        _write(logging.INFO, "tool call ended", (call.conversation, run, call.call, call.tool, outcome))

    def attempt_ended(
        self, attempt: AttemptStart, end: AttemptEnd, request: ModelRequest, answer: ModelAnswer | None
    ) -> None:
        facts = (
            attempt.conversation,
            self._runs.get(attempt.conversation, ""),
            attempt.request,
            attempt.attempt,
            attempt.model,
            attempt.provider,
            attempt.purpose,
            end.outcome,
            _milliseconds(end.seconds),
            None if end.first_chunk_seconds is None else _milliseconds(end.first_chunk_seconds),
        )
        used = end.usage
        tokens: tuple[int, ...] = ()
        if used is not None:
            tokens = (
                used.input_tokens,
                used.output_tokens,
                used.cache_read_tokens,
                used.cache_write_tokens,
                used.cost_micros,
            )
        _write(logging.INFO, "model request ended", (*facts, *tokens))

    def tool_ended(self, call: ToolStart, end: ToolEnd, arguments: Mapping[str, Any], result: str) -> None:
        run = self._runs.get(call.conversation, "")
        facts = (call.conversation, run, call.call, call.tool, end.outcome, _milliseconds(end.seconds))
        _write(logging.INFO, "tool call ended", facts)


def _write(level: int, line: str, values: tuple[object, ...]) -> None:
    if log.isEnabledFor(level):
        fields = zip(LINES[line], values, strict=False)  # the last values, token counts, may be missing
        log.log(level, line, extra={name: value for name, value in fields if value not in {"", None}})


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)
