"""The exceptions of this package.

A refusal by the server says why in its `reason`; every reason in the gRPC API has a class of the same name.
Catch the class that you can handle, or one higher up:

    BedrockError
    ├── Aborted                    another client was faster, or an `etag` is outdated
    │   ├── RunOver
    │   └── UnknownOrDecided
    ├── AlreadyExists
    │   ├── RequestIdReused
    │   └── SlugTaken
    ├── DataLoss                   stored data is damaged; repeating does not help
    ├── DeadlineExceeded           no answer before the time limit; the call may have taken effect
    ├── FailedPrecondition         the current state does not allow it; nothing was changed
    │   ├── AgentBusy
    │   │   └── AwaitingApproval
    │   ├── AlreadyStarted
    │   ├── Archived
    │   ├── BudgetReached
    │   ├── Cancelling
    │   ├── ContextExhausted
    │   ├── ContinuationInProgress
    │   ├── CycleRunning
    │   ├── ModeUnavailable
    │   ├── NotAwaitingApproval
    │   ├── NotExhausted
    │   ├── NotForkable
    │   ├── NotSubAgent
    │   ├── SubAgent
    │   ├── Terminal
    │   └── ToolNotOffered
    ├── Internal                   a fault of the server; its log says more
    ├── InvalidArgument            `fields` names what is wrong
    │   ├── GenerationUnsupported
    │   ├── ImageInvalid
    │   ├── ModelUnavailable
    │   └── WorkingDirectoryInvalid
    ├── Misconfigured              the address, token or certificate of this client is unusable
    ├── NotFound
    ├── OutOfRange
    │   └── RevisionTooOld
    ├── PermissionDenied
    │   └── McpNotAllowed
    ├── ResourceExhausted
    │   ├── QueueFull
    │   ├── QuotaExceeded
    │   ├── ServerExhausted
    │   └── TooManyStreams
    ├── RunEnded                   a run ended without an answer (see `Run.answer`)
    │   ├── ApprovalNeeded
    │   ├── RunFailed
    │   └── RunInterrupted
    ├── Unauthenticated
    └── Unavailable                the server cannot be reached, or accepts no work now
        ├── ServerNotRunning       no server runs on this machine, and no address was given
        │   └── ServerUnreachable  a server runs on this machine, but its socket is missing
        ├── ShuttingDown
        ├── StoreUnavailable
        └── WorkspaceOffline

For a reason that this version does not know, the class of the gRPC status code is raised; for an unknown code,
`BedrockError` itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bedrock.states import Approval


class BedrockError(Exception):
    """Base class of all errors: a call failed on the server, or on the way to it."""

    hint: ClassVar[str] = ""
    """The advice for a user about the error. Empty if there is nothing to add to the message."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        code: str = "",
        fields: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        resource: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """The error message for users. Programs should use the class or `reason` instead."""
        self.reason = reason
        """The name of the refusal reason, e.g. "AGENT_BUSY". Empty if the error is not a refusal by the server."""
        self.code = code
        """The name of the gRPC status code, e.g. "FAILED_PRECONDITION". Empty if the error did not arise in a call."""
        self.fields = dict(fields or {})
        """The invalid fields of the request, with an explanation for each field name."""
        self.metadata = dict(metadata or {})
        """Further details about the error from the server, by name."""
        self.resource = resource
        """The resource name that was not found, e.g. "conversations/x"; empty if the server named none."""
        self.retry_after = retry_after
        """Seconds after which another attempt makes sense; None if the server did not say."""


class Aborted(BedrockError):
    """The conversation has changed since the caller read it: another client was faster, or an `etag` is outdated."""

    hint = "Read the conversation again and decide whether the call still makes sense."


class RunOver(Aborted):
    """The run that the call expected is no longer in progress."""


class UnknownOrDecided(Aborted):
    """The approval, question or tool call was answered already, or the message is no longer queued."""


class AlreadyExists(BedrockError):
    """The object to create already exists."""


class RequestIdReused(AlreadyExists):
    """The request id was used before, for a request with different content."""

    hint = "Use a new request_id for a new request."


