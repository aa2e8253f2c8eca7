"""The program `bedrock`: chat, ask questions and manage conversations in a terminal.

Commands that belong to the server (`serve`, …) come from the server's own package, through the entry point group
"bedrock.commands".
"""

import os

from bedrock import _interrupts
from bedrock.cli import stdio as streams


def main() -> None:
    _interrupts.end_at_once()
    # Suppresses gRPC's messages about lost connections: the program prints its own.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    streams.prepare()
    from bedrock.cli.app import bedrock  # noqa: PLC0415
    from bedrock.cli.text import safe_text  # noqa: PLC0415

    safe_text.install()  # until the process ends: even a final traceback may contain control characters
    try:
        bedrock.main(prog_name="bedrock")
    finally:
        _interrupts.end_at_once()
