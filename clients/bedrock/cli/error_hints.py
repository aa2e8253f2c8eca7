"""Converts errors of the client to messages and hints for a command line or a chat."""

from __future__ import annotations

from bedrock.errors import (
    AgentBusy,
    ApprovalNeeded,
    Archived,
    AwaitingApproval,
    BedrockError,
    ModelUnavailable,
    ModeUnavailable,
    NotForkable,
    NotFound,
    QuotaExceeded,
    RevisionTooOld,
)

FOR_PROGRAMS = ": try again, with the same request_id"
"""The end of some of the server's error messages. It is meant for programs, so it is removed for people."""
RUNS_END = "A run has to end first: `bedrock list --filter 'busy = true'` lists yours, `bedrock cancel NAME` ends one."

_COMMAND_LINE: dict[type[BedrockError], str] = {
    AgentBusy: "Wait for the end of the run, or end it with `bedrock cancel NAME`; then try again.",
    AwaitingApproval: "Answer with `bedrock approve NAME` or `bedrock deny NAME`, or cancel; then try again.",
    ApprovalNeeded: "Answer with `bedrock approve NAME` or `bedrock deny NAME`.",
    ModelUnavailable: "Choose one with -m; `bedrock models` lists them.",
    Archived: "Put it back on the list first: `bedrock archive --undo NAME`.",
    NotForkable: "`bedrock cycles NAME` lists its runs.",
    RevisionTooOld: "",
}
_CHAT: dict[type[BedrockError], str] = {
    **_COMMAND_LINE,
    AgentBusy: "Wait for the end of the run, or cancel it with Esc; then enter it again.",
    ModelUnavailable: ModelUnavailable.hint,
    AwaitingApproval: "Answer the question, or cancel with Esc; then enter it again.",
}


def what_happened(error: BedrockError) -> str:
    """Return the message of an error for people. A missing conversation is named as the user has typed it."""
    missing = _missing_conversation(error)
    return f"there is no conversation “{missing}”" if missing else error.message.removesuffix(FOR_PROGRAMS)


def what_to_do(error: BedrockError, *, in_chat: bool = False) -> str:
    """Return a hint about what the user can do after an error: a command to enter or, in a chat, a key to press.

    Returns "" if the error's message contains the hint already.
    """
    if _missing_conversation(error):
        return "`bedrock list` lists those that there are."
    if isinstance(error, ModeUnavailable) and error.metadata.get("cause") == "directory":
        return "A conversation in another directory can have it: -C chooses one."
    if isinstance(error, QuotaExceeded) and error.metadata.get("quota") == "concurrent_runs":
        return RUNS_END
    if error.reason == "STORE_UNAVAILABLE":
        return "Try again later. The server's log says why, for example a full disk."
    hint = (_CHAT if in_chat else _COMMAND_LINE).get(type(error), error.hint)
    return "" if hint.rstrip(".").casefold() in error.message.casefold() else hint


def _missing_conversation(error: BedrockError) -> str:
    collection, _, name = error.resource.partition("/")
    is_conversation = isinstance(error, NotFound) and collection == "conversations" and "/" not in name
    return name if is_conversation else ""
