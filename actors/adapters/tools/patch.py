"""The patch tool. A worker process, which can be killed, applies all of a call's patches to a text file, or none."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from actors.adapters.tools.program_launch import run_worker
from actors.adapters.tools.request_mode_upgrade import FOR_AGENT, HOW_TO_ASK, hint_for_error
from actors.core.context import Mode, ToolGroup, ToolTraits
from actors.ports import ToolContext, ToolOutput, ToolSpec
from actors.ports.tools import object_schema


class Clipboards:
    """The named texts that patch calls have stored, per conversation. Thread-safe; never blocks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # calls and deletions of several conversations run in parallel
        self._clipboards: dict[str, dict[str, str]] = {}

    def of(self, conversation_id: str) -> Mapping[str, str]:
        """The conversation's current texts by name. Do not modify the mapping."""
        with self._lock:
            return self._clipboards.setdefault(conversation_id, {})

    def store(self, conversation_id: str, before: Mapping[str, str], texts: Mapping[str, str]) -> None:
        """Add `texts` to the conversation's texts, unless these have changed since they were read as `before`."""
        with self._lock:
            if self._clipboards.get(conversation_id) is before:
                self._clipboards[conversation_id] = {**before, **texts}

    def forget(self, conversation_id: str) -> None:
        with self._lock:
            self._clipboards.pop(conversation_id, None)


MAX_INPUT = 240 * 1024

# Maximum bytes of the worker's output, which is more than the JSON of all clipboards and a diff can take.
MAX_OUTPUT = 8 << 20

MAX_PATCHES = 200

APPLIED = "<patches_applied>all</patches_applied>"

SPEC = ToolSpec(
    description=(
        "Change one UTF-8 text file, or create it. All patches of a call are matched against the file as it was before "
        "the call and applied together: if one of them fails, nothing is changed and the result says why. They must "
        "not overlap.\n\n"
        "Operations: `replace` puts newText where oldText is, which must be in the file exactly once (include lines "
        'around it if it is not; newText "" deletes it); `append_eof` and `prepend_bof` add newText at the end and at '
        "the beginning; `overwrite` replaces the whole file. All but `replace` create a file that does not exist, and "
        "its directories. Copy oldText exactly as it appears in the file, without line numbers. The file's mode and "
        "line endings are kept.\n\n"
        "Clipboards spare you from writing long text again. `toClipboard` stores the text that a replace removes under "
        "a name; `fromClipboard` inserts the text with that name instead of newText. Clipboards last for the whole "
        "conversation, across files. To move a function: in one call replace it (oldText: the function, newText: "
        '"", toClipboard: "fn"), then in the same call or a later one insert it (operation: "append_eof", '
        'fromClipboard: "fn"). To copy it, use the same name for both, which leaves it in place. `reindent` changes '
        'the inserted text line by line: {"strip": "    ", "add": "\\t"} replaces the four spaces at the start of each '
        "non-empty line with a tab.\n\n"
        "Relative paths start at the working directory and stay beneath it; use an absolute path for anything else. "
        "For renames, deletions and binary files use bash. A call takes at most 240 KiB: write longer files in several "
        "calls with append_eof."
    ),
    input_schema=object_schema(
        ["path", "patches"],
        path={"type": "string", "minLength": 1, "maxLength": 4096, "description": "Path of the file."},
        patches={
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_PATCHES,
            "description": "The changes to make, all or none.",
            "items": object_schema(
                ["operation"],
                operation={
                    "type": "string",
                    "enum": ["replace", "append_eof", "prepend_bof", "overwrite"],
                    "description": "How to change the file.",
                },
                oldText={
                    "type": "string",
                    "description": "replace only: the text to replace, which must be in the file exactly once.",
                },
                newText={"type": "string", "description": "The text to insert. Not needed with fromClipboard."},
                toClipboard={"type": "string", "description": "replace only: store the replaced text under this name."},
                fromClipboard={"type": "string", "description": "Insert the text with this name instead of newText."},
                reindent={
                    "type": "object",
                    "description": "Change the start of every non-empty line of the new text.",
                    "properties": {
                        "strip": {
                            "type": "string",
                            "description": "Removed first; every non-empty line must begin with it.",
                        },
                        "add": {"type": "string", "description": "Added in its place."},
                    },
                    "additionalProperties": False,
                },
            ),
        },
    ),
    traits=ToolTraits("patch", ToolGroup.WRITE, writes=True),
)


class PatchTool:
    def __init__(self, clipboards: Clipboards) -> None:
        self._clipboards = clipboards

    spec = SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Apply all patches or none.

        Raises ToolTransientError if the worker is lost; the file then has either its old or its new content.
        """
        path = arguments["path"]
        if context.mode is Mode.RESTRICTED:
            text = f"Nothing was changed in {path}. {HOW_TO_ASK}"
            return ToolOutput(text, is_error=True, display=json.dumps(FOR_AGENT))
        if "\0" in path:
            return ToolOutput("Nothing was changed: the path contains a NUL character.", is_error=True)
        if path.split("/")[0] == "~":
            return ToolOutput(f"Nothing was changed: ~ is not expanded in a path; write {path} out.", is_error=True)
        if len(json.dumps(arguments, ensure_ascii=False).encode()) > MAX_INPUT:
            text = f"Nothing was changed: the call is longer than {MAX_INPUT >> 10} KiB. Split it into several calls."
            return ToolOutput(text, is_error=True)
        clipboards = self._clipboards.of(context.conversation_id)
        request = {**arguments, "clipboards": clipboards, "protected": context.sandbox.protected}
        output = run_worker(
            "patch",
            (),
            context,
            what=f"Patching {path}",
            stdin=json.dumps(request, ensure_ascii=False).encode(),
            hint="The file is either unchanged or fully changed; read it to find out.",
            output_bytes=MAX_OUTPUT,
        )
        if output.is_error:
            advice = hint_for_error(context.mode, output.text)
            return (
                ToolOutput(f"{output.text} {advice}", is_error=True, display=json.dumps(FOR_AGENT))
                if advice
                else output
            )
        done = json.loads(output.text)
        self._clipboards.store(context.conversation_id, clipboards, done["clipboards"])
        display = json.dumps({"path": path, "diff": done["diff"]}, ensure_ascii=False)
        return ToolOutput("\n".join([APPLIED, *done["notes"]]), display=display)
