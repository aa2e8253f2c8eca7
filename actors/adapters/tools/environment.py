"""What a tool's process sees of the server's environment: nothing but this list, so never a secret."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "PYTHONDONTWRITEBYTECODE")
"""Names that are passed on if they are set, beside all of LC_*."""


def tool_environment(server: Mapping[str, str] | None = None) -> dict[str, str]:
    """The complete environment of a tool's process. HOME is the real one: people's git and shells live there.

    TERM says that there is no terminal.
    """
    server = os.environ if server is None else server
    passed = {name: value for name, value in server.items() if name in PASSED or name.startswith("LC_")}
    return {"PATH": os.defpath, "HOME": "/"} | passed | {"TERM": "dumb"}
