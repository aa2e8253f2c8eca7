"""One model request: every road ends in exactly one outcome, and its place is given back."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors import ports
from actors.core.content import Text, Usage
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import LlmAborted, LlmError, LlmResponse, LlmStreamStarted
from actors.messages import EffectOutcome
from actors.runners.llm_runner import LlmRequest, LlmRunner
from actors.runtime.admission import MANY_STREAMS, OPENING_READS, READ_INTERVAL, ReadPace
from actors.runtime.services import Services
from tests.support.patience import PATIENCE

OFFERED_NONE = SimpleNamespace(tools=(), turns=())
ANSWER = ports.ModelAnswer((Text("hi"),), True, Usage(1, 2))


class Window:
    """In the place of the window for streamed text: what was put in, and how much of it was passed on."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.passed_on = 0

    def put(self, text: str, *, reasoning: bool) -> None:
        self.texts.append(text)

    def pass_on(self) -> None:
        self.passed_on = len(self.texts)


class ToolHarness:
    """Makes requests and sees what becomes of them."""

    def __init__(self, services: Services, inbox: Any) -> None:
        self.services = services
        self.models: Any = services.models
        self.inbox = inbox
        self.cancel = ports.CancelToken()
        self.ended = threading.Semaphore(0)
        self.unclaimed: list[Usage] = []
        self.asked = 0
        self.window: Any = Window()
        self.pace: Any = ReadPace(services.clock, lambda: 1, self.cancel)

    def request(
        self,
        respond: Callable[[ports.ModelSink, ports.CancelToken], ports.ModelAnswer],
        build: Callable[[int], Any] = lambda refused: OFFERED_NONE,
        max_refusals: int = 1,
    ) -> list[Any]:
        """The events that the conversation is told of, once the runner has ended."""

        def answer(_: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
            self.asked += 1
            return respond(sink, cancel)

        self.models.answer = answer
        request = LlmRequest(
            "r1",
            1,
            lambda: self.models,
            lambda model, refused: build(refused),
            lambda content, tools: content,
            lambda content: (),
            max_refusals,
            "",
            self.cancel,
            lambda model, request, sink, cancel: model.respond(request, sink, cancel),
            self.window,
            self.pace,
            on_end=self.ended.release,
            unclaimed=self.unclaimed.append,
            queued_at=0,
        )
        runner = LlmRunner.start(self.inbox, self.services.clock)
        runner.tell(request)
        assert self.ended.acquire(timeout=PATIENCE)
        assert runner.stop(timeout=PATIENCE)
        assert request.ended
        assert not self.ended.acquire(blocking=False), "its place was given back twice"
        return [told.event for told in self.inbox.of(EffectOutcome)]


@pytest.fixture
def harness(services: Services, inbox: Any) -> ToolHarness:
    return ToolHarness(services, inbox)


def test_an_answer_is_reported_whole(harness: ToolHarness) -> None:
    answer = ports.ModelAnswer((Text("hi"),), False, Usage(1, 2), truncated=True, refusal=True)
    assert harness.request(lambda sink, cancel: answer) == [
        LlmResponse(1_000, "r1", 1, (Text("hi"),), False, Usage(1, 2), True, True)
    ]


def test_the_start_is_reported_once_and_before_any_text(harness: ToolHarness) -> None:
    def respond(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        sink.text("")
        sink.text("no start before it")
        sink.flush()
        sink.flush()
        sink.started()
        return ANSWER

    started, response = harness.request(respond)
    assert isinstance(started, LlmStreamStarted)
    assert isinstance(response, LlmResponse)
    assert harness.window.texts == ["no start before it"]


@pytest.mark.parametrize(
    ("failure", "kind", "retry_after"),
    [
        (
            ports.ModelFailedError(LlmFailure(ErrorKind.RATE_LIMIT, "slow down"), 7_000, Usage(3, 0)),
            ErrorKind.RATE_LIMIT,
            7_000,
        ),
        (ports.StoreUnavailableError("disk"), ErrorKind.SERVER_ERROR, None),
        (ZeroDivisionError("a bug"), ErrorKind.UNKNOWN, None),
        (SystemExit(1), ErrorKind.UNKNOWN, None),
    ],
)
def test_a_failure_is_an_outcome(
    harness: ToolHarness, failure: BaseException, kind: ErrorKind, retry_after: int | None
) -> None:
    def respond(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        raise failure

    (error,) = harness.request(respond)
    assert isinstance(error, LlmError)
    assert (error.error.kind, error.retry_after_ms) == (kind, retry_after)
    assert error.usage == (Usage(3, 0) if retry_after else None)
    assert "bug" not in error.error.message


def too_long(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
    raise ports.ModelFailedError(LlmFailure(ErrorKind.CONTEXT_EXHAUSTED, "too long"))


def length(refused: int) -> Any:
    return SimpleNamespace(tools=(), turns=("x",) * (9 - refused))


@pytest.mark.parametrize("max_refusals", [1, 3])
def test_a_request_that_is_too_long_is_made_shorter_so_many_times(harness: ToolHarness, max_refusals: int) -> None:
    (failed,) = harness.request(too_long, length, max_refusals)
    assert isinstance(failed, LlmError)
    assert failed.error.kind is ErrorKind.CONTEXT_EXHAUSTED
    assert harness.asked == 1 + max_refusals


def test_a_request_that_cannot_be_made_shorter_is_not_repeated(harness: ToolHarness) -> None:
    assert isinstance(harness.request(too_long)[0], LlmError)
    assert harness.asked == 1


def test_a_request_that_was_streamed_is_not_repeated(harness: ToolHarness) -> None:
    def respond(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        sink.text("a")
        return too_long(sink, cancel)

    assert isinstance(harness.request(respond, length)[-1], LlmError)
    assert harness.asked == 1


def test_an_answer_to_a_shortened_request_says_so(harness: ToolHarness) -> None:
    def respond(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        return too_long(sink, cancel) if harness.asked == 1 else ANSWER

    (response,) = harness.request(respond, length)
    assert response == LlmResponse(1_000, "r1", 1, ANSWER.content, True, ANSWER.usage, narrowed=True)


def test_an_operator_reads_of_a_failed_request_but_not_what_was_said(
    harness: ToolHarness, caplog: pytest.LogCaptureFixture
) -> None:
    def respond(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        raise ports.ModelFailedError(LlmFailure(ErrorKind.AUTH, "the provider repeats the prompt"))

    harness.request(respond)
    (record,) = caplog.records
    assert record.getMessage() == "an attempt at a model request failed"
    assert vars(record).items() >= {"request": "r1", "attempt": 1, "outcome": "auth"}.items()


def test_a_history_that_cannot_be_read_is_a_failure_that_may_pass(harness: ToolHarness) -> None:
    def build(refused: int) -> Any:
        raise ports.StoreUnavailableError("disk")

    (error,) = harness.request(lambda sink, cancel: ANSWER, build)
    assert isinstance(error, LlmError)
    assert error.error.retryable
    assert harness.asked == 0


def test_what_is_cancelled_before_it_began_never_asks(harness: ToolHarness) -> None:
    harness.cancel.cancel()
    assert harness.request(lambda sink, cancel: ANSWER) == [LlmAborted(1_000, "r1", 1)]
    assert harness.asked == 0


CUT = LlmFailure(ErrorKind.NETWORK, "cut")


@pytest.mark.parametrize(
    ("late", "usage"),
    [
        (ANSWER, ANSWER.usage),
        (ports.ModelAbortedError(), None),
        (ports.ModelAbortedError(Usage(7)), Usage(7)),
        (ports.ModelFailedError(CUT), None),
        (ports.ModelFailedError(CUT, usage=Usage(8)), Usage(8)),
    ],
)
def test_once_cancelled_it_was_aborted_whatever_comes_of_it(
    harness: ToolHarness, late: Any, usage: Usage | None
) -> None:
    def respond(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        cancel.cancel()
        sink.started()
        if isinstance(late, Exception):
            raise late
        assert isinstance(late, ports.ModelAnswer)
        return late

    assert harness.request(respond) == [LlmAborted(1_000, "r1", 1, usage)]


def test_an_unrequested_abort_is_reported_too(harness: ToolHarness) -> None:
    def respond(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        raise ports.ModelAbortedError

    assert harness.request(respond) == [LlmAborted(1_000, "r1", 1)]


class Moments:
    """A clock, and the cancel token of a request that nobody cancels: a wait passes the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return round(self.now * 1000)

    def wait(self, seconds: float) -> bool:
        self.waits.append(round(seconds, 6))
        self.now += seconds
        return False


@pytest.mark.parametrize(
    ("requests", "gap", "waits"),
    [
        (1, 0.0, []),
        (MANY_STREAMS - 1, 0.0, []),
        (MANY_STREAMS, 0.0, [READ_INTERVAL] * 3),
        (MANY_STREAMS, 0.03, [0.07] * 3),
        (1_000, 2 * READ_INTERVAL, []),
    ],
)
def test_reads_are_spaced_while_many_answers_stream_and_the_first_is_not(
    requests: int, gap: float, waits: list[float]
) -> None:
    moments: Any = Moments()
    pace = ReadPace(moments, lambda: requests, moments)
    for _ in range(4):
        moments.now += gap
        pace.wait(text=True)
    assert moments.waits == waits


def test_no_pause_delays_the_first_text_unless_an_answer_has_none() -> None:
    moments: Any = Moments()
    pace = ReadPace(moments, lambda: 1_000, moments)
    for _ in range(OPENING_READS - 1):
        pace.wait(text=False)
    assert not moments.waits
    pace.wait(text=False)
    assert moments.waits == [READ_INTERVAL]


def test_a_cancel_ends_the_pause(services: Services) -> None:
    cancel = ports.CancelToken()
    pace = ReadPace(services.clock, lambda: 1_000, cancel)
    pace.wait(text=True)
    cancel.cancel()
    for _ in range(1_000):
        pace.wait(text=True)  # pauses of 100 s altogether


def test_nothing_is_held_back_during_a_pause(harness: ToolHarness) -> None:
    seen: list[tuple[int, int]] = []

    class Pause:
        def wait(self, *, text: bool) -> None:
            seen.append((len(harness.inbox.messages), harness.window.passed_on))

    def respond(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        sink.text("a")
        sink.flush()
        return ANSWER

    harness.pace = Pause()
    harness.request(respond)
    assert seen == [(1, 1)], "the start and the text"


def test_what_comes_in_one_piece_is_sent_in_one_piece_at_the_flush_or_the_end(harness: ToolHarness) -> None:
    sent: list[tuple[int, int]] = []

    def respond(sink: ports.ModelSink, cancel: ports.CancelToken) -> ports.ModelAnswer:
        sink.started()
        sink.text("a")
        sink.text("b")
        sent.append((len(harness.inbox.messages), harness.window.passed_on))
        sink.flush()
        sent.append((len(harness.inbox.messages), harness.window.passed_on))
        sink.text("c")
        return ANSWER

    harness.request(respond)
    assert sent == [(0, 0), (1, 2)]
    assert (len(harness.inbox.messages), harness.window.passed_on) == (2, 3)
