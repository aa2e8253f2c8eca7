"""Models, tools, directories, the sandbox, the limits and the audit trail of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from bedrock import v1
from bedrock._shared.wrapper import Value, Wrapper, new_message
from bedrock.types import (
    AuditDecider,
    AuditOutcome,
    AuditVerdict,
    McpServerState,
    Mode,
    ModelProtocol,
    ReasoningEffort,
    SandboxTier,
    ToolAudience,
    ToolGroup,
)

__all__ = [
    "AuditDecision",
    "AuditEntry",
    "DirectoryEntry",
    "DirectoryListing",
    "Limits",
    "McpHttp",
    "McpServer",
    "McpStdio",
    "Model",
    "Node",
    "Quota",
    "Sandbox",
    "ServerInfo",
    "Tool",
]


@dataclass(frozen=True, slots=True)
class Model(Wrapper[v1.Model]):
    """A model that conversations can use."""

    name: str
    """The resource name, ``models/{model}``."""
    display_name: str
    """A name for people."""
    provider: str
    """The provider that serves it, as it is called in the server's configuration."""
    protocol: ModelProtocol
    """How the server talks to the provider."""
    context_window_tokens: int
    """Tokens of input and output together; zero if unknown."""
    input_limit_tokens: int
    """Maximum tokens of input; zero if no such limit is known."""
    max_output_tokens: int
    """Maximum tokens of one response."""
    usable_window_tokens: int
    """Tokens of the context window that a conversation can use."""
    limits_assumed: bool
    """Whether the limits above are an assumption."""
    images: bool
    """Whether the model takes images."""
    default: bool
    """Whether it is the model of conversations that are created without one."""
    reasoning_efforts: tuple[ReasoningEffort, ...]
    """The efforts that `Generation` can ask it for."""
    temperature: bool
    """Whether `Generation` can set its temperature."""
    structured_output: bool
    """Whether its provider keeps the output schema of a run by itself; otherwise the agent calls a tool."""


@dataclass(frozen=True, slots=True)
class Tool(Wrapper[v1.Tool]):
    """A tool that agents can call."""

    name: str
    """The resource name, ``tools/{tool}``."""
    description: str
    """The description of the tool for the model."""
    input_schema: dict[str, Any] = field(hash=False)
    """The JSON schema of its input."""
    modes: tuple[Mode, ...]
    """The modes in which it works; in others its calls fail."""
    group: ToolGroup
    """The kind of work that it does."""
    retry_safe: bool
    """Whether a call may be tried again after an infrastructure failure."""
    requires_approval: bool
    """Whether its calls need approval under every approval policy."""
    writes: bool
    """Whether it can change something, so that the approval policy "ask_writes" applies to it."""
    audience: ToolAudience
    """The agents that it is offered to."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry(Wrapper[v1.BrowseDirectoryResponse.Entry]):
    """An entry of a directory."""

    name: str
    """Its name, without the path."""
    directory: bool
    """Whether it is a directory, or a symbolic link to one."""


@dataclass(frozen=True, slots=True)
class DirectoryListing(Wrapper[v1.BrowseDirectoryResponse]):
    """The content of a directory on the server's machine."""

    path: str
    """The real path of the directory."""
    entries: tuple[DirectoryEntry, ...]
    """Its entries, directories first, each kind ordered by name."""
    truncated: bool
    """Whether there are more than 100,000 entries, of which only so many are here."""


@dataclass(frozen=True, slots=True)
class Sandbox(Wrapper[v1.GetServerInfoResponse.Sandbox]):
    """The capabilities of the sandbox on the server's machine."""

    tier: SandboxTier
    """The mechanism that enforces the restricted mode: "a" (namespaces, Landlock, seccomp), "b" (Landlock, seccomp) or
    "none"."""
    restricted_available: bool
    """Whether conversations can be in the restricted mode."""
    reason: str
    """Why the tier is not a better one, and what an operator can do about it."""
    landlock_abi: int
    """The version of the kernel's Landlock interface; zero if it has none."""
    hides_server_files: bool
    """Whether tools cannot reach the server's own files in the unrestricted mode either."""
    by_setting: bool
    """Whether the operator chose this tier, so that the machine may be capable of a better one."""
    kernel_bounds_processes: bool
    """Whether the kernel bounds the number of processes of a tool; else the server counts them."""
    kernel_bounds_memory: bool
    """Whether the kernel bounds the memory of all processes of a tool; else the server measures it."""
    workspace_available: bool
    """Whether conversations can be in the workspace mode, in directories that can be a workspace."""
    workspace_reason: str
    """Why they cannot, and what an operator can do about it."""


