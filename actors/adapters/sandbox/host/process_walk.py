"""Finds, kills and reaps the processes of a tree, from the kernel's records in /proc."""

import os
import time
from contextlib import suppress

from actors.adapters.sandbox.host import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
else:
    import _signal as signal

# Seconds after which the host reports that processes may still be running; it then continues to kill them.
CLEAR_SECONDS = 3.0

# Minimum seconds between a kill and the next search for remaining processes.
PASS_SECONDS = 0.005

SNAPSHOT = 128


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # the process or one of its threads has ended; the caller inspects again
        for task in os.listdir(f"/proc/{pid}/task"):
            found.extend(map(int, kernel.contents(f"/proc/{pid}/task/{task}/children").split()))
    return found


def alive(pid: int) -> bool:
    try:
        return kernel.contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return False


def walk(root: int) -> "Iterator[int]":
    """Yield the living processes below `root`, parents first, each as soon as its own children are known.

    If each process is killed when it is yielded, a fork bomb is stopped at its source.
    """
    seen = children(root)
    for pid in seen:
        seen.extend(children(pid))
        if alive(pid):
            yield pid


def descendants(root: int) -> list[int]:
    return list(walk(root))


def below(root: int, most: int) -> list[int]:
    """The processes below `root`, including zombies, parents first; the search stops once `most` or more are found."""
    seen = children(root)
    for pid in seen:
        if len(seen) >= most:
            break
        seen.extend(children(pid))
    return seen


def snapshot(root: int) -> list[int]:
    """At most SNAPSHOT of the processes below `root` that will be killed; a fork bomb grows during a long search."""
    seen = below(root, SNAPSHOT)
    return seen[:SNAPSHOT] if len(seen) >= SNAPSHOT else [pid for pid in seen if alive(pid)]


def send_signal(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def reap() -> "Iterator[tuple[int, int]]":
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def childless() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def clear(killed: "set[int] | None", seconds: float) -> bool:
    """Kill and reap all descendants of this process until no child is left; False after `seconds`.

    Killed pids are added to `killed`; None allows a faster search. Processes created during a search are found by the
    next one, because orphans become children of this process (subreaper).
    """
    began = time.monotonic()
    deadline = began + seconds
    if reap_until(began):
        return True
    while True:
        began = time.monotonic()
        if killed is None:
            kill_all(descendants_unseen(os.getpid()))
        else:
            kill_all(noted(walk(os.getpid()), killed))
        now = time.monotonic()
        if reap_until(now + max(PASS_SECONDS, now - began)):
            return True
        if now > deadline:
            return False


def reap_until(deadline: float) -> bool:
    """Reap until no child is left or the deadline has passed.

    Does not search for further processes, because a search would slow down those that are exiting.
    """
    while True:
        for _ in reap():
            pass
        if childless():
            return True
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        signal.sigtimedwait({signal.SIGCHLD}, left)


def descendants_unseen(root: int) -> "Iterator[int]":
    """Yield the processes below `root`, including zombies, parents first.

    Looks only at main threads, so the children of other threads are found only once they are orphans.
    """
    seen = [root]
    for pid in seen:
        with suppress(OSError):  # the process has ended
            seen.extend(map(int, kernel.contents(f"/proc/{pid}/task/{pid}/children").split()))
        if pid != root:
            yield pid


def noted(pids: "Iterator[int]", killed: "set[int]") -> "Iterator[int]":
    for pid in pids:
        killed.add(pid)
        yield pid


def kill_all(pids: "Iterator[int]") -> None:
    """Kill each process, and its process group unless that is ours, so that no group's member can escape by forking."""
    groups = {os.getpgrp()}
    for pid in pids:
        with suppress(OSError):  # the process has ended
            group = os.getpgid(pid)
            if group not in groups:
                groups.add(group)
                os.killpg(group, signal.SIGKILL)
        send_signal(pid, signal.SIGKILL)
