"""The questions that one tool call asks people.

Each question is reported to the conversation as an event; the answer comes back as the effect AnswerTool.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from actors.core.events import AskQuestion, QuestionOver
from actors.core.states import QuestionStatus
from actors.ports import PersonAnswer, PersonQuestion, TooManyQuestionsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.core.effects import ExecuteTool
    from actors.core.events import Event
    from actors.ports import Clock

MAX_OPEN = 4
"""The maximum number of questions of one tool call that wait for their answers at the same time."""

MAX_PER_CALL = 16
"""The maximum number of questions that one tool call may ask in all."""

WITHDRAWN = PersonAnswer(QuestionStatus.WITHDRAWN)


class OpenQuestions:
    """The questions of one tool call. Safe to use from any thread; never blocks.

    Every question ends: by `settle`, by `close`, or because the tool cancels it.
    """

    def __init__(self, call: ExecuteTool, clock: Clock, report: Callable[[Event], None]) -> None:
        """Begin without questions. `report` sends an event to the conversation."""
        self._call = call
        self._clock = clock
        self._report = report
        self._lock = threading.Lock()  # held while reporting, so that questions arrive in the order of their numbers
        self._waiting: dict[int, Future[PersonAnswer]] = {}
        self._asked = 0
        self._closed = False

    def ask(self, question: PersonQuestion) -> Future[PersonAnswer]:
        """Ask a person. The tool can cancel the future to withdraw the question. Raises TooManyQuestionsError."""
        future: Future[PersonAnswer] = Future()
        with self._lock:
            if self._closed:
                future.set_result(WITHDRAWN)
                return future
            if self._asked == MAX_PER_CALL:
                raise TooManyQuestionsError(f"a call can ask {MAX_PER_CALL} questions at most")
            if len(self._waiting) == MAX_OPEN:
                raise TooManyQuestionsError(f"{MAX_OPEN} questions of this call wait already")
            self._asked += 1
            place = self._asked
            self._waiting[place] = future
            self._report(
                AskQuestion(
                    self._clock.now_ms(), self._call.tool_use_id, self._call.execution_id, place, question.asker,
                    question.message, question.timeout_ms, question.schema, question.url,
                )
            )  # fmt: skip
        future.add_done_callback(lambda done: self._drop(place) if done.cancelled() else None)
        return future

    def settle(self, place: int, answer: PersonAnswer) -> None:
        """Answer the question with the number `place`; ignored if the question has ended."""
        with self._lock:
            future = self._waiting.pop(place, None)
        if future is not None:
            _resolve(future, answer)

    def close(self) -> None:
        """End all questions, because the call ends. Idempotent."""
        with self._lock:
            self._closed = True
            futures = list(self._waiting.values())
            self._waiting.clear()
        for future in futures:
            _resolve(future, WITHDRAWN)

    def _drop(self, place: int) -> None:
        """Report to the conversation that the tool has withdrawn the question with the number `place`."""
        with self._lock:
            if self._waiting.pop(place, None) is None:
                return
            identity = self._call.tool_use_id, self._call.execution_id, place
            self._report(QuestionOver(self._clock.now_ms(), *identity, timed_out=False))


def _resolve(future: Future[PersonAnswer], answer: PersonAnswer) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(answer)
