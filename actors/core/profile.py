"""The profile of a conversation: what its creator chose for it, beside the settings that every conversation has."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from actors.core.context import ToolGroup, ToolTraits


class ClientTool(Struct, frozen=True, omit_defaults=True):
    """A tool that clients run."""

    name: str
    description: str = ""
    input_schema: str = '{"type":"object","properties":{}}'
    """A JSON Schema of type object, as JSON text."""
    group: ToolGroup = ToolGroup.OTHER
    timeout_ms: int = 300_000
    """How long a call waits for an answer, in milliseconds."""
    read_only: bool = False
    requires_approval: bool = False
    """Whether it needs approval under every policy."""

    @property
    def traits(self) -> ToolTraits:
        """What the state machine knows of it."""
        return ToolTraits(
            self.name,
            self.group,
            writes=not self.read_only,
            always_asks=self.requires_approval,
            client=True,
            timeout_ms=self.timeout_ms,
        )


class ReasoningEffort(StrEnum):
    """How much a model thinks before it answers."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    MAX = "max"
    """As much as the model can."""


class Generation(Struct, frozen=True, omit_defaults=True):
    """How a model is to answer; what is not set is left to the model."""

    reasoning_effort: ReasoningEffort | None = None
    temperature: float | None = None
    """From 0 to 2."""
    max_output_tokens: int = 0
    """The limit of one answer in tokens, reasoning included; 0: the server's own."""

    def over(self, other: Generation) -> Generation:
        """Return these settings, and those of `other` where these are not set."""
        return Generation(
            self.reasoning_effort or other.reasoning_effort,
            other.temperature if self.temperature is None else self.temperature,
            self.max_output_tokens or other.max_output_tokens,
        )


class ChosenMcpServer(Struct, frozen=True, omit_defaults=True):
    """An MCP server that a client names for one conversation: a program or a URL. Holds no secret."""

    name: str
    command: tuple[str, ...] = ()
    """The program and its arguments; () for a server with a URL."""
    environment: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    """References to secrets of the operator, `secret:NAME`, by the header that they are sent in."""
    read_only: tuple[str, ...] = ()
    """The tools that change nothing, by their own names."""


class Profile(Struct, frozen=True, omit_defaults=True):
    """What the creator of a conversation chose; the defaults are those of a conversation that chose nothing.

    Stored in a table of its own, because transitions rewrite the conversation's row, but seldom its profile.
    """

    instructions: str = ""
    """Instructions for the agent; "" if there are none."""
    replaces_prompt: bool = False
    """Whether the instructions stand instead of Bedrock's own prompt, not after it."""
    tools: tuple[str, ...] | None = None
    """The names of the built-in tools that are offered; None: all of them."""
    generation: Generation = Generation()
    """How the model is to answer. A message's own settings have precedence in its run."""
    forked_from: str = ""
    """The id of the conversation that this one was forked from; "" if it was not."""
    forked_at: str = ""
    """The id of the last run of that conversation which the fork has, as the origin calls it."""
    cache_key: str = ""
    """The key by which providers find cached prefixes, shared by forks and their origin; "": the conversation's id."""
    client_tools: tuple[ClientTool, ...] = ()
    """The tools that clients run; they change at rest only."""
    mcp_servers: tuple[ChosenMcpServer, ...] = ()
    """The MCP servers beside those of the operator; they change at rest only."""
