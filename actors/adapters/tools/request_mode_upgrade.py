"""The request_mode_upgrade tool: asks the user for a wider permission mode.

The call always needs approval, and the tool runs only once the user has approved it. The tool itself changes nothing:
the state machine sets the mode when it gets the tool's successful result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from actors.core.context import Mode, ToolGroup, ToolTraits, wider
from actors.ports import ProcessEnd, ToolContext, ToolOutput, ToolSpec
from actors.ports.tools import object_schema

MAX_REASON_CHARACTERS = 2_000

ASK = "If the task needs more, call request_mode_upgrade and say why."
# Text for the results of calls that failed because of restricted mode. The last sentence is for the model only; see
# `FOR_AGENT`.
HOW_TO_ASK = (
    "The mode is restricted: tools can read but not change anything outside a temporary directory of the call, and "
    f"have no network. {ASK}"
)
# Text appended to the results of calls that failed because of workspace mode.
HOW_TO_ASK_FOR_MORE = (
    "The mode is workspace: tools can change files beneath the working directory only (but not .git, other files that "
    "people run later, files with several hard links, or files reached by links out of it), and have no network. "
    f"{ASK}"
)
ADVICE = {Mode.RESTRICTED: HOW_TO_ASK, Mode.WORKSPACE: HOW_TO_ASK_FOR_MORE, Mode.UNRESTRICTED: ""}
# Display data for a result that contains ASK. Clients should not show that sentence, because it is for the model only.
FOR_AGENT = {"for_agent": ASK}

GRANTED = (
    "Approved: the mode is unrestricted from now on. Tools may change files, run any command and use the network. "
    "Continue with what you asked for, and repeat the calls that failed because of the mode."
)
GRANTED_WORKSPACE = (
    "Approved: the mode is workspace from now on. Tools may change files beneath the working directory, but not .git "
    "or other files that people run later, and have no network. Continue with what you asked for, and repeat the "
    "calls that failed because of the mode."
)
NOT_NEEDED = "The mode is already unrestricted; nothing was changed. Continue."
NOT_NEEDED_WORKSPACE = "The mode is already workspace; nothing was changed. Continue."

SPEC = ToolSpec(
    description=(
        "Ask the user for a wider mode. In restricted mode tools can only read. In workspace mode they can also change "
        "files beneath the working directory, except .git and other files that people run later, and have no network: "
        "ask for it when you want to edit, build or test. In unrestricted mode they may change any file and use the "
        "network: ask for it only if workspace mode is not enough. The user is shown your reason and approves or "
        "denies; the call waits for the answer, however long that takes. Ask when the task needs changes, not before, "
        "and do not ask again after a denial unless the user says so. The mode stays until it is changed again."
    ),
    input_schema=object_schema(
        ["reason"],
        reason={
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_REASON_CHARACTERS,
            "description": "What you want to change and why, in one or two sentences for the user.",
        },
        mode={
            "type": "string",
            "enum": [Mode.WORKSPACE.value, Mode.UNRESTRICTED.value],
            "description": "The mode to ask for; default unrestricted.",
        },
    ),
    traits=ToolTraits("request_mode_upgrade", ToolGroup.OTHER, always_asks=True),
)

_WORDS = (
    r"Read-only file system|it is read-only|EROFS|Permission denied|EACCES|Operation not permitted|EPERM"
    r"|Network is unreachable|Name or service not known|Temporary failure in name resolution|Could not resolve host"
    r"|getaddrinfo|ENETUNREACH|EAI_AGAIN"
)
# Matches error messages of programs that were kept from writing or using the network by the permission mode.
_BLOCKED = re.compile(_WORDS, re.IGNORECASE)
# Matches such messages only in lines that look like an error message (`touch: cannot touch …`), because the output of a
# successful command may merely quote one.
_REFUSAL = re.compile(rf"^[^\s:]+: .*(?:{_WORDS})", re.IGNORECASE | re.MULTILINE)

_LOOKED_AT = 16 * 1024


class ModeUpgradeTool:
    spec = SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        wanted = Mode(arguments.get("mode", Mode.UNRESTRICTED))
        if not wider(wanted, context.mode):
            return ToolOutput(NOT_NEEDED if context.mode is Mode.UNRESTRICTED else NOT_NEEDED_WORKSPACE)
        if refusal := context.sandbox.mode_refusal(wanted, context.working_directory):
            still = f"The mode is still {context.mode.value}."
            return ToolOutput(
                f"Approved, but {wanted.value} mode is not available in this conversation: {refusal}. {still}",
                is_error=True,
            )
        return ToolOutput(GRANTED if wanted is Mode.UNRESTRICTED else GRANTED_WORKSPACE)


def hint(mode: Mode, end: ProcessEnd) -> str:
    """Advice for the model if the permission mode may have made a command, or a part of it, fail; "" otherwise."""
    if mode is Mode.UNRESTRICTED:
        return ""
    said = (end.tail or end.head)[-_LOOKED_AT:].decode(errors="replace")
    refused = _REFUSAL if end.exit_code == 0 else _BLOCKED
    return ADVICE[mode] if refused.search(said) else ""


def hint_for_error(mode: Mode, text: str) -> str:
    """Advice for the model if workspace mode may have caused a tool's error; "" otherwise."""
    return ADVICE[mode] if mode is Mode.WORKSPACE and _BLOCKED.search(text) else ""
