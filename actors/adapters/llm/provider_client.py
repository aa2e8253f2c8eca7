"""Performs one attempt at a model request: sends it, reads the answer, and classifies the outcome.

All wire protocols use this module. The API key comes from the settings, or from a command that prints it.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import select
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from actors.adapters.llm import provider_errors
from actors.adapters.llm.protocols.answer_builder import AnswerReader, PreparedRequest
from actors.adapters.llm.protocols.decoding import (
    MAX_EVENT_BYTES,
    SseEvent,
    SseParser,
    SseTooLargeError,
    join_halves,
    mark_halves,
    open_half,
)
from actors.adapters.llm.protocols.encoding import Joint, comma
from actors.adapters.llm.provider import NO_KEY, ProviderConfig, Secret, is_key
from actors.adapters.llm.transport.connections import (
    LocalResourcesExhaustedError,
    TransportError,
    TransportTimeoutError,
)
from actors.common.machine import exhausted_resource, resource_failure
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.history import Turn
from actors.ports import CancelToken, ModelAbortedError, ModelAnswer, ModelFailedError, ModelSink

if TYPE_CHECKING:
    from actors.adapters.llm.transport.http import Reply, Transport

log = logging.getLogger(__name__)

# Seconds to wait after a complete answer for its token usage, "[DONE]" and the end of the stream.
TAIL_SECONDS = 5.0

_JSON_LINES = re.compile("ndjson|jsonl")


class KeyRefusedError(ModelFailedError):
    def __init__(self, failure: LlmFailure, key: Secret) -> None:
        super().__init__(failure)
        self.key = key


class WireProtocol(Struct, frozen=True):
    path: str
    turn_of: Callable[[Turn, PreparedRequest], bytes]
    """Encodes a turn; returns b"" for a turn that cannot be sent."""
    body_of: Callable[[PreparedRequest, Sequence[bytearray]], bytes]
    """Returns a request's body, given its encoded turns in pieces, so that a long history is copied only once."""
    reader: Callable[[PreparedRequest, ModelSink], AnswerReader]
    joint: Joint = comma


class GatheredText:
    """A ModelSink that joins texts that arrived together before it passes them on to another sink.

    Reasoning is never joined with the answer. Halves of surrogate pairs are joined; see `mark_halves`.
    """

    def __init__(self, sink: ModelSink) -> None:
        self.started = sink.started
        self.flush = sink.flush
        self._sink = sink
        self._texts: list[str] = []
        self._reasoning = False

    def text(self, text: str, *, reasoning: bool = False) -> None:
        """Gather text until `pass_on` is called, or until the kind of text changes."""
        if reasoning is not self._reasoning:
            self.pass_on(ended=True)
            self._reasoning = reasoning
        self._texts.append(text)

    def pass_on(self, *, ended: bool = False) -> None:
        """Pass on the gathered text.

        If the text ends with the first half of a surrogate pair, that half is kept until the other one arrives, unless
        the text has `ended`.
        """
        text = "".join(self._texts)
        end = len(text) if ended else len(text) - open_half(text)
        self._texts = [text[end:]] if text[end:] else []
        if end:
            self._sink.text(join_halves(text[:end]), reasoning=self._reasoning)


