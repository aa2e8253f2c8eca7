"""The machine's resources (threads, memory, files, trusted certificates), and how an outage is logged."""

from __future__ import annotations

import errno
import logging
import os
import resource
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from actors.core.errors import ErrorKind, LlmFailure


def run_in_thread(job: Callable[[], object], name: str) -> None:
    """Run `job` on a new daemon thread. Thread-safe. Raises RuntimeError if no thread can be started."""
    threading.Thread(target=job, name=name, daemon=True).start()


_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
# The message of the RuntimeError for a thread that cannot be started; Python has no exception type for this case.
_NO_THREAD = "can't start new thread"
_COUNTED = "/proc/self/fd"
_FOLDERS = (_COUNTED, "/dev/fd")


def exhausted_resource(error: BaseException | None) -> str:
    """The exhausted resource that caused `error`, with its limit, as the beginning of a sentence; or ""."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if text := _lacking(error):
            return text
        error = error.__cause__ or error.__context__
    return ""


def _lacking(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return file_descriptor_limit_text()
    if isinstance(error, OSError) and error.errno == errno.ENFILE:
        return "this machine has reached its limit on open files (fs.file-max)"
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return "this server cannot start any more threads (ulimit -u, or pids.max of its cgroup)"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "this server is out of memory"
    return ""


def resource_failure(text: str) -> LlmFailure:
    """A retryable failure of a model request; `text` comes from `exhausted_resource`."""
    return LlmFailure(ErrorKind.RESOURCE_EXHAUSTED, f"{text[:1].upper()}{text[1:]}. Send a message later to try again.")


def file_descriptor_limit_text() -> str:
    return f"this server has reached its limit of {max_open_files():,} open files (ulimit -n)"


def max_open_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_files() -> int:
    """Count the open file descriptors.

    From Linux 6.2 on, the kernel counts them. Elsewhere a directory is listed, which releases the GIL for each entry
    and needs one more descriptor; if none is left, the limit is returned.
    """
    with suppress(OSError):
        if counted := os.stat(_COUNTED).st_size:
            return counted
    for folder in _FOLDERS:
        try:
            return len(os.listdir(folder))
        except OSError as failed:
            if failed.errno in _NO_FILES:
                return max_open_files()
    return 0


def out_of_file_descriptors() -> bool:
    """Whether no more files can be opened. Some errors do not say so, such as those from SQLite and DNS resolvers."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as failed:
        return failed.errno in _NO_FILES
    return False


log = logging.getLogger(__name__)

# The environment variables that name further authorities: a PEM file, or a directory of PEM files with hashed names.
VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")

# Where distributions keep the system's CA certificates. A Python that was built elsewhere may not look there.
SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)  # fmt: skip


def client_tls() -> ssl.SSLContext:
    """A TLS context that trusts the authorities from certifi, the system, and VARIABLES. Thread-safe.

    It takes some 20 ms to read the files. A variable whose authorities cannot be read is logged and ignored. Raises
    OSError if this process lacks a resource.
    """
    import certifi  # noqa: PLC0415 -- only for a TLS connection

    context = ssl.create_default_context(cafile=certifi.where())
    places = {place: "the system" for place in SYSTEM_FILES if os.path.isfile(place)}
    for variable in VARIABLES:
        if place := os.environ.get(variable, ""):
            places.setdefault(place, variable)  # several variables often name the same file
    for place, source in places.items():
        _trust(context, place, source)
    return context


def _trust(context: ssl.SSLContext, place: str, source: str) -> None:
    try:
        if os.path.isdir(place):
            context.load_verify_locations(capath=place)
        else:
            context.load_verify_locations(cafile=place)
    except OSError as error:
        if exhausted_resource(error):
            raise
        log.warning("cannot read the certificate authorities of %s, so they are not trusted: %s", source, place)


# The seconds between two log lines about a lasting outage.
REMIND_SECONDS = 60.0
# An outage ends after this many seconds without a failure, so that a short recovery does not end it.
CALM_SECONDS = 5.0


class OutageLog:
    """Logs the beginning and end of an outage as warnings, and reminders as errors. Thread-safe."""

    def __init__(self, log: logging.Logger, over: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin without an outage. `over` is the text that is logged when an outage ends."""
        self._log = log
        self._over = over
        self._monotonic = monotonic
        self._guard = threading.Lock()  # guards the fields below
        self._began: float | None = None
        self._logged_at = 0.0
        self._last = 0.0
        self._worked: float | None = None
        self._failures = 0

    @property
    def seconds(self) -> float:
        """How many seconds the outage has lasted; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else self._monotonic() - began

    @property
    def due(self) -> bool:
        """Whether the next failure would be logged."""
        return self._began is None or self._monotonic() - self._logged_at >= REMIND_SECONDS

    def failed(self, why: str) -> None:
        """Count a failure. Log the first failure of an outage, and after that at most one failure a minute."""
        with self._guard:
            now = self._monotonic()
            if self._began is not None and self._worked is not None and now - self._last >= CALM_SECONDS:
                self._end(self._began, self._worked)
            self._failures += 1
            self._last, self._worked = now, None
            if self._began is None:
                self._began = self._logged_at = now
                self._log.warning("%s", why)
            elif now - self._logged_at >= REMIND_SECONDS:
                self._logged_at = now
                self._log.error("%s", why, extra=self._so_far(self._began, now))

    def worked(self) -> None:
        """Note a success; log the end of the outage if the last failure was at least CALM_SECONDS ago."""
        if self._began is None:
            return
        with self._guard:
            if self._began is None:
                return
            now = self._monotonic()
            if self._worked is None:
                self._worked = now
            if now - self._last >= CALM_SECONDS:
                self._end(self._began, self._worked)

    def _so_far(self, began: float, until: float) -> dict[str, object]:
        return {"outage_seconds": round(until - began, 1), "failures": self._failures}

    def _end(self, began: float, until: float) -> None:
        self._log.warning("%s", self._over, extra=self._so_far(began, until))
        self._began, self._worked, self._failures = None, None, 0
