"""Patches a text file; reads JSON with path, patches, clipboards and protected from standard input.

`clipboards` maps names to texts; `protected` lists the real paths of files and directories that must not be changed.
Prints "ok" on a line of its own and JSON with clipboards (those that the patches stored), notes and diff. If the
patches cannot be applied, prints "error" and the text for the model, and leaves the file unchanged.
"""

import json
import sys
from typing import Any

from actors.adapters.tools.workers.patching.plan import PatchRefusedError, Plan, plan
from actors.adapters.tools.workers.patching.write import change


def patch(request: dict[str, Any]) -> Plan:
    """Apply the requested patches. Raises PatchRefusedError or OSError, and then nothing has changed."""
    path = request["path"]
    plans: list[Plan] = []

    def rewrite(content: bytes | None) -> bytes:
        plans.append(plan(content, request["patches"], request["clipboards"], path))
        return plans[-1].content

    change(path, request["protected"], rewrite)
    return plans[-1]


def answer(request: dict[str, Any]) -> bytes:
    """Apply the requested patches and return the bytes to print: the result, or the error for the model."""
    try:
        done = patch(request)
    except PatchRefusedError as refused:
        return f"error\nNothing was changed in {request['path']}: {refused}.".encode(errors="replace")
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        return f"error\nNothing was changed in {request['path']}: {cause}.".encode(errors="replace")
    fields = {"clipboards": done.clipboards, "notes": done.notes, "diff": done.diff}
    return b"ok\n" + json.dumps(fields, ensure_ascii=False).encode()


def main(_arguments: list[str]) -> None:
    """Apply the patches requested on standard input, and print the verdict and the result."""
    sys.stdout.buffer.write(answer(json.loads(sys.stdin.buffer.read())))
