"""The laws of the machine along random lives of a conversation (I1 to I30, I39 to I43), and its growing view (C48).

Every walk checks every law at every step, so one set of walks is the examples of all of them. Its view grows in one of
the forms that providers get.
"""

from collections import Counter

from hypothesis import given

from actors.core.content import MessageType
from actors.core.errors import Reason
from actors.core.events import Event, LlmStreamChunk
from actors.core.notifications import TextDelta
from actors.core.states import LlmPhase
from actors.core.transition import stream_text
from tests.property.drive import a_context, walk
from tests.property.growing import FORMS, Growing, kinds_of
from tests.property.profiles import everything_was_seen, profile
from tests.property.step_laws import check
from tests.property.tape import Tape, tapes
from tests.property.world import World

REQUESTS = {
    f"{state} {phase}"
    for state in ("LlmRequesting", "AwaitingContinuation")
    for phase in ("connecting", "streaming", "backoff")
}
WINDOW = {"text while None", "text while connecting", "text while streaming"}
TOOLS = {"ToolExecuting running", "ToolExecuting backoff"}
EFFECTS = set("PersistMessage PersistState RequestLlm AbortLlm ExecuteTool AbortTool ScheduleRetry".split())
PARENT_EFFECTS = set(
    """PersistMode AwaitToolResult AwaitAnswer AnswerTool RequestContinuation SpawnSubAgent CancelSubAgents
    StartTimer""".split()
)
TOLD = set("StateChanged TextDelta StreamDiscarded Retrying UsageChanged ContextWarning RunStop".split())
PARENT_TOLD = set(
    """QueueChanged ApprovalRequested ApprovalResolved ClientToolCall QuestionChanged SubAgents ModeChanged""".split()
)
ERRORS = set("network rate_limit server_error timed_out auth invalid_request content_filter unknown".split())
STOPS = {f"run-stop error {kind}" for kind in (*ERRORS, "context_exhausted")} | {
    "run-stop completed",
    "run-stop interrupted",
    "run-stop interrupted restart",
    "run-stop interrupted budget",
}
PARENT_STOPS = {
    "run-stop completed context_exhausted",
    "run-stop completed max_tokens",
    "run-stop completed refusal",
    "run-stop interrupted cancel_timeout",
    "run-stop interrupted context_exhausted",
    "run-stop interrupted not_run",
    "run-stop interrupted round_cap",
}
SUB_AGENT_STOPS = {f"run-stop error {detail}" for detail in ("sub_agent_error", "turn_limit", "no_result")}
MESSAGES = {*MessageType, "late", "image", "steer", "reasoning", "cancelled"}
PARENT_STATES = {"Idle", "Error", "AwaitingToolApproval", "AwaitingSubAgents", "Cancelling", "ContextExhausted"}
REFUSALS = set(
    """AGENT_BUSY AWAITING_APPROVAL CANCELLING CONTINUATION_IN_PROGRESS CONTEXT_EXHAUSTED TERMINAL NOT_SUB_AGENT
    NOT_AWAITING_APPROVAL UNKNOWN_OR_DECIDED RUN_OVER QUEUE_FULL""".split()
)


class WindowedWorld(World):
    """Streamed text is also given to its window: it waits, is told without a commit, or is void."""

    def apply(self, event: Event) -> bool | Reason:
        if isinstance(event, LlmStreamChunk):
            self._look_through_the_window(event)
        return super().apply(event)

    def _look_through_the_window(self, chunk: LlmStreamChunk) -> None:
        told, slot = stream_text(self.state, self.context, chunk), (chunk.request_id, chunk.attempt)
        flight = self.request and (self.request.request_id, self.request.attempt)
        phase = getattr(self.state, "phase", None) if slot == flight else None
        delta = TextDelta(*slot, chunk.content.text, chunk.reasoning)
        check("text waits for its stream's start", (told is None) == (phase is LlmPhase.CONNECTING), chunk)
        check("text is told in its window", (told == (delta,)) == (phase is LlmPhase.STREAMING), chunk)
        check("and nothing else is", not told or told == (delta,), chunk)
        self.seen[f"text while {phase}"] += 1


def test_every_law_holds_along_any_life_of_a_conversation() -> None:
    """And the walks reach every state, effect, notification, run-stop and refusal there is."""
    seen: Counter[str] = Counter()

    @profile()
    @given(tapes(100, 260))
    def live(tape: Tape) -> None:
        world = WindowedWorld(a_context(tape), seen)
        walk(world, tape, Growing(tape.pick(FORMS)).follow)
        seen.update(kinds_of(world.laws.history))

    live()
    expected = (
        REQUESTS
        | WINDOW
        | TOOLS
        | PARENT_STATES
        | EFFECTS
        | PARENT_EFFECTS
        | TOLD
        | PARENT_TOLD
        | STOPS
        | PARENT_STOPS
        | REFUSALS
        | MESSAGES
    )
    assert everything_was_seen(expected, seen), f"never reached: {expected - seen.keys()}"


def test_every_law_holds_along_any_life_of_a_sub_agent() -> None:
    seen: Counter[str] = Counter()

    @profile()
    @given(tapes(70, 210))
    def live(tape: Tape) -> None:
        walk(WindowedWorld(a_context(tape, sub_agent=True), seen), tape, Growing(tape.pick(FORMS)).follow)

    live()
    states = {state for state in REQUESTS if state.startswith("Llm")} | TOOLS | {"Completed", "Failed"}
    refusals = {"SUB_AGENT", "TERMINAL", "ALREADY_STARTED", "NOT_AWAITING_APPROVAL", "UNKNOWN_OR_DECIDED"}
    expected = states | EFFECTS | {"NotifyParent"} | TOLD | STOPS | SUB_AGENT_STOPS | refusals
    assert everything_was_seen(expected, seen), f"never reached: {expected - seen.keys()}"
