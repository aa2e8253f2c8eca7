"""The context of a transition: the facts about a conversation that the state machine reads.

Of these facts, a transition can change only the mode.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from msgspec import Struct


class Action(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Origin(StrEnum):
    CONVERSATION = "conversation"
    OPERATOR = "operator"


class ApprovalRule(Struct, frozen=True, omit_defaults=True):
    """A rule for tool calls. Exactly one of `tool`, `command`, `command_prefix`, `path` and `mcp_server` is set."""

    id: str
    """The id, unique among a conversation's rules of the same origin; "" for a rule that is only suggested."""
    action: Action
    tool: str = ""
    command: str = ""
    """A command that the rule applies to: the whole text of a call, or one simple command with exactly these words."""
    command_prefix: str = ""
    path: str = ""
    """An absolute directory without symbolic links: the rule applies to tools that read or write files beneath it."""
    mcp_server: str = ""
    words: tuple[str, ...] = ()
    """The words of `command_prefix`, or of `command` if that is one simple command, without the shell's quoting."""
    created_at: int = 0
    creator: str = ""
    origin: Origin = Origin.CONVERSATION

    @property
    def subject(self) -> tuple[str, str, str, str, str]:
        """The fields that decide which calls match. Rules with the same subject and action are duplicates."""
        return self.tool, self.command, self.command_prefix, self.path, self.mcp_server


class ShellCommand(Struct, frozen=True, omit_defaults=True):
    """One simple command (a program with arguments) within the text of a shell call."""

    words: tuple[str, ...]
    """The words of the command without quotes, up to the first word that is known only when the command runs."""
    open: bool = False
    """Whether more words follow that are known only when the command runs, such as variables and patterns."""
    runs_others: bool = False
    """Whether the command may run others, not named in `words`; set only in logs older than `Rules.NOTHING_LOST`."""


class CallSubject(Struct, frozen=True, omit_defaults=True):
    """What a call would do, as far as the tool's adapter can tell before the call runs."""

    text: str = ""
    commands: tuple[ShellCommand, ...] = ()
    """All simple commands in the text; incomplete if `opaque` is set."""
    inner: tuple[ShellCommand, ...] = ()
    """Simple commands found in the arguments of other commands or in an opaque text; others may remain unfound."""
    opaque: bool = False
    paths: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    """The directories that the tool reads with everything beneath them; absolute, without symbolic links."""
    also_reads: tuple[str, ...] = ()
    """Further paths that the tool reads. A rule that allows these paths alone does not allow the call."""
    workspace: bool = False
    """Whether the call asks for unrestricted mode, but a person could grant workspace mode instead."""


class Suggested(Struct, frozen=True, omit_defaults=True):
    tool_use_id: str
    rules: tuple[ApprovalRule, ...]
    asked_by: ApprovalRule | None = None
    """The rule that made approval necessary; None if no rule did."""
    workspace: bool = False


class Mode(StrEnum):
    """The mode of a conversation: what its tools may do (REQ-BED-014)."""

    RESTRICTED = "restricted"
    WORKSPACE = "workspace"
    UNRESTRICTED = "unrestricted"


BY_WIDTH = (Mode.RESTRICTED, Mode.WORKSPACE, Mode.UNRESTRICTED)


def wider(mode: Mode, than: Mode) -> bool:
    return BY_WIDTH.index(mode) > BY_WIDTH.index(than)


class Rules(IntEnum):
    """Editions of the machine's rules. A log names the edition that wrote it, and is replayed with that edition."""

    FIRST = 1
    """The first version; also used for logs that name no version."""
    # New: the agent is notified that a run was interrupted; the budget is checked before each model request attempt.
    INTERRUPTIONS = 2
    # New: a conversation may be limited to some of the tools, which need not include request_mode_upgrade (it asks for
    # a wider mode). Whether a sub-agent's tool call needs approval is decided once, when the response arrives.
    OWN_TOOLS = 3
    # New: if a summary that a user requested fails, the conversation stays as it was, unless its context is full. The
    # agent gets a notice if its model does not see the images in its history, and when the date has changed. Approval
    # rules match commands differently. After a request that the provider found too long, a summary is requested. A run
    # fails when its calls have failed in the same way three times in a row; a run with an empty answer says so.
    # Reasoning that is cut off at the token limit ends the run. The agent gets a notice when most of the budget, or
    # most of a run's requests, are used up.
    NOTHING_LOST = 4


class ApprovalPolicy(StrEnum):
    AUTO = "auto"
    ASK_WRITES = "ask_writes"
    ASK_ALL = "ask_all"


class FollowUpPolicy(StrEnum):
    """When a queued follow-up message begins its run: after any run, or only after a completed one."""

    ALWAYS = "always"
    COMPLETED_ONLY = "completed_only"


class ToolGroup(StrEnum):
    READ = "read-group"
    WRITE = "write-group"
    BASH = "bash-group"
    OTHER = "other-group"


