"""Passes each observation (such as the end of a model request) on to several observers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from actors.ports.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from actors.ports.models import ModelAnswer, ModelRequest
    from actors.ports.telemetry import AttemptEnd, AttemptStart, Rpc, RunEnd, RunStart, ToolEnd, ToolStart

log = logging.getLogger(__name__)


_METHODS = tuple(name for name, member in vars(Telemetry).items() if callable(member))


class FanOut(Telemetry):
    """Passes each observation on to those observers whose classes override the method for it.

    The failure of one observer affects neither the others nor the observed work. An observation that no observer uses
    costs only one call. That matters because most observers use few kinds of observations, and the server makes many
    observations per model request.
    """

    def __init__(self, observers: Sequence[Telemetry]) -> None:
        self._takers: dict[str, tuple[Callable[..., Any], ...]] = dict.fromkeys(_METHODS, ())
        """For each method of Telemetry, the bound methods of the observers whose classes override it."""
        self._failed = False
        for observer in observers:
            self.add(observer)

    def add(self, observer: Telemetry) -> None:
        """Add an observer. Call this before anything is observed."""
        for name in _METHODS:
            if getattr(type(observer), name) is not getattr(Telemetry, name):
                self._takers[name] += (getattr(observer, name),)
        self.on = True
        self.measures |= observer.measures

    def _tell(self, method: str, *facts: object) -> None:
        for take in self._takers[method]:
            try:
                take(*facts)
            except Exception:
                if not self._failed:  # logged once only, because later observations would probably fail, too
                    log.exception("what is observed could not be passed on; this is said once")
                self._failed = True

    def close(self) -> None:
        self._tell("close")

    def rpc_ended(self, rpc: Rpc) -> None:
        self._tell("rpc_ended", rpc)

    def command_taken(self, conversation: str, kind: str, asked_at: float, trace_parent: str) -> None:
        self._tell("command_taken", conversation, kind, asked_at, trace_parent)

    def command_done(self, conversation: str) -> None:
        self._tell("command_done", conversation)

    def run_began(self, run: RunStart) -> None:
        self._tell("run_began", run)

    def run_recovered(self, run: RunStart, outcome: str, detail: str) -> None:
        self._tell("run_recovered", run, outcome, detail)

    def call_left_out(self, call: ToolStart, outcome: str) -> None:
        self._tell("call_left_out", call, outcome)

    def run_ended(self, run: RunStart, end: RunEnd) -> None:
        self._tell("run_ended", run, end)

    def attempt_began(self, attempt: AttemptStart) -> None:
        self._tell("attempt_began", attempt)

    def attempt_ended(
        self, attempt: AttemptStart, end: AttemptEnd, request: ModelRequest, answer: ModelAnswer | None
    ) -> None:
        self._tell("attempt_ended", attempt, end, request, answer)

    def tool_began(self, call: ToolStart) -> None:
        self._tell("tool_began", call)

    def trace_parent_of(self, call: ToolStart) -> str:
        return next((found for ask in self._takers["trace_parent_of"] if (found := ask(call))), "")

    def tool_ended(self, call: ToolStart, end: ToolEnd, arguments: Mapping[str, Any], result: str) -> None:
        self._tell("tool_ended", call, end, arguments, result)

    def cancelled(self, conversation: str, seconds: float) -> None:
        self._tell("cancelled", conversation, seconds)

    def reaped(self, conversation: str, seconds: float, leaked: bool) -> None:
        self._tell("reaped", conversation, seconds, leaked)

    def quota_exceeded(self, quota: str) -> None:
        self._tell("quota_exceeded", quota)

    def taken_over(self, conversations: int) -> None:
        self._tell("taken_over", conversations)

    def forwarded(self, outcome: str) -> None:
        self._tell("forwarded", outcome)

    def written(self, changes: int, seconds: float) -> None:
        self._tell("written", changes, seconds)

    def delivered(self, seconds: float) -> None:
        self._tell("delivered", seconds)

    def loop_delayed(self, seconds: float) -> None:
        self._tell("loop_delayed", seconds)
