"""The context of a transition: the facts about a conversation that the state machine reads.

A transition can change only one of them, the mode.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from msgspec import Struct

from actors.core.approval.approval_rules import ApprovalRule


class Mode(StrEnum):
    """The mode of a conversation: what its tools may do (REQ-BED-014)."""

    RESTRICTED = "restricted"
    WORKSPACE = "workspace"
    UNRESTRICTED = "unrestricted"


BY_WIDTH = (Mode.RESTRICTED, Mode.WORKSPACE, Mode.UNRESTRICTED)
"""All modes, ordered by the rights that they give to tools, the fewest first."""


def wider(mode: Mode, than: Mode) -> bool:
    """Return whether `mode` gives tools more rights than the mode `than`."""
    return BY_WIDTH.index(mode) > BY_WIDTH.index(than)


class Rules(IntEnum):
    """Versions of the state machine's rules.

    The log of a conversation names the version under which it was written; a replay of the log uses the same version.
    """

    FIRST = 1
    """The first version; also used for logs that name no version."""
    INTERRUPTIONS = 2
    """New: the agent is told that a run was interrupted; the budget is checked before each model request attempt."""
    OWN_TOOLS = 3
    """New: a conversation may be offered only some tools, perhaps not request_mode_upgrade (asks for a wider mode).

    Whether a sub-agent's tool call needs approval is decided once, when the response arrives.
    """
    NOTHING_LOST = 4
    """New: a summary by command that fails leaves the conversation as it was, unless its context is full.

    The agent gets a notice if its model does not see the images of its history, and when the date has changed. Approval
    rules match commands differently.
    After a request that the provider found too long, a summary is requested.
    A run fails when its calls have failed in the same way three times in a row, and says if its answer is empty.
    Reasoning that is cut off at the token limit ends the run.
    The agent gets a notice when most of the budget, or of the requests of a run, is used up.
    """


class ApprovalPolicy(StrEnum):
    """Which tool calls a person must approve."""

    AUTO = "auto"
    ASK_WRITES = "ask_writes"
    ASK_ALL = "ask_all"


class FollowUpPolicy(StrEnum):
    """When a queued follow-up message begins its run: after any run, or only after a completed one."""

    ALWAYS = "always"
    COMPLETED_ONLY = "completed_only"


class ToolGroup(StrEnum):
    """The kinds of tools by which clients group the tool calls that they display."""

    READ = "read-group"
    WRITE = "write-group"
    BASH = "bash-group"
    OTHER = "other-group"


class ToolTraits(Struct, frozen=True, omit_defaults=True):
    """The properties of a tool that the state machine uses."""

    name: str
    group: ToolGroup
    retry_safe: bool = False
    """Whether a failed call may be started again, because the tool changes nothing."""
    writes: bool = False
    """Whether calls need approval under ASK_WRITES.

    A tool that is not in `ConvContext.tools` counts as one that writes.
    """
    always_asks: bool = False
    """Whether calls need approval under every policy: request_mode_upgrade, and client tools that demand it."""
    client: bool = False
    """Whether a client runs the tool; the state machine then waits for the client's answer."""
    timeout_ms: int = 0
    """For a tool that a client runs: how long a call waits for the client's answer, in milliseconds."""

    def offered_in(self, mode: Mode | None) -> bool:
        """Return whether a run that began in this mode offers the tool.

        Restricted mode leaves out client tools that write.
        """
        return mode is not Mode.RESTRICTED or not self.client or not self.writes


class Limits(Struct, frozen=True):
    """Limits that the state machine enforces. Times are in milliseconds."""

    max_attempts: int = 3
    retry_base_ms: int = 1_000
    max_retry_after_ms: int = 60_000
    max_continuations: int = 3
    max_rounds: int = 200
    max_queue: int = 8
    max_nudges: int = 2
    max_turns: int = 20
    cancel_timeout_ms: int = 2_000
    warn_ratio: float = 0.8
    exhaust_ratio: float = 0.9


class Budget(Struct, frozen=True):
    """Limits of token usage and of cost (in millionths of a dollar); 0 means no limit."""

    run_tokens: int = 0
    conversation_tokens: int = 0
    conversation_cost_micros: int = 0


class ConvContext(Struct, frozen=True):
    """Facts about a conversation that its transitions depend on."""

    conversation_id: str
    working_dir: str
    model_id: str
    usable_window: int
    """Tokens that the model accepts: its input limit, or its window minus reserved output (REQ-BED-012)."""
    is_sub_agent: bool = False
    mode: Mode = Mode.UNRESTRICTED
    restriction_available: bool = False
    workspace_available: bool = False
    """Whether workspace mode can be enforced in this conversation's working directory."""
    unrestricted_available: bool = True
    """Whether the conversation's principal may use the unrestricted mode."""
    approval_policy: ApprovalPolicy = ApprovalPolicy.AUTO
    always_approved: tuple[str, ...] = ()
    """Names of tools that need no approval; only in logs of earlier versions, before `approval_rules` existed."""
    approval_rules: tuple[ApprovalRule, ...] = ()
    """The operator's rules, then those of the conversation."""
    follow_up_policy: FollowUpPolicy = FollowUpPolicy.ALWAYS
    budget: Budget = Budget()
    quota_spent: str = ""
    """The used-up quota of the conversation's principal (the caller that owns it), as text; "" if there is none."""
    limits: Limits = Limits()
    tools: tuple[ToolTraits, ...] = ()
    """The tools offered to this conversation, in the order the model sees them."""
    date: str = ""
    """Today's date (UTC), as YYYY-MM-DD; "" in logs that do not contain it."""
    prompt_date: str = ""
    """The date that the system prompt states."""
    takes_images: bool = True
    """Whether requests contain images. If not, they contain a text in place of each image."""
    rules: Rules = max(Rules)
