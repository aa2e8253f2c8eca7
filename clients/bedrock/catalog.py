"""Classes for what a server reports: models, tools, directories, sandbox, limits, quotas, nodes and audit entries."""

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
    "McpToolLeftOut",
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
    """A name to show to people."""
    provider: str
    """The provider that serves the model, by its name in the server's configuration."""
    protocol: ModelProtocol
    """The API protocol in which the server talks to the provider."""
    context_window_tokens: int
    """Maximum tokens of input and output together; zero if unknown."""
    input_limit_tokens: int
    """Maximum tokens of input; zero if no such limit is known."""
    max_output_tokens: int
    """Maximum tokens of one response."""
    usable_window_tokens: int
    """How many tokens of the context window a conversation can use."""
    limits_assumed: bool
    """Whether the token limits of this object are assumed, because the provider did not report them."""
    images: bool
    """Whether the model is sent images: it accepts them, or it is not known whether it does."""
    default: bool
    """Whether new conversations use this model unless they name another."""
    reasoning_efforts: tuple[ReasoningEffort, ...]
    """The values of `Generation.reasoning_effort` that the model accepts."""
    temperature: bool
    """Whether the model accepts `Generation.temperature`."""
    structured_output: bool
    """Whether the provider makes answers fit a run's output schema; if not, the agent submits the value with a tool."""
    images_assumed: bool
    """Whether it is not known if the model accepts images."""


@dataclass(frozen=True, slots=True)
class Tool(Wrapper[v1.Tool]):
    """A tool that agents can call."""

    name: str
    """The resource name, ``tools/{tool}``."""
    description: str
    """The description that the model gets."""
    input_schema: dict[str, Any] = field(hash=False)
    """The JSON Schema of the tool's input."""
    modes: tuple[Mode, ...]
    """The modes in which the tool works; calls in other modes fail."""
    group: ToolGroup
    """The kind of work that the tool does."""
    retry_safe: bool
    """Whether the server may repeat a call after a technical failure; true only for tools that change nothing."""
    requires_approval: bool
    """Whether calls need approval under every approval policy."""
    writes: bool
    """Whether the tool can change something, so that the approval policy "ask_writes" applies to it."""
    audience: ToolAudience
    """The agents that are offered the tool: "all", "top_level" or "sub_agent"."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry(Wrapper[v1.BrowseDirectoryResponse.Entry]):
    """A file, a directory or something else in the directory that was listed."""

    name: str
    """The name, without the path."""
    directory: bool
    """Whether this is a directory, or a symbolic link to a directory."""


@dataclass(frozen=True, slots=True)
class DirectoryListing(Wrapper[v1.BrowseDirectoryResponse]):
    """The content of a directory on the server's machine."""

    path: str
    """The absolute path of the directory, with symbolic links resolved."""
    entries: tuple[DirectoryEntry, ...]
    """The entries of the directory: directories first, then all others, both sorted by name."""
    truncated: bool
    """Whether the directory has more than 100,000 entries; `entries` then contains only that many."""


@dataclass(frozen=True, slots=True)
class Sandbox(Wrapper[v1.GetServerInfoResponse.Sandbox]):
    """The capabilities of the sandbox on the server's machine."""

    tier: SandboxTier
    """The mechanism that enforces the restricted mode: "a" (namespaces, Landlock, seccomp), "b" (Landlock, seccomp) or
    "none"."""
    restricted_available: bool
    """Whether conversations can use the restricted mode."""
    reason: str
    """Why the sandbox has no better tier, and what an operator can do about it."""
    landlock_abi: int
    """The version of the kernel's Landlock interface; zero if it has none."""
    hides_server_files: bool
    """Whether the server's own files are hidden from tools even in the unrestricted mode."""
    by_setting: bool
    """Whether a setting of the operator chose this tier; the machine may then support a better one."""
    kernel_bounds_processes: bool
    """Whether the kernel limits the number of a tool's processes; if not, the server counts them."""
    kernel_bounds_memory: bool
    """Whether the kernel limits the memory of all processes of a tool; if not, the server measures it."""
    workspace_available: bool
    """Whether conversations can use the workspace mode. For some directories it is refused even then."""
    workspace_reason: str
    """Why the workspace mode is not available, and what an operator can do about it."""