class SlugTaken(AlreadyExists):
    """Another conversation of the principal has this slug."""

    hint = "Choose another slug, or omit it to have one generated."


class DataLoss(BedrockError):
    """Data that the server has stored is damaged. Only a backup helps; repeating the call does not."""


class DeadlineExceeded(BedrockError):
    """No answer came before the time limit. The call may have taken effect; repeat it with the same request id."""


class FailedPrecondition(BedrockError):
    """The call is valid, but the current state does not allow it. Nothing was changed."""


class AgentBusy(FailedPrecondition):
    """A run is in progress, and the call needs an idle agent."""

    hint = 'Wait, cancel, or send with delivery="steer" or delivery="follow_up".'


class AwaitingApproval(AgentBusy):
    """The agent is busy because it waits for a user to answer an approval."""

    hint = 'Answer the approval, cancel, or send with delivery="steer" or delivery="follow_up".'


class AlreadyStarted(FailedPrecondition):
    """The sub-agent has already been started."""


class Archived(FailedPrecondition):
    """The conversation is archived and starts no runs."""

    hint = "Unarchive it first: `bedrock archive --undo NAME`, or `unarchive`."


class BudgetReached(FailedPrecondition):
    """The conversation has spent its budget."""

    hint = "Raise the budget of the conversation."


class Cancelling(FailedPrecondition):
    """The conversation is being cancelled, which takes two seconds at most."""

    hint = "Send again once the conversation is idle."


class ContextExhausted(FailedPrecondition):
    """The context is used up and the conversation is read-only."""

    hint = "Continue in its successor: `bedrock continue`, or /continue in a chat."


class ContinuationInProgress(FailedPrecondition):
    """The server is writing the summary that ends this conversation, because its context is full."""

    hint = "Wait until the summary is complete and continue the conversation, or cancel."


class ModeUnavailable(FailedPrecondition):
    """The server cannot enforce this mode, or a setting disables it."""

    hint = "Choose another mode. `bedrock doctor` says more about the sandbox."


class NotAwaitingApproval(FailedPrecondition):
    """The conversation is not waiting for an approval."""


class NotExhausted(FailedPrecondition):
    """The context is not used up, so there is nothing to continue."""

    hint = "Send a message instead."


class NotForkable(FailedPrecondition):
    """No fork is possible at the given run: no run has ended yet, or the context was full or used up at its end."""

    hint = "Fork at an earlier request cycle, if there is one."


class CycleRunning(FailedPrecondition):
    """The request cycle has not ended yet."""

    hint = "Wait until it ends, or fork at an earlier one."


class NotSubAgent(FailedPrecondition):
    """The call is possible only for sub-agents' conversations."""


class SubAgent(FailedPrecondition):
    """The conversation belongs to a sub-agent, which takes instructions from its parent only."""

    hint = "Send the command to the parent conversation."


class Terminal(FailedPrecondition):
    """The conversation has ended permanently, e.g. because its sub-agent has finished, and accepts no more commands."""


class ToolNotOffered(FailedPrecondition):
    """The mode of the conversation does not offer the agent a tool that this client runs; the message says which."""

    hint = "Declare a tool that changes nothing as read-only, choose another mode, or allow tools that are not offered."


class Internal(BedrockError):
    """The server failed; see its log."""


class InvalidArgument(BedrockError):
    """The request is invalid; `fields` contains the reason for each wrong field."""


class GenerationUnsupported(InvalidArgument):
    """The model does not support a setting of `generation`; the error message names each unsupported one."""

    hint = "Omit the setting, or choose another model; see `bedrock models NAME`."


class ImageInvalid(InvalidArgument):
    """An image is damaged, too large, or not in the format that it claims; or the model takes no images."""


class ModelUnavailable(InvalidArgument):
    """The server does not offer this model."""

    hint = "Choose one that `bedrock models` lists."


class WorkingDirectoryInvalid(InvalidArgument):
    """The path is not an existing directory, or the server may not use it."""


class Misconfigured(BedrockError):
    """The address, the token or the certificate that this client was given cannot be used."""


class NotFound(BedrockError):
    """No object has this name, or the object belongs to another user."""