@dataclass(frozen=True, slots=True)
class Limits(Wrapper[v1.GetServerInfoResponse.Limits]):
    """The limits that clients may run into."""

    max_request_bytes: int
    """Bytes of a request message."""
    max_response_bytes: int
    """Bytes of a response message, pages and batches of events included."""
    max_text_bytes: int
    """Bytes of the text of one message, in UTF-8."""
    max_image_bytes: int
    """Bytes of one image."""
    max_image_pixels: int
    """Pixels of one image, width times height."""
    max_images_per_message: int
    """Images of one message."""
    max_queue_length: int
    """Steers and follow-ups that may wait in one conversation."""
    max_conversations_page_size: int
    """Conversations on one page."""
    max_messages_page_size: int
    """Messages on one page."""
    max_request_cycles_page_size: int
    """Request cycles on one page."""
    max_queue_page_size: int
    """Queued messages on one page."""
    max_recent_messages: int
    """Recent messages in a snapshot."""
    max_model_response_bytes: int
    """Bytes of one response of the model: text, reasoning and input of tool calls together."""
    max_attempts: int
    """Attempts of a request to the model, the first one included."""
    max_rounds_per_run: int
    """Requests to the model in one run."""
    max_sub_agents: int
    """Sub-agents that one call may start."""
    default_sub_agent_turns: int
    """Default number of turns of a sub-agent."""
    default_sub_agent_timeout: timedelta
    """Default time limit of a sub-agent."""
    max_sub_agent_turns: int
    """Maximum turns that a task may ask for."""
    max_sub_agent_timeout: timedelta
    """Maximum time limit that a task may ask for."""
    max_streams: int
    """Streams that may be open on the server at the same time."""
    heartbeat_interval: timedelta
    """The longest time between two events of a stream, heartbeats included."""
    watcher_stall_timeout: timedelta
    """How long a watcher may leave waiting events unread before its stream is ended."""


@dataclass(frozen=True, slots=True)
class McpStdio(Value[v1.McpServer.Stdio]):
    """A program that offers tools over its stdin and stdout."""

    command: tuple[str, ...]
    """The program and its arguments."""
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    """Variables for the program, which are stored and shown as they are: no secrets."""


@dataclass(frozen=True, slots=True)
class McpHttp(Value[v1.McpServer.Http]):
    """A server that offers tools over streamable HTTP."""

    url: str
    """Its URL."""
    headers: dict[str, str] = field(default_factory=dict, hash=False)
    """Headers of every request; values name secrets of the operator: "secret:NAME"."""


@dataclass(frozen=True, slots=True)
class McpServer(Value[v1.McpServer]):
    """A server of tools that speaks the Model Context Protocol: of the operator, or to give to a conversation."""

    name: str
    """Its name; its tools are called ``mcp__{name}__{tool}``."""
    stdio: McpStdio | None = None
    """How it is spoken with, if it is a program."""
    http: McpHttp | None = None
    """How it is spoken with, if it has a URL."""
    read_only_tools: tuple[str, ...] = ()
    """The tools that change nothing, by the server's own names. Only these run in restricted mode."""
    state: McpServerState | Literal[""] = ""
    """What is known of it. Set by the server, as all that follows."""
    error: str = ""
    """Why it failed, or how to log in; empty in other states."""
    tools: tuple[str, ...] = ()
    """The resource names of its tools, as it listed them last."""

    def __post_init__(self) -> None:
        """Create the message. Raises TypeError, whose text names the field."""
        proto = new_message(v1.McpServer, name=self.name, read_only_tools=self.read_only_tools)
        if isinstance(self.stdio, McpStdio):
            proto.stdio.CopyFrom(self.stdio.proto)
        elif isinstance(self.http, McpHttp):
            proto.http.CopyFrom(self.http.proto)
        object.__setattr__(self, "proto", proto)


