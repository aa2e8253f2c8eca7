"""What an error of the client means at a command line or in a chat: what happened, and what to do there."""

from __future__ import annotations

import re

from bedrock.errors import AgentBusy, ApprovalNeeded, Archived, AwaitingApproval, BedrockError, NotFound, RevisionTooOld

_NO_CONVERSATION = re.compile(r"conversations/([^/]+) does not exist")

_COMMAND_LINE: dict[type[BedrockError], str] = {
    AgentBusy: "Wait for the end of the run, or end it with `bedrock cancel NAME`; then try again.",
    AwaitingApproval: "Answer with `bedrock approve NAME` or `bedrock deny NAME`, or cancel; then try again.",
    ApprovalNeeded: "Answer with `bedrock approve NAME` or `bedrock deny NAME`.",
    Archived: "Put it back on the list first: `bedrock archive --undo NAME`.",
    RevisionTooOld: "",
}
_CHAT: dict[type[BedrockError], str] = {
    **_COMMAND_LINE,
    AgentBusy: "Wait for the end of the run, or cancel it with Esc; then enter it again.",
    AwaitingApproval: "Answer the question, or cancel with Esc; then enter it again.",
}


def what_happened(error: BedrockError) -> str:
    """The message of an error, with a conversation named as it was typed."""
    found = _NO_CONVERSATION.fullmatch(error.message) if isinstance(error, NotFound) else None
    return f"there is no conversation “{found[1]}”" if found else error.message


def what_to_do(error: BedrockError, *, in_chat: bool = False) -> str:
    """The hint of an error in terms of commands or keys, not of calls; empty if the message says it already."""
    if isinstance(error, NotFound) and _NO_CONVERSATION.fullmatch(error.message):
        return "`bedrock ls` lists those that there are."
    hint = (_CHAT if in_chat else _COMMAND_LINE).get(type(error), error.hint)
    return "" if hint.rstrip(".").casefold() in error.message.casefold() else hint
