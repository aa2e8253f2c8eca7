"""Detects that this process has run out of a resource: file descriptors, threads or memory."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

from actors.core.errors import ErrorKind, LlmFailure

_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_NO_THREAD = "can't start new thread"
"""The text of the RuntimeError for a thread that cannot be started; Python has no exception type for this case."""
_COUNTED = "/proc/self/fd"
_FOLDERS = (_COUNTED, "/dev/fd")


def exhausted_resource(error: BaseException | None) -> str:
    """Describe the resource whose exhaustion caused `error` or an error in its chain of causes; "" for other errors.

    The text is the beginning of a sentence, names the limit and has no period.
    """
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
        return "this machine has as many files open as it can (fs.file-max)"
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return "this server can start no more threads (ulimit -u, or pids.max of its cgroup)"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "this server has no memory left"
    return ""


def resource_failure(text: str) -> LlmFailure:
    """Return the failure of a model request for which this server lacked a resource; the failure is retryable.

    `text` comes from `exhausted_resource`.
    """
    return LlmFailure(ErrorKind.RESOURCE_EXHAUSTED, f"{text[:1].upper()}{text[1:]}. Send a message later to try again.")


def file_descriptor_limit_text() -> str:
    """Return the error text for a process that has no file descriptor left; the text contains the limit."""
    return f"this server has as many files open as it may, {max_open_files():,} (ulimit -n)"


def max_open_files() -> int:
    """Return the limit of open file descriptors of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_files() -> int:
    """Count the open file descriptors of this process.

    From Linux 6.2 on, the kernel counts them. Elsewhere this function lists a directory, which releases the GIL for
    each entry and needs one more descriptor; if no descriptor is left, the function returns the limit.
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
    """Return whether file descriptors are exhausted, by trying to open a file.

    Useful after errors that do not contain their cause, such as those of SQLite and of the DNS resolver.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as failed:
        return failed.errno in _NO_FILES
    return False