class ProviderClient:
    """Sends requests to one provider. Thread-safe. Keeps idle connections and the API key."""

    def __init__(self, provider: ProviderConfig) -> None:
        self.provider = provider
        self.keys = ApiKeys(provider)

    @functools.cached_property
    def transport(self) -> Transport:
        """The object that sends requests. Raises TransportError for an unusable setting."""
        from actors.adapters.llm.transport.http import Transport  # noqa: PLC0415 -- 13 MB that a start does not need

        return Transport(self.provider)

    def close(self) -> None:
        if "transport" in self.__dict__:
            self.transport.close()

    def request(
        self, protocol: WireProtocol, prepared: PreparedRequest, body: bytes, sink: ModelSink, cancel: CancelToken
    ) -> ModelAnswer:
        """POST `body` and return the answer; try once more if the key is refused and `api_key_command` prints another.

        Errors after a cancel look like a broken network, so the cancel token decides which of the two it was.
        Exceptions are not chained, because a chain would keep the request and credentials in memory. Raises only
        ModelFailedError or ModelAbortedError.
        """
        if cancel.cancelled:
            raise ModelAbortedError
        readers: list[AnswerReader] = []
        answer, failure = self._attempt(protocol, prepared, body, sink, cancel, readers=readers)
        if isinstance(failure, KeyRefusedError) and self.keys.renew(failure.key, cancel):
            answer, failure = self._attempt(protocol, prepared, body, sink, cancel, readers=readers)
        if cancel.cancelled:
            raise ModelAbortedError(readers[-1].cut_off_usage if readers else None)
        if answer is None:
            raise failure or ModelFailedError(LlmFailure(ErrorKind.UNKNOWN, "no outcome"))
        return answer

    def _attempt(
        self,
        protocol: WireProtocol,
        prepared: PreparedRequest,
        body: bytes,
        sink: ModelSink,
        cancel: CancelToken,
        *,
        readers: list[AnswerReader],
    ) -> tuple[ModelAnswer | None, ModelFailedError | None]:
        """Try once; return the answer, the failure, or neither if cancelled.

        The answer's reader is appended to `readers`, so that the caller can count tokens.
        """
        reader = None
        try:
            provider = self.keys.with_key(cancel)
            reader = protocol.reader(replace(prepared, provider=provider), gathered := GatheredText(sink))
            readers.append(reader)
            with self.transport.post(provider.url(protocol.path), provider.request_headers(), body, cancel) as reply:
                self._read(provider, reply, reader, gathered, cancel)
            return reader.answer(), None
        except ModelFailedError as failed:
            return None, failed
        except ModelAbortedError:
            return None, None  # the request was cancelled while it waited for a key
        except LocalResourcesExhaustedError as error:
            return None, ModelFailedError(resource_failure(error.text))
        except TransportTimeoutError as error:
            return None, provider_errors.timed_out(self.provider, error.text, reader.usage if reader else None)
        except TransportError as error:
            return None, provider_errors.failed_request(
                self.provider, error.kind, error.text, reader.usage if reader else None
            )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return None, provider_errors.malformed_answer(self.provider, error, reader.usage if reader else None)
        except Exception as error:  # noqa: BLE001 -- the port promises that no other exception is raised
            if text := exhausted_resource(error):
                return None, ModelFailedError(resource_failure(text))
            return None, _unexpected(self.provider, error)

    def _read(
        self, provider: ProviderConfig, reply: Reply, reader: AnswerReader, sink: GatheredText, cancel: CancelToken
    ) -> None:
        if not 200 <= reply.status < 300:
            refusal = provider_errors.response_error(
                provider, reply.status, reply.headers, _error_body(reply), time.time()
            )
            raise KeyRefusedError(refusal.failure, provider.api_key) if reply.status == 401 else refusal
        try:
            _read_answer(provider, reply, reader, sink, cancel)
        except SseTooLargeError as error:
            text = f"the answer contains {error}"
            raise provider_errors.failed_request(provider, ErrorKind.RESPONSE_TOO_LARGE, text, reader.usage) from None
        except TransportError:
            if not reader.complete:
                raise


def _read_answer(
    provider: ProviderConfig, reply: Reply, reader: AnswerReader, sink: GatheredText, cancel: CancelToken
) -> None:
    """Read an answer in the format that its beginning suggests, because many servers state a wrong content type.

    Raises ModelFailedError if it is neither a stream of events nor a JSON body.
    """
    stated = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    begin = b""
    while not begin and (chunk := reply.read()):
        begin = chunk.lstrip(b"\xef\xbb\xbf \t\r\n")  # strips a byte order mark, too
    if begin.startswith(b"<") or _JSON_LINES.search(stated):
        raise provider_errors.wrong_type(provider, stated)
    if begin.startswith((b"{", b"[")) or (not begin and "json" in stated):
        body = begin + reply.read_all(MAX_EVENT_BYTES)
        if len(body) > MAX_EVENT_BYTES:
            raise SseTooLargeError(f"a body of more than {MAX_EVENT_BYTES} bytes")
        reader.whole(mark_halves(body))
        return
    _read_events(provider, reply, reader, sink, cancel, chunk=begin)
    if not reader.size.begun and not cancel.cancelled and stated not in {"", "text/event-stream"}:
        raise provider_errors.wrong_type(provider, stated)


