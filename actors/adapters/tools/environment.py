"""The environment variables of a tool's process: an allowlist of the server's variables, without secrets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULTS = {"PATH": os.defpath, "HOME": "/", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"}
"""Variables that are passed on, and their values if they are not set: nothing is coloured, and nothing paged."""

PASSED = ("USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONDONTWRITEBYTECODE", *DEFAULTS)
"""Variables that are passed on if they are set, in addition to LC_*."""


def tool_environment(server: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the complete environment of a tool's process, selected from `server`, by default from os.environ.

    HOME keeps the server's value, because git and shells have their configuration there. TERM is "dumb", because there
    is no terminal.
    """
    server = os.environ if server is None else server
    passed = {name: value for name, value in server.items() if name in PASSED or name.startswith("LC_")}
    return DEFAULTS | passed | {"TERM": "dumb"}