@dataclass(frozen=True, slots=True)
class Limits(Wrapper[v1.GetServerInfoResponse.Limits]):
    """The limits that clients may run into."""

    max_request_bytes: int
    """Maximum size of a request message in bytes."""
    max_response_bytes: int
    """Maximum size of a response message in bytes; pages and batches of events count as one message."""
    max_text_bytes: int
    """Maximum size of one message's text, in bytes of UTF-8."""
    max_image_bytes: int
    """Maximum size of one image in bytes."""
    max_image_pixels: int
    """Maximum pixels of one image, width times height."""
    max_images_per_message: int
    """Maximum number of images in one message."""
    max_queue_length: int
    """Maximum number of messages that wait in one conversation's queue."""
    max_conversations_page_size: int
    """Maximum number of conversations on one page."""
    max_messages_page_size: int
    """Maximum number of messages on one page."""
    max_request_cycles_page_size: int
    """Maximum number of request cycles on one page."""
    max_queue_page_size: int
    """Maximum number of queued messages on one page."""
    max_recent_messages: int
    """Maximum number of recent messages in a snapshot."""
    max_model_response_bytes: int
    """Maximum size of one model response in bytes: text, reasoning and input of tool calls together."""
    max_attempts: int
    """Maximum number of attempts of one request to the model, the first attempt included."""
    max_rounds_per_run: int
    """Maximum number of requests to the model in one run."""
    max_sub_agents: int
    """Maximum number of sub-agents that one call starts."""
    default_sub_agent_turns: int
    """Default number of turns of a sub-agent."""
    default_sub_agent_timeout: timedelta
    """Default time limit of a sub-agent."""
    max_sub_agent_turns: int
    """Maximum number of turns that the task of a sub-agent may ask for."""
    max_sub_agent_timeout: timedelta
    """Maximum time limit that the task of a sub-agent may ask for."""
    max_streams: int
    """Maximum number of streams that are open on the server at the same time."""
    heartbeat_interval: timedelta
    """The longest time between two events of a stream; heartbeats count as events."""
    watcher_stall_timeout: timedelta
    """How long a client may leave events of a stream unread before the server ends the stream."""


@dataclass(frozen=True, slots=True)
class McpStdio(Value[v1.McpServer.Stdio]):
    """How to start an MCP server that is a program: it offers tools over its stdin and stdout."""

    command: tuple[str, ...]
    """The program and its arguments."""
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    """Environment variables for the program. The server stores and shows the values in the clear: no secrets here."""


@dataclass(frozen=True, slots=True)
class McpHttp(Value[v1.McpServer.Http]):
    """How to reach an MCP server over streamable HTTP."""

    url: str
    """The server's URL."""
    headers: dict[str, str] = field(default_factory=dict, hash=False)
    """Headers of every request. A value "secret:NAME" stands for the operator's secret of that name."""


@dataclass(frozen=True, slots=True)
class McpToolLeftOut(Wrapper[v1.McpServer.ToolLeftOut]):
    """A tool that an MCP server lists, but that agents are not offered."""

    name: str
    """The name that the MCP server gives to the tool, shortened; empty if it gives none."""
    reason: str
    """Why agents are not offered the tool."""


@dataclass(frozen=True, slots=True)
class McpServer(Value[v1.McpServer]):
    """A server that offers tools by the Model Context Protocol, set up by the operator or for one conversation."""

    name: str
    """The server's name. Agents see its tools as ``mcp__{name}__{tool}``, with a dot in `tool` as ``_x2e_``."""
    stdio: McpStdio | None = None
    """How to start the server, if it is a program."""
    http: McpHttp | None = None
    """How to reach the server, if it has a URL."""
    read_only_tools: tuple[str, ...] = ()
    """The tools that change nothing, by the MCP server's own names. Only these tools run in restricted mode."""
    state: McpServerState | Literal[""] = ""
    """The state of the connection. Set by the Bedrock server, like `error` and `tools`."""
    error: str = ""
    """Why the connection failed, or how to log in; empty in other states."""
    tools: tuple[str, ...] = ()
    """The resource names of the tools that the MCP server listed last."""
    tools_left_out: tuple[McpToolLeftOut, ...] = ()
    """The tools that the MCP server listed last, but that agents are not offered; at most 128."""

    def __post_init__(self) -> None:
        """Check the values and set `proto`. Raises TypeError if a value has a wrong type; the text names the field."""
        proto = new_message(v1.McpServer, name=self.name, read_only_tools=self.read_only_tools)
        if isinstance(self.stdio, McpStdio):
            proto.stdio.CopyFrom(self.stdio.proto)
        elif isinstance(self.http, McpHttp):
            proto.http.CopyFrom(self.http.proto)
        object.__setattr__(self, "proto", proto)