class OutOfRange(BedrockError):
    """The request refers to a position outside of the available range."""


class RevisionTooOld(OutOfRange):
    """The events after the given revision are no longer kept."""

    hint = "Start with a snapshot: ask for events without a revision."


class PermissionDenied(BedrockError):
    """The token is valid but does not permit the call."""


class McpNotAllowed(PermissionDenied):
    """The operator of the server does not allow the MCP server that the call names."""

    hint = "The operator can allow it with [mcp_from_clients] in the server's settings."


class ResourceExhausted(BedrockError):
    """A limit of the server is reached."""


class QueueFull(ResourceExhausted):
    """The message queue of the conversation is full."""

    hint = "Wait until one is delivered, or withdraw one."


class QuotaExceeded(ResourceExhausted):
    """A quota of this client's principal, or of the server as a whole, is used up; `metadata` names it.

    `retry_after` is the number of seconds until the quota may allow calls again. For tokens and costs per day or month,
    that is when the next day or month begins.
    """

    hint = "`bedrock quota` shows your usage and when it resets; the server's operator sets the limits."


class ServerExhausted(ResourceExhausted):
    """The server has run out of file descriptors, threads or memory; the message names the exhausted resource."""

    hint = "Try again later, run fewer conversations at once, or raise the limit."


class TooManyStreams(ResourceExhausted):
    """Too many streams are open."""


class Unauthenticated(BedrockError):
    """The token is missing or not known to the server."""

    hint = (
        "Set BEDROCK_TOKEN to the token that the operator of the server gave you; it may have expired or been revoked, "
        "see `bedrock token list` on the server's machine. "
        "For your own server, it is in the file `token` of its data directory, which clients find by "
        "themselves only if no address is given; restart the server if that file was replaced since it started."
    )


class Unavailable(BedrockError):
    """The server cannot be reached, or accepts no calls at the moment."""


class ServerNotRunning(Unavailable):
    """No server is running on this machine, and the client was not given the address of another server."""

    hint = (
        "Start one with `bedrock serve`, or chat with one of your own: `bedrock`. "
        "For a server elsewhere, set BEDROCK_ADDRESS and BEDROCK_TOKEN."
    )


class ServerUnreachable(ServerNotRunning):
    """A server runs on this machine, but its socket, or the file with the socket's path, is missing."""

    hint = (
        "If it was not just started or stopped, its socket was removed: stop that process and start the server again."
    )


class ShuttingDown(Unavailable):
    """The server is shutting down."""


class StoreUnavailable(Unavailable):
    """The server cannot read its database, or cannot confirm a change. Try again with the same request id."""


class WorkspaceOffline(Unavailable):
    """No server that has the conversation's working directory is running; the call had no effect."""


class RunEnded(BedrockError):
    """The run ended without an answer, or waits for an approval."""


class ApprovalNeeded(RunEnded):
    """The run waits for a user's approval. It continues as soon as the approval is answered."""

    hint = "Answer it with `approve` or `deny`, then ask for the answer again."

    def __init__(self, message: str, approval: Approval) -> None:
        super().__init__(message, reason="APPROVAL_NEEDED")
        self.approval = approval
        """The open approval."""


class RunFailed(RunEnded):
    """The run ended in an error; `reason` is the kind of error, e.g. "AUTH"."""


class RunInterrupted(RunEnded):
    """The run was interrupted; `reason` says why, e.g. "RESTART", or is empty after a cancel."""


def error_class(reason: str, code: str) -> type[BedrockError]:
    """The exception class for a refusal reason or, if that is unknown, a gRPC status code; else `BedrockError`."""
    return _BY_NAME.get(reason) or _BY_NAME.get(code) or BedrockError


def _subclasses(cls: type[BedrockError]) -> Iterator[type[BedrockError]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


_BY_NAME = {re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper(): cls for cls in _subclasses(BedrockError)}
for _local in ("MISCONFIGURED", "RUN_ENDED", "APPROVAL_NEEDED", "RUN_FAILED", "RUN_INTERRUPTED"):
    del _BY_NAME[_local]
