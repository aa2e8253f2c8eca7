"""The profile of a conversation: optional choices of its creator, such as instructions, tools and MCP servers."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from actors.core.context import Mode, ToolGroup, ToolTraits


class ClientTool(Struct, frozen=True, omit_defaults=True):
    """A tool that clients run."""

    name: str
    description: str = ""
    input_schema: str = '{"type":"object","properties":{}}'
    """A JSON Schema of type object, as JSON text."""
    group: ToolGroup = ToolGroup.OTHER
    timeout_ms: int = 300_000
    """How long a call waits for a client's answer, in milliseconds."""
    read_only: bool = False
    requires_approval: bool = False
    """Whether calls need approval under every approval policy."""

    @property
    def traits(self) -> ToolTraits:
        """The tool's properties that the state machine uses."""
        return ToolTraits(
            self.name,
            self.group,
            writes=not self.read_only,
            always_asks=self.requires_approval,
            client=True,
            timeout_ms=self.timeout_ms,
        )


NOT_OFFERED = (
    "restricted mode offers only those tools of clients that are read-only: declare it so if it changes nothing, or "
    "choose the mode workspace or unrestricted"
)
"""Why a tool is one of those that `unoffered` returns, and what to change."""


def unoffered(tools: tuple[ClientTool, ...], mode: Mode) -> tuple[str, ...]:
    """Return the names of those client tools that a run which begins in this mode does not offer."""
    return tuple(tool.name for tool in tools if not tool.traits.offered_in(mode))


class ReasoningEffort(StrEnum):
    """How much a model reasons before it answers."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    MAX = "max"
    """The highest effort that the model supports."""


class Generation(Struct, frozen=True, omit_defaults=True):
    """Settings for a model's answers; a setting that is unset is left to the model."""

    reasoning_effort: ReasoningEffort | None = None
    temperature: float | None = None
    """From 0 to 2."""
    max_output_tokens: int = 0
    """The limit of one answer in tokens, reasoning included; 0: the server's default."""

    def over(self, other: Generation) -> Generation:
        """Return these settings; where a setting is not set, take the value from `other`."""
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
    """The names of the server's tools that change nothing."""


class Profile(Struct, frozen=True, omit_defaults=True):
    """What the creator of a conversation chose; the defaults mean that nothing was chosen.

    Profiles have a table of their own, because a conversation's row is rewritten at every transition, and its profile
    seldom changes.
    """

    instructions: str = ""
    """Instructions for the agent; "" if there are none."""
    replaces_prompt: bool = False
    """Whether the instructions replace Bedrock's system prompt instead of following it."""
    tools: tuple[str, ...] | None = None
    """The names of the built-in tools that are offered; None: all of them."""
    generation: Generation = Generation()
    """Settings for the model's answers. Those of a message take precedence in the run that the message begins."""
    forked_from: str = ""
    """The id of the conversation from which this one was forked; "" if it is not a fork."""
    forked_at: str = ""
    """The id, in the original conversation, of the last run that was copied to this fork; "" if it is not a fork."""
    cache_key: str = ""
    """The key by which providers find cached prompts; a fork has that of its original. "" means the conversation id."""
    client_tools: tuple[ClientTool, ...] = ()
    """The tools that clients run; they can change only while no run is open."""
    mcp_servers: tuple[ChosenMcpServer, ...] = ()
    """The MCP servers in addition to those of the operator; they can change only while no run is open."""
    auto_continue: bool = False
    """Whether the successor is created in the commit with which the context is used up."""
