# Generated from clients/bedrock/_async/run.py by `make client-sync`; edit that file.
"""`Run`: the run that a message starts, from sending the message to the agent's answer."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress

from bedrock import v1
from bedrock._shared import requests
from bedrock._shared.cursor import EventCursor
from bedrock._shared.deadline import Deadline
from bedrock._shared.run_progress import QuestionPolicy
from bedrock._sync.client_tools import ClientTools
from bedrock._sync.sending import Sending, Sent
from bedrock._sync.subscription import RunWatch
from bedrock._sync.transport import Transport
from bedrock.answers import Answer, Decide, OnQuestion
from bedrock.errors import BedrockError, DeadlineExceeded, InvalidArgument
from bedrock.events import Event, Stop

__all__ = ["Run"]


class Run(Sending):
    """The run that one message starts or steers: an iterator over events that ends with the run.

    It yields all events of the conversation, including those of an earlier run if the message is a follow-up that waits
    for the end of that run. The iterator survives broken connections and restarts of the server. Ending the loop early
    does not cancel the run.

    The loop gets an approval request, ``event.approval``, before anything answers it. If the approval is still open
    when the next event is read, `on_approval` decides it; without `on_approval` it is denied. The agent reads the
    denial, and a later event shows it, with ``event.decision == "deny"`` and ``event.note``. With `wait_for_others` the
    approval stays open for other clients.

    In the same way, the loop gets a question from a running tool, ``event.question``. If the question is still open
    when the next event is read, `on_question` answers it; without `on_question` it is declined.

    Likewise, the loop gets a call to a tool that was added with `Conversation.tool`. The tool's function answers
    the call when the next event is read.
    """

    def __init__(
        self,
        transport: Transport,
        conversation: str,
        sending: Sent,
        policy: QuestionPolicy[Decide, OnQuestion],
        tools: ClientTools | None = None,
    ) -> None:
        super().__init__(self._events(), sending)
        self._transport = transport
        self._conversation = conversation
        self._policy = policy
        self._tools = tools
        self._cursor: EventCursor | None = None
        self._deadline = Deadline(None)

    def __repr__(self) -> str:
        ended = f" {self.stop.reason}" if self.stop else ""
        return f"<{type(self).__name__} {self.name or f'of {self._conversation}, not begun'}{ended}>"

    @property
    def name(self) -> str:
        """The resource name of the run; empty while the message waits in the queue as a follow-up."""
        return self._progress.run

    @property
    def stop(self) -> Stop | None:
        """How the run ended; None until the iterator has seen the end."""
        return self._progress.stop

    def __next__(self) -> Event:
        try:
            return super().__next__()
        except BedrockError:
            self._items = self._events()  # the caller may continue iterating after an error
            raise

    def wait(self, *, timeout: float | None = None) -> Stop | None:
        """Wait for the end of the run and return how it ended; None if the iterator was closed before the end.

        An approval request is decided by `on_approval`, or denied immediately; a tool's question is answered by
        `on_question`, or declined immediately.

        Args:
            timeout: Seconds to wait; no limit if None. Reaching the limit does not cancel the run, and `wait` may be
                repeated.

        Raises:
            ApprovalNeeded: An earlier run waits for an approval, so this one cannot begin.
            DeadlineExceeded: The run did not end within `timeout`.
        """
        if timeout is not None:
            self._begin_again(Deadline(timeout))
        try:
            for _ in self:
                pass
        except DeadlineExceeded as error:
            if timeout is None:
                raise
            raise DeadlineExceeded(f"the run did not end within {timeout:g} s", code=error.code) from None
        finally:
            self._deadline = Deadline(None)
        return self.stop

    def answer(self, *, timeout: float | None = None) -> Answer:
        """Wait for the end of the run as `wait` does, and return the agent's last text.

        Raises:
            RunFailed: The run ended in an error.
            RunInterrupted: The run was cancelled or cut short.
            ApprovalNeeded, DeadlineExceeded: As for `wait`.
        """
        self.wait(timeout=timeout)
        return self._progress.outcome()

    def _begin_again(self, deadline: Deadline) -> None:
        self.close()
        self._deadline = deadline
        self._items = self._events()

    def _events(self) -> Generator[Event]:
        self._sent()
        if self._cursor is None:
            self._cursor = EventCursor(self._conversation, self._revision)
        if self._progress.stop:
            return
        watch = RunWatch(self._transport, self._cursor, self._progress, self._policy, self._deadline, tools=self._tools)
        yield from watch.events()


@contextmanager
def question(
    transport: Transport,
    request: v1.SendMessageRequest,
    policy: QuestionPolicy[Decide, OnQuestion],
    deadline: Deadline,
    tools: ClientTools | None = None,
    *,
    new: bool = False,
) -> Generator[Run]:
    """Send a message and yield its run, which is cancelled if an exception ends the block or the sending.

    A BedrockError does not cancel the run, except at the deadline: the run has ended already, or continues on the
    server. With `new`, the conversation was created for this message, and is deleted if the message is invalid.
    """
    run: Run | None = None
    timeout = deadline.shorten(transport.timeout)
    try:
        run = send(transport, request, policy, timeout, tools)
        with run:
            yield run
    except BedrockError as error:
        if isinstance(error, DeadlineExceeded) and deadline.seconds is not None:
            _cancel(transport, request, run)
            text = f"the run did not answer within {deadline.seconds:g} s and was cancelled"
            raise DeadlineExceeded(text, code=error.code) from None
        if new and isinstance(error, InvalidArgument) and not (run and run.name):
            with suppress(BedrockError):
                delete = v1.DeleteConversationRequest(name=request.name)
                transport.call(transport.conversations.DeleteConversation, delete)
        raise
    except BaseException:
        _cancel(transport, request, run)
        raise


def ask(
    transport: Transport,
    request: v1.SendMessageRequest,
    policy: QuestionPolicy[Decide, OnQuestion],
    deadline: Deadline,
    tools: ClientTools | None = None,
    *,
    new: bool = False,
) -> Answer:
    """Send a message and wait for the answer. The parameters are those of `question`; see `Conversation.ask`."""
    with question(transport, request, policy, deadline, tools, new=new) as run:
        return run.answer(timeout=deadline.left())


def _cancel(transport: Transport, request: v1.SendMessageRequest, run: Run | None) -> None:
    """Cancel the run that a message has started, even if no response has reported the run's name yet."""
    with suppress(BedrockError):
        if run is None or not run.name:  # sending again is idempotent: the same request id yields the same run
            run = send(transport, request, QuestionPolicy(None, None, wait_for_others=False), None)
            run._sent()
        cancel = requests.cancel_abandoned(request.name, run.name)
        transport.call(transport.conversations.CancelConversation, cancel)


def send(
    transport: Transport,
    request: v1.SendMessageRequest,
    policy: QuestionPolicy[Decide, OnQuestion],
    timeout: float | None,
    tools: ClientTools | None = None,
) -> Run:
    """The run of a message, which is sent now. Tools are declared before that."""
    return Run(transport, request.name, _sent(transport, request, timeout, tools), policy, tools)


def _sent(
    transport: Transport, request: v1.SendMessageRequest, timeout: float | None, tools: ClientTools | None
) -> v1.SendMessageResponse:
    if tools is not None:
        tools.declare(timeout)
    return transport.call(transport.conversations.SendMessage, request, timeout)
