"""The environment variables of a tool's process: an allowlist of the server's variables, without secrets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONDONTWRITEBYTECODE")
"""Variables that are passed on if they are set, in addition to LC_*."""


def tool_environment(server: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the complete environment of a tool's process, selected from `server`, by default from os.environ.

    HOME keeps the server's value, because git and shells have their configuration there. TERM is "dumb", because there
    is no terminal.
    """
    server = os.environ if server is None else server
    passed = {name: value for name, value in server.items() if name in PASSED or name.startswith("LC_")}
    return {"PATH": os.defpath, "HOME": "/"} | passed | {"TERM": "dumb"}