class ToolTraits(Struct, frozen=True, omit_defaults=True):
    name: str
    group: ToolGroup
    retry_safe: bool = False
    """Whether a failed call may be started again, because the tool changes nothing."""
    writes: bool = False
    """Whether calls need approval under ASK_WRITES. A tool that is not in `ConvContext.tools` counts as one that
    writes."""
    always_asks: bool = False
    """Whether calls need approval under every policy, as for request_mode_upgrade and client tools that demand it."""
    client: bool = False
    timeout_ms: int = 0
    """For a tool that a client runs: how long a call waits for the client's answer, in milliseconds."""

    def offered_in(self, mode: Mode | None) -> bool:
        """Whether `mode` offers the tool: restricted mode omits client tools that write.

        `mode` is None for a run without client tools.
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
    conversation_id: str
    working_dir: str
    model_id: str
    usable_window: int
    """The maximum tokens of a request: the model's input limit, or its window minus reserved output (REQ-BED-012)."""
    is_sub_agent: bool = False
    mode: Mode = Mode.UNRESTRICTED
    restriction_available: bool = False
    workspace_available: bool = False
    """Whether workspace mode can be enforced in this conversation's working directory."""
    unrestricted_available: bool = True
    approval_policy: ApprovalPolicy = ApprovalPolicy.AUTO
    always_approved: tuple[str, ...] = ()
    """Names of tools that need no approval; only in logs of earlier versions, before `approval_rules` existed."""
    approval_rules: tuple[ApprovalRule, ...] = ()
    """The operator's rules, then those of the conversation."""
    follow_up_policy: FollowUpPolicy = FollowUpPolicy.ALWAYS
    budget: Budget = Budget()
    quota_spent: str = ""
    """The used-up quota of the conversation's principal, as text; "" if there is none."""
    limits: Limits = Limits()
    tools: tuple[ToolTraits, ...] = ()
    """The tools offered to this conversation, in the order the model sees them."""
    date: str = ""
    """Today's date (UTC), as YYYY-MM-DD; "" in logs that do not contain it."""
    prompt_date: str = ""
    takes_images: bool = True
    """Whether requests contain images. If not, they contain text in place of each image."""
    rules: Rules = max(Rules)

    def near_full(self, used: int) -> bool:
        """Whether `used` tokens reach the warning threshold (by default 80 % of the usable window)."""
        return self._reaches(used, self.limits.warn_ratio)

    def full(self, used: int) -> bool:
        """Whether `used` tokens reach the limit at which a summary is due (by default 90 % of the usable window)."""
        return self._reaches(used, self.limits.exhaust_ratio)

    def _reaches(self, used: int, ratio: float) -> bool:
        """Whether `used` is at least `ratio` (rounded to 1/1000) of the usable window; False if that is unknown (0)."""
        return self.usable_window > 0 and used * 1_000 >= round(ratio * 1_000) * self.usable_window


class ClientTool(Struct, frozen=True, omit_defaults=True):
    name: str
    description: str = ""
    input_schema: str = '{"type":"object","properties":{}}'
    """A JSON Schema of type object, as JSON text."""
    group: ToolGroup = ToolGroup.OTHER
    timeout_ms: int = 300_000
    read_only: bool = False
    requires_approval: bool = False

    @property
    def traits(self) -> ToolTraits:
        return ToolTraits(
            self.name,
            self.group,
            writes=not self.read_only,
            always_asks=self.requires_approval,
            client=True,
            timeout_ms=self.timeout_ms,
        )


# Explains to users why `unoffered` returns a tool, and what they can change.
NOT_OFFERED = (
    "restricted mode offers only read-only client tools; declare a tool as read-only if it changes nothing, or "
    "choose workspace or unrestricted mode"
)


def unoffered(tools: tuple[ClientTool, ...], mode: Mode) -> tuple[str, ...]:
    """The names of the client tools that a run beginning in this mode does not offer."""
    return tuple(tool.name for tool in tools if not tool.traits.offered_in(mode))


class ReasoningEffort(StrEnum):
    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    MAX = "max"


class Generation(Struct, frozen=True, omit_defaults=True):
    """Settings for a model's answers; unset ones are left to the model."""

    reasoning_effort: ReasoningEffort | None = None
    temperature: float | None = None
    """From 0 to 2."""
    max_output_tokens: int = 0
    """The limit of one answer in tokens, reasoning included; 0: the server's default."""

    def over(self, other: Generation) -> Generation:
        """These settings, with unset ones taken from `other`."""
        return Generation(
            self.reasoning_effort or other.reasoning_effort,
            other.temperature if self.temperature is None else self.temperature,
            self.max_output_tokens or other.max_output_tokens,
        )


class ChosenMcpServer(Struct, frozen=True, omit_defaults=True):
    """An MCP server that a client configures for one conversation: a program or a URL. Contains no secret."""

    name: str
    command: tuple[str, ...] = ()
    """The program and its arguments; () for a server with a URL."""
    environment: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    """References to the operator's secrets (`secret:NAME`), by the name of the HTTP header that sends them."""
    read_only: tuple[str, ...] = ()


class Profile(Struct, frozen=True, omit_defaults=True):
    """The settings chosen by the creator of a conversation.

    Profiles have their own table, because the rows of conversations are rewritten often.
    """

    instructions: str = ""
    replaces_prompt: bool = False
    """Whether the instructions replace Bedrock's system prompt instead of following it."""
    tools: tuple[str, ...] | None = None
    """The names of the built-in tools that are offered; None: all of them."""
    generation: Generation = Generation()
    forked_from: str = ""
    forked_at: str = ""
    """The id, in the original conversation, of the last run that was copied to this fork; "" if it is not a fork."""
    cache_key: str = ""
    """The key under which providers cache prompts; a fork uses its original's key. "" means the conversation id."""
    client_tools: tuple[ClientTool, ...] = ()
    """The tools that clients run; they can change only while no run is open."""
    mcp_servers: tuple[ChosenMcpServer, ...] = ()
    """The MCP servers in addition to those of the operator; they can change only while no run is open."""
    auto_continue: bool = False
    """Whether a successor is created automatically, in the commit that uses up the context."""
