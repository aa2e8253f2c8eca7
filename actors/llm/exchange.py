"""One attempt of one request: send, read, and say how it ended. Shared by both protocols."""

from __future__ import annotations

import logging
import time
import traceback

from actors.core.errors import ErrorKind, LlmFailure
from actors.llm import failures
from actors.llm.answer import AnswerReader
from actors.llm.connections import TransportFailed
from actors.llm.http import Reply, Transport
from actors.llm.provider import ProviderConfig
from actors.llm.sse import SseParser, SseTooLarge
from actors.ports import CancelToken, ModelAborted, ModelAnswer, ModelFailed, ModelSink

log = logging.getLogger(__name__)

#: Seconds to wait for what may follow a complete answer: its usage, "[DONE]", the close.
TAIL_SECONDS = 5.0


class Exchange:
    """Asks one provider. Any thread; keeps nothing between requests."""

    def __init__(self, provider: ProviderConfig, transport: Transport) -> None:
        self._provider = provider
        self._transport = transport

    def ask(self, path: str, body: bytes, reader: AnswerReader, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        """POST `body` and read the answer with `reader`.

        Raises ModelFailed or ModelAborted and nothing else. Whether it was aborted is told by the token alone:
        what a shut socket raises looks like a network error. No exception is chained, since the chain would hold the
        request with its credentials.
        """
        if cancel.cancelled:
            raise ModelAborted
        answer, failure = self._attempt(path, body, reader, sink, cancel)
        if cancel.cancelled:
            raise ModelAborted
        if answer is None:
            raise failure or ModelFailed(LlmFailure(ErrorKind.UNKNOWN, "no outcome"))
        return answer

    def _attempt(
        self, path: str, body: bytes, reader: AnswerReader, sink: ModelSink, cancel: CancelToken
    ) -> tuple[ModelAnswer | None, ModelFailed | None]:
        url, headers = self._provider.url(path), self._provider.request_headers()
        try:
            with self._transport.post(url, headers, body, cancel) as reply:
                self._read(reply, reader, sink, cancel)
            return reader.answer(), None
        except ModelFailed as failed:
            return None, failed
        except TransportFailed as failed:
            return None, ModelFailed(LlmFailure(failed.kind, f"{self._provider.name}: {failed.text}"))
        except Exception as fault:  # noqa: BLE001 - `respond` promises that nothing else leaves it
            return None, _unexpected(fault)

    def _read(self, reply: Reply, reader: AnswerReader, sink: ModelSink, cancel: CancelToken) -> None:
        if not 200 <= reply.status < 300:
            body = _error_body(reply)
            raise failures.refusal_of(self._provider, reply.status, reply.headers, body, time.time())
        if "json" in reply.headers.get("content-type", "").lower():
            reader.whole(reply.read_all())
            return
        parser = SseParser()
        begun = False
        try:
            while not (reader.finished or cancel.cancelled):
                chunk = reply.read()
                if not chunk:
                    return
                for event in parser.feed(chunk):
                    if not begun:
                        begun = True
                        sink.started()
                    reader.event(event)
                if reader.complete:
                    reply.idle = TAIL_SECONDS
        except SseTooLarge as error:
            raise failures.broken_off(self._provider, f"the answer contains {error}") from None
        except TransportFailed:
            if not reader.complete:
                raise


def _error_body(reply: Reply) -> bytes:
    """What there is of an error's text; its status counts even if the text breaks off."""
    reply.idle = min(reply.idle, TAIL_SECONDS)
    try:
        return reply.read_all(failures.MAX_ERROR_BYTES)
    except TransportFailed:
        return b""


def _unexpected(fault: Exception) -> ModelFailed:
    """A bug of ours. Its text may hold anything, so only type and place are told."""
    place = traceback.extract_tb(fault.__traceback__)[-1]
    log.error("model adapter failed: %s at %s:%s", type(fault).__name__, place.name, place.lineno)
    return ModelFailed(LlmFailure(ErrorKind.UNKNOWN, f"unexpected fault in the model adapter: {type(fault).__name__}"))
