"""What a process may run out of: file descriptors, threads and memory; how to tell, and how much there is."""

from __future__ import annotations

import errno
import os
import resource

from actors.core.errors import ErrorKind, LlmFailure

_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
_NO_THREAD = "can't start new thread"
"""How Python says it; there is no type of its own for this error."""
_FOLDERS = ("/proc/self/fd", "/dev/fd")


def exhausted_resource(error: BaseException | None) -> str:
    """What this process had none left of when `error`, or what led to it, happened; "" if it is about something else.

    The text begins a sentence, names the limit, and has no period.
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
    """Why this server, and not a provider, could not make a request; `text` as of `exhausted_resource`.

    Another attempt may.
    """
    return LlmFailure(ErrorKind.RESOURCE_EXHAUSTED, f"{text[:1].upper()}{text[1:]}. Send a message later to try again.")


def file_descriptor_limit_text() -> str:
    """That there is no file descriptor left, and which limit that is."""
    return f"this server has as many files open as it may, {max_open_files():,} (ulimit -n)"


def max_open_files() -> int:
    """File descriptors that this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def open_files() -> int:
    """File descriptors that this process has, or as many as it may have if not even one is left to count them."""
    for folder in _FOLDERS:
        try:
            return len(os.listdir(folder))
        except OSError as failed:
            if failed.errno in _NO_FILES:
                return max_open_files()
    return 0


def out_of_file_descriptors() -> bool:
    """Whether no file can be opened now: for errors that do not say why something could not be opened."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as failed:
        return failed.errno in _NO_FILES
    return False
