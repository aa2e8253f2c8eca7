"""request_mode_upgrade: how an agent asks for the unrestricted mode; and how the other tools tell it that it can.

A person is asked before the tool runs (the machine sees to that), so running it is what an approval leads to. It
changes nothing itself: its successful result is what makes the machine set the mode (C15, C48).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from actors.core.context import Mode, ToolGroup, ToolTraits
from actors.ports import ProcessEnd, ToolContext, ToolOutput, ToolSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_REASON_CHARACTERS = 2_000

ASK = "If the task needs more, call request_mode_upgrade and say why."
HOW_TO_ASK = (
    "The mode is restricted: tools can read but not change anything outside of a temporary directory of the call, and "
    f"have no network. {ASK}"
)
"""What a tool adds when the mode is in its way. Its last sentence is not for people, and `FOR_AGENT` says so."""
FOR_AGENT = {"for_agent": ASK}
"""Belongs into the display of such an answer."""

GRANTED = (
    "Approved: the mode is unrestricted from now on. Tools may change files, run any command and use the network. "
    "Go on with what you asked for; what failed before because of the mode has to be called again."
)
NOT_NEEDED = "The mode is unrestricted already: nothing had to be changed. Go on."

SPEC = ToolSpec(
    description=(
        "Ask the person for the unrestricted mode, in which tools may change files and use the network. In the "
        "restricted mode tools can only read. The person is shown your reason and approves or denies; the call waits "
        "for the answer, however long that takes. Ask when the task needs changes, not before, and do not ask again "
        "after a denial unless the person says so. The mode stays until it is changed again."
    ),
    input_schema={
        "type": "object",
        "required": ["reason"],
        "properties": {
            "reason": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_REASON_CHARACTERS,
                "description": "What you want to change and why, in one or two sentences for the person.",
            }
        },
        "additionalProperties": False,
    },
    traits=ToolTraits("request_mode_upgrade", ToolGroup.OTHER, always_asks=True),
)

_WORDS = (
    r"Read-only file system|EROFS|Permission denied|EACCES|Operation not permitted|EPERM|Network is unreachable"
    r"|Name or service not known|Temporary failure in name resolution|Could not resolve host|getaddrinfo|ENETUNREACH"
    r"|EAI_AGAIN"
)
_BLOCKED = re.compile(_WORDS, re.IGNORECASE)
"""What programs say when the restricted mode stops them: what cannot be written, and what has no network."""
_REFUSAL = re.compile(rf"^[^\s:]+: .*(?:{_WORDS})", re.IGNORECASE | re.MULTILINE)
"""The same where the command as a whole went well, so that the words may be what it was to find: only in a line that
begins as programs begin theirs, with a name and a colon (`touch: cannot touch …`, `bash: line 1: …`, `fatal: …`)."""

_LOOKED_AT = 16 * 1024
"""Bytes at the end of an output in which the mode is looked for."""


class ModeUpgradeTool:
    """Says that the person has approved (ports.Tool)."""

    @property
    def spec(self) -> ToolSpec:
        return SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        return ToolOutput(GRANTED if context.mode is Mode.RESTRICTED else NOT_NEEDED)


def hint(mode: Mode, end: ProcessEnd) -> str:
    """A line for a command that failed, or a part of which did: that the mode may be why, and how to ask; "" if
    nothing speaks for it."""
    if mode is not Mode.RESTRICTED:
        return ""
    said = (end.tail or end.head)[-_LOOKED_AT:].decode(errors="replace")
    refused = _REFUSAL if end.exit_code == 0 else _BLOCKED
    return HOW_TO_ASK if refused.search(said) else ""
