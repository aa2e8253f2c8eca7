"""Keeps the bash jobs of all conversations, in memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from actors.adapters.tools.bash.job import Job, on_one_line
from actors.adapters.tools.refusal import ToolRefusedError
from actors.core.context import Mode, wider

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.core.tool_run import KillReceipt
    from actors.ports import Clock

MAX_LIVE = 8
"""Maximum number of running jobs of one conversation."""

MAX_ENDED = 16
"""Maximum number of ended jobs of one conversation whose output is kept."""


class ConversationJobs:
    """The jobs of one conversation. The caller holds the registry's lock."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._numbers = 0

    @property
    def live(self) -> list[Job]:
        """Return the jobs that have not ended."""
        return [job for job in self.jobs.values() if job.end is None]

    def open(self, command: str, tool_use_id: str, mode: Mode, clock: Clock) -> Job:
        """Create a job with the next handle: b-1, b-2, and so on."""
        self._numbers += 1
        job = Job(f"b-{self._numbers}", command, tool_use_id, mode, clock)
        self.jobs[job.handle] = job
        return job

    def drop_oldest_ended(self) -> None:
        """Drop ended jobs beyond MAX_ENDED, oldest first."""
        ended = [job for job in self.jobs.values() if job.end is not None]
        for job in ended[: max(0, len(ended) - MAX_ENDED)]:
            del self.jobs[job.handle]


class JobRegistry:
    """Finds jobs by conversation and handle; jobs are kept in memory only.

    Safe to call from any thread; never blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the jobs of all conversations; not held while jobs are killed
        self._conversations: dict[str, ConversationJobs] = {}

    def open(self, conversation_id: str, command: str, tool_use_id: str, mode: Mode, clock: Clock) -> Job:
        """Create a job, not yet started; `drop` removes it. Raises ToolRefusedError if too many jobs are running."""
        with self._lock:
            jobs_here = self._conversations.setdefault(conversation_id, ConversationJobs())
            if len(live := jobs_here.live) >= MAX_LIVE:
                raise _too_many(live)
            jobs_here.drop_oldest_ended()
            return jobs_here.open(command, tool_use_id, mode, clock)

    def drop(self, conversation_id: str, job: Job) -> None:
        """Remove a job that has ended, or never started."""
        with self._lock:
            if jobs_here := self._conversations.get(conversation_id):
                jobs_here.jobs.pop(job.handle, None)

    def find(self, conversation_id: str, handle: str) -> Job:
        """Return the job with this handle. Raises ToolRefusedError if this conversation has none."""
        with self._lock:
            jobs_here = self._conversations.get(conversation_id)
            job = jobs_here.jobs.get(handle) if jobs_here else None
            if job is not None:
                return job
            known = [job.handle for job in jobs_here.jobs.values() if job.background] if jobs_here else []
        raise _not_found(handle, known)

    def running(self, conversation_id: str, wider_than: Mode | None = None) -> list[Job]:
        """Return the running jobs that outlived the call that started them, oldest first.

        With `wider_than`, return only jobs whose permission mode is wider than `wider_than`.
        """
        with self._lock:
            jobs_here = self._conversations.get(conversation_id)
            jobs = [job for job in jobs_here.live if job.background] if jobs_here else []
        return [job for job in jobs if wider_than is None or wider(job.mode, wider_than)]

    def end_all(
        self, conversation_id: str, ended: Callable[[KillReceipt], None], wider_than: Mode | None = None
    ) -> tuple[str, ...]:
        """Kill the jobs that `running` returns, without waiting; return the handles of those that had not ended.

        When one of these jobs has ended, `ended` is called with a report of the kill, on the job's thread.
        """
        return tuple(job.handle for job in self.running(conversation_id, wider_than) if job.kill(ended))

    def forget(self, conversation_id: str) -> None:
        """Kill all jobs of a conversation, including those that are being started, and remove them."""
        with self._lock:
            jobs_here = self._conversations.pop(conversation_id, None)
        for job in jobs_here.live if jobs_here else ():
            job.kill()


def _too_many(live: list[Job]) -> ToolRefusedError:
    jobs = [
        {
            "handle": job.handle,
            "cmd": on_one_line(job.command),
            "age_seconds": int(job.age_seconds),
            "status": "kill_pending" if job.kill_pending else "running",
        }
        for job in live
    ]
    listed = "\n".join(f"{job['handle']}: {job['status']} for {job['age_seconds']} s: {job['cmd']}" for job in jobs)
    text = (
        f"{len(live)} jobs run already, which is the most. Wait for one of them or kill it. Nothing was run.\n{listed}"
    )
    return ToolRefusedError("handle_cap_reached", text, jobs=jobs)


def _not_found(handle: str, known: list[str]) -> ToolRefusedError:
    has = f"The handles here are {', '.join(known)}" if known else "There are no handles here"
    named = on_one_line(handle)
    text = (
        f"This conversation has no job {named!r}. {has}. A handle comes from a `cmd` that still ran when its "
        f"wait was over; jobs and their output are lost when the server restarts, and only the last {MAX_ENDED} ended "
        "jobs are kept."
    )
    return ToolRefusedError("handle_not_found", text, handle=named, handles=known)