@dataclass(frozen=True, slots=True)
class Quota(Wrapper[v1.Quota]):
    """A limit of what a principal, or all of them together, may use."""

    principal: str
    """The principal; empty for all together."""
    quota: str
    """Its name, as the server's settings have it: "concurrent_runs", "tokens_per_day" and so on."""
    limit: int
    """How much may be used; costs are in millionths of a dollar. Zero for no limit."""
    used: int
    """How much is used."""
    reset_time: datetime | None
    """When it is counted anew; None if it becomes free by what ends."""


@dataclass(frozen=True, slots=True)
class Node(Wrapper[v1.Node]):
    """A server, from its start to its end, as another one that shares its database sees it, or itself."""

    incarnation: int
    """Its number, which no other node ever has. Zero for a server that has its store to itself."""
    name: str
    """What its operator calls it; empty unless it shares its conversations."""
    address: str
    """Where other nodes reach it, "host:port"; empty if it shares its conversations with no other."""
    version: str
    """The version of its software."""
    draining: bool
    """Whether it is about to stop: it takes no more conversations."""
    active_conversations: int
    """How many conversations it has in memory, as it last said."""
    answering: bool
    """Whether it is the one that was asked."""
    workspaces: tuple[str, ...]
    """The directories that not every node has, but this one: conversations in them are on such nodes only."""


@dataclass(frozen=True, slots=True)
class ServerInfo(Wrapper[v1.GetServerInfoResponse]):
    """The version of a server, what its sandbox can do, and its limits."""

    version: str
    """The version of the server, as in semantic versioning."""
    sandbox: Sandbox
    """The capabilities of its machine's sandbox."""
    limits: Limits
    """The limits that clients may run into."""
    default_model: str
    """The resource name of the default model of conversations; empty if there is none."""
    default_mode: Mode
    """The default mode of conversations."""
    sqlite_version: str
    """The version of the SQLite library of the store; empty if it uses another database."""
    mcp_servers: tuple[McpServer, ...]
    """The MCP servers that the operator has set up."""


@dataclass(frozen=True, slots=True)
class AuditDecision(Wrapper[v1.AuditEntry.Decision]):
    """What was decided about a tool call."""

    tool_use_id: str
    """The id of the call."""
    tool: str
    """The resource name of its tool; empty for the answer of a person."""
    verdict: AuditVerdict
    """What was decided: "run", "ask" or "deny"; "approved" or "denied" by a person."""
    decider: AuditDecider
    """Who or what decided."""
    approval_rules: tuple[str, ...]
    """The resource names of the rules that decided."""


@dataclass(frozen=True, slots=True)
class AuditEntry(Wrapper[v1.AuditEntry]):
    """An entry of the audit trail: an accepted command, what decided about tool calls, or a refused call."""

    time: datetime
    """When it was."""
    outcome: AuditOutcome
    """What became of the call."""
    reason: str
    """Why it was refused; empty for what was accepted."""
    principal: str
    """Who called; empty for a caller without a valid token, and for what no caller asked for."""
    role: str
    """The role by which it was accepted or refused."""
    token: str
    """The id of the token; empty for the server's own user."""
    peer: str
    """The address of the other end, without its port."""
    method: str
    """The name of the call; empty for refusals that were too many to be kept one by one."""
    conversation: str
    """The resource name of the conversation; empty if it was refused before that was found."""
    request_id: str
    """The request id, if the call had one."""
    count: int
    """How many calls the entry stands for."""
    decisions: tuple[AuditDecision, ...]
    """What was decided about tool calls."""
    step: int
    """The step of the conversation's log that holds the entry; 0 for an entry of no log."""