@dataclass(frozen=True, slots=True)
class Quota(Wrapper[v1.Quota]):
    """A limit on what one principal (a user of the server), or all principals together, may use."""

    principal: str
    """The name of the principal; empty if the quota is for all principals together."""
    quota: str
    """The name of the quota in the server's settings: "concurrent_runs", "tokens_per_day" and so on."""
    limit: int
    """The maximum; for costs in millionths of a dollar. Zero means that there is no limit."""
    used: int
    """How much is used at present, in the unit of `limit`."""
    reset_time: datetime | None
    """When usage is counted from zero again; None for a quota without a period, such as "concurrent_runs"."""


@dataclass(frozen=True, slots=True)
class Node(Wrapper[v1.Node]):
    """A server process, from its start to its end, among the servers that share one database."""

    incarnation: int
    """A number that no other node ever has. Zero for a server that shares its database with no other."""
    name: str
    """The operator's name for the server; empty if the server shares its database with no other."""
    address: str
    """The address for other nodes, "host:port"; empty if the server shares its database with no other."""
    version: str
    """The version of the server's software."""
    draining: bool
    """Whether the server is about to stop, and takes over no more conversations."""
    active_conversations: int
    """The number of conversations in the server's memory, as the server last reported."""
    answering: bool
    """Whether this is the server that answered the call."""
    workspaces: tuple[str, ...]
    """Directories that this node has and other nodes may lack.

    Only nodes that have a directory serve conversations in it.
    """


@dataclass(frozen=True, slots=True)
class ServerInfo(Wrapper[v1.GetServerInfoResponse]):
    """The version of a server, what its sandbox can do, and its limits."""

    version: str
    """The version of the server, as in semantic versioning."""
    sandbox: Sandbox
    """The capabilities of the sandbox on the server's machine."""
    limits: Limits
    """The limits that clients may run into."""
    default_model: str
    """The resource name of the default model of conversations; empty if there is none."""
    default_mode: Mode
    """The default mode of conversations."""
    sqlite_version: str
    """The version of the SQLite library that the server uses; empty if the server uses another database."""
    mcp_servers: tuple[McpServer, ...]
    """The MCP servers that the operator has set up."""
    ends_when_unused: bool
    """Whether the server ends by itself once no client is connected and no run is open; background jobs end with it."""


@dataclass(frozen=True, slots=True)
class AuditDecision(Wrapper[v1.AuditEntry.Decision]):
    """A decision about a tool call."""

    tool_use_id: str
    """The id of the call."""
    tool: str
    """The resource name of the call's tool; empty if a person decided."""
    verdict: AuditVerdict
    """The decision: "run", "ask" or "deny"; or "approved" or "denied" by a person."""
    decider: AuditDecider
    """Who decided: "rules" (the approval rules), "policy" (the approval policy) or "person"."""
    approval_rules: tuple[str, ...]
    """The resource names of the rules that decided."""


@dataclass(frozen=True, slots=True)
class AuditEntry(Wrapper[v1.AuditEntry]):
    """An entry of the audit trail: an accepted command, decisions about tool calls, or a refused call."""

    time: datetime
    """When the entry was made."""
    outcome: AuditOutcome
    """Whether the call was accepted or refused."""
    reason: str
    """Why the call was refused; empty if it was accepted."""
    principal: str
    """The principal who called; empty for a caller without a valid token, or if no caller was involved."""
    role: str
    """The caller's role, by which the call was accepted or refused."""
    token: str
    """The id of the caller's token; empty for the user that the server runs as."""
    peer: str
    """The caller's address, without the port."""
    method: str
    """The name of the gRPC method; empty if no caller was involved, or if the entry only counts refused calls."""
    conversation: str
    """The resource name of the conversation; empty if the call was refused before the conversation was looked up."""
    request_id: str
    """The call's request id (idempotency key); empty if it had none."""
    count: int
    """The number of calls that the entry stands for: refusals for the same reason within a minute share an entry."""
    decisions: tuple[AuditDecision, ...]
    """The decisions about tool calls."""
    step: int
    """The number of the log step that contains the entry; 0 if the entry is not from a conversation's log."""
