"""Gets API keys from a command that prints them. A key is cached until the provider refuses it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress

from msgspec.structs import replace

from actors.adapters.llm.provider import NO_KEY, ProviderConfig, Secret, is_key
from actors.common.machine import exhausted_resource, resource_failure
from actors.core.errors import ErrorKind, LlmFailure
from actors.ports import CancelToken, ModelAbortedError, ModelFailedError

# Seconds that an `api_key_command` may take. This is long, because a person may have to unlock a password store.
COMMAND_SECONDS = 60.0
# Maximum bytes that an `api_key_command` may print. Longer output is an error, since it cannot be a key.
_MAX_KEY = 16 << 10


class ApiKeys:
    """Keeps the API key of one provider. Any thread.

    The first that needs a key runs the `api_key_command`; concurrent callers wait.
    """

    def __init__(self, provider: ProviderConfig) -> None:
        self._provider = provider
        # Guards all fields below. Notified when the command ends and when a waiting caller is cancelled.
        self._changed = threading.Condition()
        self._key: Secret | None = None
        self._running = False
        self._failures = 0
        self._failure: str | LlmFailure = ""

    def with_key(self, cancel: CancelToken) -> ProviderConfig:
        """The provider's configuration with its key. Blocks while the `api_key_command` runs, but not after a cancel.

        No error contains the command's output. Raises ModelFailedError (AUTH, or a lack of resources) or
        ModelAbortedError.
        """
        if not self._provider.api_key_command:
            return self._provider
        cancel.on_cancel(self._wake)
        try:
            return replace(self._provider, api_key=self._obtain(cancel))
        finally:
            cancel.forget(self._wake)

    def renew(self, refused: Secret, cancel: CancelToken) -> bool:
        """Whether there is another key than `refused`; may run the command. False if that fails, or on a cancel."""
        if not self._provider.api_key_command:
            return False
        with self._changed:
            if self._key == refused:
                self._key = None
        try:
            return self.with_key(cancel).api_key != refused
        except (ModelFailedError, ModelAbortedError):
            return False  # the caller reports the provider's refusal, which explains more

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _obtain(self, cancel: CancelToken) -> Secret:
        with self._changed:
            failures = self._failures
            while self._running and not cancel.cancelled:
                self._changed.wait()
            if cancel.cancelled:
                raise ModelAbortedError
            if self._key is not None:
                return self._key
            if self._failures != failures:
                # All callers that waited get the same failure: if each of them ran the broken command, it would take
                # minutes.
                raise self._failed(self._failure)
            self._running = True
        key: Secret = Secret()
        failure: str | LlmFailure = "could not be run"
        try:
            key, failure = _run(self._provider.api_key_command, cancel)
        finally:
            with self._changed:
                self._running = False
                if key:
                    self._key = key
                elif not cancel.cancelled:
                    self._failures += 1
                    self._failure = failure
                self._changed.notify_all()
        if cancel.cancelled:
            raise ModelAbortedError
        if not key:
            raise self._failed(failure)
        return key

    def _failed(self, text: str | LlmFailure) -> ModelFailedError:
        if isinstance(text, LlmFailure):
            return ModelFailedError(text)
        name = self._provider.name
        return ModelFailedError(
            LlmFailure(ErrorKind.AUTH, f"Authentication failed at {name}: its api_key_command {text}.")
        )


def _run(command: tuple[str, ...], cancel: CancelToken) -> tuple[Secret, str | LlmFailure]:
    """The key and "", or an empty secret and why: a text if the command failed, an LlmFailure without resources."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        if text := exhausted_resource(error):
            return Secret(), resource_failure(text)
        return Secret(), "cannot be started; check that its program exists, by its full path or on PATH"

    def kill() -> None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    overdue = threading.Event()

    def expire() -> None:
        overdue.set()
        kill()

    late = threading.Timer(COMMAND_SECONDS, expire)
    late.daemon = True
    with process:
        cancel.on_cancel(kill)
        try:
            late.start()
            assert process.stdout is not None  # noqa: S101 - set by stdout=PIPE
            printed = process.stdout.read(_MAX_KEY + 1)
            if len(printed) > _MAX_KEY:
                return Secret(), "printed more than a key can hold"
            process.wait()
        finally:
            late.cancel()
            cancel.forget(kill)
            kill()
    if overdue.is_set():
        return Secret(), f"took longer than {COMMAND_SECONDS:g} s"
    if process.returncode:
        return Secret(), f"ended with exit code {process.returncode}"
    key = printed.decode("utf-8", "replace").strip()
    if key and not is_key(key):
        return Secret(), f"printed a key that {NO_KEY}"
    return Secret(key), "" if key else "printed nothing"