def _read_events(
    provider: ProviderConfig,
    reply: Reply,
    reader: AnswerReader,
    sink: GatheredText,
    cancel: CancelToken,
    *,
    chunk: bytes,
) -> None:
    parser = SseParser()
    begun = False
    while chunk:
        events = parser.feed(chunk)
        if events and not begun:
            begun = True
            sink.started()
        try:
            _process(provider, events, reader, cancel)
        finally:
            sink.pass_on()
        if reader.finished or cancel.cancelled:
            break
        if reader.complete:
            reply.idle = TAIL_SECONDS
        if begun:
            sink.flush()
        chunk = reply.read()
    sink.pass_on(ended=True)


def _process(provider: ProviderConfig, events: list[SseEvent], reader: AnswerReader, cancel: CancelToken) -> None:
    """Process events until the answer is finished or cancelled. Raises ModelFailedError."""
    for event in events:
        if reader.finished or cancel.cancelled:
            return
        reader.size.begun = True
        reader.event(SseEvent(event.name, mark_halves(event.data)) if b"\\u" in event.data else event)
        if excess := reader.size.excess:
            raise provider_errors.too_large(provider, excess, reader.usage)


def _error_body(reply: Reply) -> bytes:
    """The body of an error response; b"" if reading it fails, because the status alone is useful, too."""
    reply.idle = min(reply.idle, TAIL_SECONDS)
    try:
        return reply.read_all(provider_errors.MAX_ERROR_BYTES)
    except TransportError:
        return b""


def _unexpected(provider: ProviderConfig, fault: Exception) -> ModelFailedError:
    """The error for a bug; logs only the bug's type and location, because the exception's text may contain secrets."""
    place = traceback.extract_tb(fault.__traceback__)[-1]
    log.error("model adapter failed: %s at %s:%s", type(fault).__name__, place.name, place.lineno)
    text = f"unexpected error in the model adapter: {type(fault).__name__}"
    return provider_errors.failed_request(provider, ErrorKind.UNKNOWN, text)


# --- the key ----------------------------------------------------------------------------------------------------------


# Seconds that an `api_key_command` may take. This is long, because the user may have to unlock a password store.
COMMAND_SECONDS = 60.0
# Maximum bytes that an `api_key_command` may print. Longer output is an error, since it cannot be a key.
_MAX_KEY = 16 << 10
# Milliseconds between checks of whether the command has exited. The end of its output alone does not show this, because
# programs that the command started may keep the pipe open.
_LOOK_MS = 50


