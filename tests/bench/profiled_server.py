"""`python -m tests.bench.profiled_server …`: the server, with profilers.

What they have found is read as JSON over a Unix socket, whose path is in the variable `PROFILE_SOCKET`.
"""

from __future__ import annotations

import os

from server.process.operating_system import tune_process

tune_process()  # before gRPC is imported

from server.cli import serve  # noqa: E402
from tests.bench.profilers import Profilers  # noqa: E402
from tests.support.published_counts import publish  # noqa: E402

SOCKET = "PROFILE_SOCKET"


def main() -> None:
    publish(os.environ[SOCKET], Profilers().counts)
    serve(prog_name="python -m server")


if __name__ == "__main__":
    main()
