"""The program `bedrock`: chat, ask and look after conversations in a terminal.

Needs the extra `cli` of the client's distribution. Commands that belong to the server (`serve`, …) come from its own
distribution, by the entry point group "bedrock.commands".
"""

import os
import sys

from bedrock import _interrupts
from bedrock.cli import streams


def main() -> None:
    """Run the program with the arguments of the process. Always ends with SystemExit."""
    _interrupts.end_at_once()
    # What gRPC logs about lost connections is said better by us.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    streams.prepare()
    try:
        import click  # noqa: F401, PLC0415 -- an extra, and the package is imported without it
    except ImportError:
        sys.exit("bedrock needs some libraries for the terminal; from a checkout: pip install './clients[cli]'")
    from bedrock.cli.app import bedrock  # noqa: PLC0415
    from bedrock.cli.text import safe_streams  # noqa: PLC0415

    safe_streams.install()  # for good: a traceback is printed after everything else
    try:
        bedrock.main(prog_name="bedrock")
    finally:
        _interrupts.end_at_once()
