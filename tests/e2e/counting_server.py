"""`python -m tests.e2e.counting_server …`: the server, with a counter at each seam where a turn costs something.

The counts are read as JSON over a Unix socket, whose path is in the variable `SOCKET`. The kernel's count of voluntary
context switches is that of the whole process, threads that have ended included.
"""

from __future__ import annotations

import functools
import itertools
import os
import resource
import threading
from typing import TYPE_CHECKING, Any

from server.operating_system import tune_process

tune_process()  # before gRPC is imported

from actors.adapters.llm.protocols import anthropic  # noqa: E402
from actors.adapters.store import rows  # noqa: E402
from actors.adapters.store.sqlite.engine import Readers  # noqa: E402
from actors.adapters.store.sqlite.store import PeeweeStore  # noqa: E402
from actors.adapters.telemetry import observer  # noqa: E402
from actors.runtime.actor import Mailbox  # noqa: E402
from server.cli import serve  # noqa: E402
from tests.support.published_counts import publish  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

SOCKET = "COUNTS_SOCKET"

SEAMS: dict[str, tuple[Any, str]] = {
    "commits": (PeeweeStore, "commit"),
    "threads started": (threading.Thread, "start"),
    "mailbox deliveries": (Mailbox, "_add"),
    "reads": (Readers, "lend"),
    "messages read": (rows, "message_of"),
    "blocks encoded": (anthropic, "_block"),
    "log lines": (observer, "_log"),
}
"""By count: the class or module and its function whose calls are counted."""


def counted(owner: Any, name: str) -> Callable[[], int]:
    """Count the calls of a function, on any thread; return what reads the count. Each reading counts as well."""
    calls, readings = itertools.count(), itertools.count()
    method = getattr(owner, name)

    @functools.wraps(method)
    def counting(*arguments: Any, **options: Any) -> Any:
        next(calls)
        return method(*arguments, **options)

    setattr(owner, name, counting)
    return lambda: next(calls) - next(readings)


def main() -> None:
    counts = {name: counted(*seam) for name, seam in SEAMS.items()}
    counts["voluntary switches"] = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    publish(os.environ[SOCKET], lambda: {name: count() for name, count in counts.items()})
    serve(prog_name="python -m server")


if __name__ == "__main__":
    main()
