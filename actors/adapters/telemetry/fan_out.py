"""Several observers as one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from actors.ports.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.ports.models import ModelAnswer, ModelRequest
    from actors.ports.telemetry import AttemptEnd, AttemptStart, Rpc, RunEnd, RunStart, ToolEnd, ToolStart

log = logging.getLogger(__name__)


class FanOut(Telemetry):
    """Passes each observation to each observer. One that fails disturbs neither the others nor what is observed."""

    def __init__(self, observers: Sequence[Telemetry]) -> None:
        self._observers: list[Telemetry] = []
        self._failed = False
        for observer in observers:
            self.add(observer)

    def add(self, observer: Telemetry) -> None:
        """Add an observer; call before anything is observed."""
        self._observers.append(observer)
        self.on = True
        self.measures |= observer.measures

    def _each(self, tell: Callable[[Telemetry], None]) -> None:
        for observer in self._observers:
            try:
                tell(observer)
            except Exception:
                if not self._failed:  # once is enough: it would be said for each event
                    log.exception("what is observed could not be passed on; this is said once")
                self._failed = True

    def close(self) -> None:
        self._each(lambda each: each.close())

    def rpc_ended(self, rpc: Rpc) -> None:
        self._each(lambda each: each.rpc_ended(rpc))

    def command_taken(self, conversation: str, kind: str, asked_at: float, trace_parent: str) -> None:
        self._each(lambda each: each.command_taken(conversation, kind, asked_at, trace_parent))

    def command_done(self, conversation: str) -> None:
        self._each(lambda each: each.command_done(conversation))

    def run_began(self, run: RunStart) -> None:
        self._each(lambda each: each.run_began(run))

    def run_recovered(self, run: RunStart, outcome: str, detail: str) -> None:
        self._each(lambda each: each.run_recovered(run, outcome, detail))

    def call_left_out(self, call: ToolStart, outcome: str) -> None:
        self._each(lambda each: each.call_left_out(call, outcome))

    def run_ended(self, run: RunStart, end: RunEnd) -> None:
        self._each(lambda each: each.run_ended(run, end))

    def attempt_began(self, attempt: AttemptStart) -> None:
        self._each(lambda each: each.attempt_began(attempt))

    def attempt_ended(
        self, attempt: AttemptStart, end: AttemptEnd, request: ModelRequest, answer: ModelAnswer | None
    ) -> None:
        self._each(lambda each: each.attempt_ended(attempt, end, request, answer))

    def tool_began(self, call: ToolStart) -> None:
        self._each(lambda each: each.tool_began(call))

    def trace_parent_of(self, call: ToolStart) -> str:
        return next((found for each in self._observers if (found := each.trace_parent_of(call))), "")

    def tool_ended(self, call: ToolStart, end: ToolEnd, arguments: Mapping[str, Any], result: str) -> None:
        self._each(lambda each: each.tool_ended(call, end, arguments, result))

    def cancelled(self, conversation: str, seconds: float) -> None:
        self._each(lambda each: each.cancelled(conversation, seconds))

    def reaped(self, conversation: str, seconds: float, leaked: bool) -> None:
        self._each(lambda each: each.reaped(conversation, seconds, leaked))

    def quota_exceeded(self, quota: str) -> None:
        self._each(lambda each: each.quota_exceeded(quota))

    def taken_over(self, conversations: int) -> None:
        self._each(lambda each: each.taken_over(conversations))

    def forwarded(self, outcome: str) -> None:
        self._each(lambda each: each.forwarded(outcome))

    def written(self, changes: int, seconds: float) -> None:
        self._each(lambda each: each.written(changes, seconds))

    def delivered(self, seconds: float) -> None:
        self._each(lambda each: each.delivered(seconds))

    def loop_delayed(self, seconds: float) -> None:
        self._each(lambda each: each.loop_delayed(seconds))
