"""The CatalogService of the gRPC API: lists models, tools, nodes, quotas, directories and limits of this server."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any, TypeAlias

import grpc.aio
from bedrock import v1
from google.protobuf.duration_pb2 import Duration

from actors.core.context import BY_WIDTH, Limits, Mode, ToolGroup
from actors.ports import MAX_MODEL_RESPONSE_BYTES, CancelToken, ModelInfo, SandboxReport, Toolbox, ToolSpec
from actors.ports.cluster import Node
from actors.ports.tools import McpServerStatus
from actors.runtime.quotas import TOGETHER, QuotaUse
from actors.runtime.services import Services
from server.auth.authentication import caller
from server.auth.principals import Role
from server.contract import limits
from server.contract import resource_names as names
from server.contract.errors import ConversationNotFoundError
from server.contract.pagination import page_of
from server.queries.listings import browse_directory
from server.queries.read_pool import ReadPool
from server.streams.base import WatchSettings
from server.wire.conversation_messages import mcp_server
from server.wire.messages import MODE, REASONING_EFFORT, TOOL_GROUP, duration, struct_of

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_PROTOCOLS = {
    name.removeprefix("PROTOCOL_").lower().replace("_", "-"): number for name, number in v1.Model.Protocol.items()
}
_TIERS = {
    "A": v1.GetServerInfoResponse.Sandbox.TIER_A,
    "B": v1.GetServerInfoResponse.Sandbox.TIER_B,
    "none": v1.GetServerInfoResponse.Sandbox.TIER_NONE,
}


class CatalogService(v1.CatalogServiceServicer):
    def __init__(
        self,
        services: Services,
        reads: ReadPool,
        watching: WatchSettings,
        *,
        shared: bool,
        sqlite_version: str,
        ends_when_unused: bool,
    ) -> None:
        """`shared`: nodes share the database. `ends_when_unused`: the server stops once it has no clients."""
        report = services.sandbox.report
        self._services = services
        self._models = services.models
        self._permissions = services.permissions
        self._shared = shared
        self._reads = reads
        self._tools = tools(services.toolbox)
        self._info = v1.GetServerInfoResponse(
            sandbox=_sandbox(report),
            limits=_limits(services.limits, watching),
            default_mode=MODE[Mode.RESTRICTED if report.restriction_available else Mode.UNRESTRICTED],
            sqlite_version=sqlite_version,
            ends_when_unused=ends_when_unused,
        )

    async def ListModels(self, request: v1.ListModelsRequest, context: Context) -> v1.ListModelsResponse:
        models, more = page_of(await self._offered(), _name, request, limits.CATALOG_PAGE, "models")
        return v1.ListModelsResponse(models=models, next_page_token=more)

    async def GetModel(self, request: v1.GetModelRequest, context: Context) -> v1.GetModelResponse:
        await asyncio.to_thread(self._models.measure, request.name.removeprefix("models/"), CancelToken())
        found = next((each for each in await self._offered() if each.name == request.name), None)
        if found is None:
            raise ConversationNotFoundError(request.name)
        return v1.GetModelResponse(model=found)

    async def _offered(self) -> list[v1.Model]:
        # Runs on its own thread instead of the small pool for reads, because a provider may take seconds to
        # answer.
        await asyncio.to_thread(self._models.learn, "", CancelToken())
        infos = await self._reads(self._models.list)
        default = self._models.default
        allowed = self._permissions(caller.get().principal)
        ordered = sorted((info for info in infos if allowed.allows_model(info.name)), key=lambda info: info.name)
        return [model(info, default) for info in ordered]

    async def ListTools(self, request: v1.ListToolsRequest, context: Context) -> v1.ListToolsResponse:
        tools, more = page_of(self._all_tools(), _name, request, limits.CATALOG_PAGE, "tools")
        return v1.ListToolsResponse(tools=tools, next_page_token=more)

    async def GetTool(self, request: v1.GetToolRequest, context: Context) -> v1.GetToolResponse:
        found = next((each for each in self._all_tools() if each.name == request.name), None)
        if found is None:
            raise ConversationNotFoundError(request.name)
        return v1.GetToolResponse(tool=found)

    def _all_tools(self) -> list[v1.Tool]:
        of_servers = [_mcp_tool(server, spec) for server in self._mcp_servers() for spec in server.tools]
        return sorted((*self._tools, *of_servers), key=lambda tool: tool.name)

    def _mcp_servers(self) -> list[McpServerStatus]:
        principal = caller.get().principal
        allowed = self._permissions(principal)
        return [status for status in self._services.mcp.statuses(principal) if allowed.allows_mcp_server(status.name)]

    async def BrowseDirectory(self, request: v1.BrowseDirectoryRequest, context: Context) -> v1.BrowseDirectoryResponse:
        roots = self._permissions(caller.get().principal).roots
        return await self._reads.long(browse_directory, self._services.workspace, request, roots)

    async def GetServerInfo(self, request: v1.GetServerInfoRequest, context: Context) -> v1.GetServerInfoResponse:
        answer = v1.GetServerInfoResponse()
        answer.CopyFrom(self._info)
        answer.version = await self._reads(version)
        answer.principal, answer.role = caller.get().principal, caller.get().role
        allowed = self._permissions(caller.get().principal)
        if refusal := allowed.refusal(Mode.WORKSPACE):
            answer.sandbox.workspace_available = False
            answer.sandbox.workspace_reason = refusal
        told = mcp_server if caller.get().role is Role.OPERATOR else mcp_server_without_place
        answer.mcp_servers.extend(map(told, self._mcp_servers()))
        if self._models.undecided(self._models.default):
            await asyncio.to_thread(self._models.learn, self._models.default, CancelToken())
        default = self._models.default
        if not allowed.allows_model(default):
            default = ""
        answer.default_model = names.model(default) if default else ""
        return answer

    async def GetQuotas(self, request: v1.GetQuotasRequest, context: Context) -> v1.GetQuotasResponse:
        who = caller.get()
        every = who.role is Role.OPERATOR
        principals = (TOGETHER, *self._services.quotas.known_principals()) if every else (who.principal,)
        quotas = self._services.quotas
        uses = await self._reads.long(lambda: [use for whose in principals for use in quotas.uses(whose)])
        return v1.GetQuotasResponse(quotas=map(_quota, uses))

    async def ListNodes(self, request: v1.ListNodesRequest, context: Context) -> v1.ListNodesResponse:
        living = sorted(self._services.cluster.nodes(), key=lambda node: node.incarnation)
        me = self._services.cluster.me.incarnation
        own_version = await self._reads(version)
        shown = [_node(each, me, own_version, shared=self._shared) for each in living]
        nodes, more = page_of(shown, _started, request, limits.CATALOG_PAGE, "nodes")
        return v1.ListNodesResponse(nodes=nodes, next_page_token=more)


def _node(node: Node, me: int, own_version: str, *, shared: bool) -> v1.Node:
    """A node as an API message. Without a shared database, its name and address are placeholders, and are left out."""
    answering = node.incarnation == me
    return v1.Node(
        incarnation=node.incarnation,
        name=node.name if shared else "",
        address=node.address if shared else "",
        version=own_version if answering else node.version,
        draining=node.draining,
        active_conversations=node.active,
        answering=answering,
        workspaces=sorted(node.labels) if shared else [],
    )


def _started(node: v1.Node) -> str:
    return f"{node.incarnation:020}"


def _quota(use: QuotaUse) -> v1.Quota:
    shown = v1.Quota(principal=use.principal, quota=use.quota, limit=use.limit, used=use.used)
    if use.resets_at:
        shown.reset_time.FromMilliseconds(use.resets_at)
    return shown


def _name(shown: v1.Model | v1.Tool) -> str:
    return shown.name


def mcp_server_without_place(status: McpServerStatus) -> v1.McpServer:
    server = mcp_server(status)
    server.ClearField("transport")
    server.ClearField("error")
    return server


def model(info: ModelInfo, default: str) -> v1.Model:
    return v1.Model(
        name=names.model(info.name),
        display_name=info.display_name,
        provider=info.provider,
        protocol=_PROTOCOLS.get(info.protocol, v1.Model.PROTOCOL_UNSPECIFIED),
        context_window_tokens=info.context_window,
        max_output_tokens=info.max_output,
        usable_window_tokens=info.usable_window,
        limits_assumed=not info.known,
        images=info.images,
        images_assumed=info.images_assumed,
        default=info.name == default,
        reasoning_efforts=[REASONING_EFFORT[effort] for effort in info.reasoning_efforts],
        temperature=info.temperature,
        structured_output=info.structured_output,
    )


def tools(toolbox: Toolbox) -> list[v1.Tool]:
    """All built-in tools, ordered by name. Each names its audience: top-level agents, sub-agents or both."""
    for_people = {spec.name: spec for spec in toolbox.specs(sub_agent=False)}
    for_agents = {spec.name: spec for spec in toolbox.specs(sub_agent=True)}
    both = for_people | for_agents
    return [_tool(both[name], name in for_people, name in for_agents) for name in sorted(both)]


def _mcp_tool(server: McpServerStatus, spec: ToolSpec) -> v1.Tool:
    tool = _tool(spec, True, False)
    if spec.traits.writes:
        tool.modes[:] = [v1.MODE_UNRESTRICTED] if server.url else [v1.MODE_WORKSPACE, v1.MODE_UNRESTRICTED]
    return tool


def _tool(spec: ToolSpec, for_people: bool, for_agents: bool) -> v1.Tool:
    traits = spec.traits
    modes = [mode for mode in BY_WIDTH if traits.group is not ToolGroup.WRITE or mode is not Mode.RESTRICTED]
    audience = v1.Tool.AUDIENCE_TOP_LEVEL if for_people else v1.Tool.AUDIENCE_SUB_AGENT
    return v1.Tool(
        name=names.tool(spec.name),
        description=spec.description,
        input_schema=struct_of(spec.input_schema),
        modes=[MODE[mode] for mode in modes],
        group=TOOL_GROUP[traits.group],
        retry_safe=traits.retry_safe,
        requires_approval=traits.always_asks,
        writes=traits.writes,
        audience=v1.Tool.AUDIENCE_ALL if for_people and for_agents else audience,
    )


def _sandbox(report: SandboxReport) -> v1.GetServerInfoResponse.Sandbox:
    return v1.GetServerInfoResponse.Sandbox(
        tier=_TIERS.get(report.tier, v1.GetServerInfoResponse.Sandbox.TIER_UNSPECIFIED),
        restricted_available=report.restriction_available,
        reason=report.reason,
        landlock_abi=report.landlock_abi,
        hides_server_files=report.hides_protected,
        by_setting=report.by_setting,
        kernel_bounds_processes=report.kernel_bounds_processes,
        kernel_bounds_memory=report.kernel_bounds_memory,
        workspace_available=report.workspace_available,
        workspace_reason=report.workspace_reason,
    )


def _limits(bounds: Limits, watching: WatchSettings) -> v1.GetServerInfoResponse.Limits:
    return v1.GetServerInfoResponse.Limits(
        max_request_bytes=limits.MAX_REQUEST_BYTES,
        max_response_bytes=limits.MAX_RESPONSE_BYTES,
        max_text_bytes=limits.MAX_TEXT_BYTES,
        max_image_bytes=limits.MAX_IMAGE_BYTES,
        max_image_pixels=limits.MAX_IMAGE_PIXELS,
        max_images_per_message=limits.MAX_IMAGES_PER_MESSAGE,
        max_queue_length=bounds.max_queue,
        max_conversations_page_size=limits.CONVERSATIONS_PAGE[1],
        max_messages_page_size=limits.MESSAGES_PAGE[1],
        max_request_cycles_page_size=limits.CYCLES_PAGE[1],
        max_queue_page_size=limits.QUEUE_PAGE[1],
        max_recent_messages=limits.RECENT_MESSAGES[1],
        max_model_response_bytes=MAX_MODEL_RESPONSE_BYTES,
        max_attempts=bounds.max_attempts,
        max_rounds_per_run=bounds.max_rounds,
        max_sub_agents=limits.SUB_AGENTS.per_call,
        default_sub_agent_turns=bounds.max_turns,
        default_sub_agent_timeout=duration(limits.SUB_AGENTS.timeout_ms),
        max_sub_agent_turns=limits.SUB_AGENTS.max_turns,
        max_sub_agent_timeout=duration(limits.SUB_AGENTS.max_timeout_ms),
        max_streams=watching.max_streams,
        heartbeat_interval=_seconds(watching.heartbeat_seconds),
        watcher_stall_timeout=_seconds(watching.stall_seconds),
    )


def _seconds(value: float) -> Duration:
    return Duration(seconds=int(value), nanos=round(value % 1 * 1e9))


@cache
def version() -> str:
    """The version of the installed application; "0" if it is not installed."""
    from importlib import metadata  # noqa: PLC0415 -- takes 20 ms, which startup need not wait for

    try:
        return metadata.version("phoenix-bedrock")
    except metadata.PackageNotFoundError:
        return "0"