class ApiKeys:
    """Keeps the API key of one provider. Thread-safe.

    The first caller that needs a key runs the `api_key_command`; concurrent callers wait.
    """

    def __init__(self, provider: ProviderConfig) -> None:
        self._provider = provider
        self._lock = threading.Lock()  # guards _run
        self._run: Future[tuple[Secret, str | LlmFailure]] | None = None
        """The command's run that is in progress, or else the run that printed the current key."""

    def with_key(self, cancel: CancelToken) -> ProviderConfig:
        """The provider's configuration with its key. Blocks while the `api_key_command` runs, but not after a cancel.

        Raises ModelFailedError (AUTH, or a lack of resources) or ModelAbortedError; neither contains the command's
        output.
        """
        if not self._provider.api_key_command:
            return self._provider
        return replace(self._provider, api_key=self._obtain(cancel))

    def renew(self, refused: Secret, cancel: CancelToken) -> bool:
        """Whether there is a key other than `refused`; may run the command. False after a failure or a cancel."""
        if not self._provider.api_key_command:
            return False
        with self._lock:
            if self._run and self._run.done() and self._run.result()[0] == refused:
                self._run = None
        try:
            return self.with_key(cancel).api_key != refused
        except (ModelFailedError, ModelAbortedError):
            return False  # the caller reports the provider's refusal, which explains more

    def _obtain(self, cancel: CancelToken) -> Secret:
        """The key. Callers that wait for the same run of the command share its failure."""
        while not cancel.cancelled:
            with self._lock:
                run, mine = self._run or Future(), self._run is None
                self._run = run
            if mine:
                self._perform(run, cancel)
            ended = threading.Event()
            run.add_done_callback(lambda _, ended=ended: ended.set())  # type: ignore[misc]
            cancel.on_cancel(ended.set)
            ended.wait()
            cancel.forget(ended.set)
            if run.done() and not run.cancelled() and not cancel.cancelled:
                key, failure = run.result()
                if not key:
                    raise self._failed(failure)
                return key
        raise ModelAbortedError

    def _perform(self, run: Future[tuple[Secret, str | LlmFailure]], cancel: CancelToken) -> None:
        """Run the command; a cancel cancels `run`, so that one of the callers waiting for it begins another run."""
        key: Secret = Secret()
        failure: str | LlmFailure = "could not be run"
        try:
            key, failure = _run(self._provider.api_key_command, cancel)
        finally:
            with self._lock:
                self._run = run if key else None
            if key or not cancel.cancelled:
                run.set_result((key, failure))
            else:
                run.cancel()

    def _failed(self, text: str | LlmFailure) -> ModelFailedError:
        if isinstance(text, LlmFailure):
            return ModelFailedError(text)
        name = self._provider.name
        return ModelFailedError(
            LlmFailure(ErrorKind.AUTH, f"Authentication failed at {name}: its api_key_command {text}.")
        )


def _run(command: tuple[str, ...], cancel: CancelToken) -> tuple[Secret, str | LlmFailure]:
    """Run the command; return the key and "", or an empty secret and the reason for the failure.

    The reason is a text if the command failed, an LlmFailure if this machine lacked resources.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        if text := exhausted_resource(error):
            return Secret(), resource_failure(text)
        return Secret(), "cannot be started; check that its program is on PATH or given by its full path"

    def kill() -> None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    begun = time.monotonic()
    late = threading.Timer(COMMAND_SECONDS, kill)
    late.daemon = True
    with process:
        cancel.on_cancel(kill)
        try:
            late.start()
            printed = _printed(process)
            if len(printed) > _MAX_KEY:
                return Secret(), f"printed more than {_MAX_KEY >> 10} KiB, which is too long for a key"
            process.wait()
        finally:
            late.cancel()
            cancel.forget(kill)
            kill()
    if time.monotonic() - begun >= COMMAND_SECONDS:
        return Secret(), f"took longer than {COMMAND_SECONDS:g} s"
    if process.returncode:
        return Secret(), f"failed with exit code {process.returncode}"
    key = printed.decode("utf-8", "replace").strip()
    if key and not is_key(key):
        return Secret(), f"printed a key that {NO_KEY}"
    return Secret(key), "" if key else "printed nothing"


def _printed(process: subprocess.Popen[bytes]) -> bytes:
    """What the program prints until it exits or closes its output; at most _MAX_KEY + 1 bytes."""
    assert process.stdout is not None  # noqa: S101 - set by stdout=PIPE
    os.set_blocking(process.stdout.fileno(), False)
    readable = select.poll()
    readable.register(process.stdout, select.POLLIN)
    printed, over = b"", False
    while not over and len(printed) <= _MAX_KEY:
        readable.poll(_LOOK_MS)
        over = process.poll() is not None
        part = process.stdout.read(_MAX_KEY + 1 - len(printed))  # None if nothing has arrived yet
        over = over or part == b""
        printed += part or b""
    return printed
