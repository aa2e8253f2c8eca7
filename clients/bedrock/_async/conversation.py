"""`AsyncConversation`: one conversation on the server, as an object whose methods call the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1
from bedrock._async.conversation_parts.decisions import AsyncConversationDecisions
from bedrock._async.conversation_parts.function_tools import AsyncConversationTools
from bedrock._async.conversation_parts.records import AsyncConversationRecords
from bedrock._async.conversation_parts.runs import AsyncConversationRuns
from bedrock._shared import requests
from bedrock._shared.enum_names import enum_value
from bedrock.conversations import Budget, ClientTool, ConversationInfo, Generation, SetModeResult
from bedrock.errors import NotForkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bedrock.catalog import McpServer
    from bedrock.request_cycles import RequestCycle
    from bedrock.types import ApprovalPolicy, FollowUpPolicy, Mode

__all__ = ["AsyncConversation"]


class AsyncConversation(
    AsyncConversationRuns, AsyncConversationRecords, AsyncConversationDecisions, AsyncConversationTools
):
    """One conversation. The object holds the conversation's name and the functions of its tools, and caches nothing.

    Most methods call the server. `timeout` is the number of seconds after which a call raises DeadlineExceeded; if
    None, the client's time limit holds. Iterators apply it to each page. Streams apply it to the whole stream, and have
    no time limit if it is None.
    """

    async def set_mode(self, mode: Mode, *, stop_running: bool = False, timeout: float | None = None) -> SetModeResult:
        """Set what later tool calls may do: "restricted", "workspace" or "unrestricted".

        What already runs with wider rights keeps running: the result lists the running tool call in
        `surviving_tool_use_ids`, background jobs in `surviving_jobs`, and MCP servers whose programs run in
        `surviving_mcp_servers`. With `stop_running`, all of these are ended instead, and the run continues without the
        call.

        Raises:
            ModeUnavailable: The server cannot enforce this mode, or a setting disables it.
        """
        request = v1.SetModeRequest(name=self.name, mode=enum_value(v1.Mode, mode), stop_running=stop_running)
        response = await self._transport.call(self._stub.SetMode, request, timeout)
        return SetModeResult.from_proto(response)

    async def update(
        self,
        *,
        slug: str | None = None,
        title: str | None = None,
        model: str | None = None,
        labels: Mapping[str, str] | None = None,
        approval_policy: ApprovalPolicy | None = None,
        follow_up_policy: FollowUpPolicy | None = None,
        budget: Budget | None = None,
        client_tools: Sequence[ClientTool] | None = None,
        allow_unoffered: bool = False,
        generation: Generation | None = None,
        merge_generation: bool = False,
        mcp_servers: Sequence[McpServer] | None = None,
        auto_continue: bool | None = None,
        etag: str = "",
        timeout: float | None = None,
    ) -> ConversationInfo:
        """Change the given settings; None leaves a setting unchanged. Return the changed conversation.

        `generation` replaces all earlier generation settings; with `merge_generation`, those that it does not mention
        are kept. `allow_unoffered` permits `client_tools` that the conversation's mode does not offer to the agent;
        `unoffered_tools` of the result lists them.

        Raises:
            Aborted: The `etag` is given and outdated.
            ToolNotOffered: The mode does not offer one of `client_tools`; nothing was changed.
            AgentBusy: The model, the tools of clients and the MCP servers cannot be changed during a run.
            GenerationUnsupported: The model cannot do what `generation` asks for.
        """
        request = requests.update(
            self.name,
            slug=slug,
            title=title,
            model=model,
            labels=labels,
            approval_policy=approval_policy,
            follow_up_policy=follow_up_policy,
            budget=budget,
            client_tools=client_tools,
            allow_unoffered=allow_unoffered,
            generation=generation,
            merge_generation=merge_generation,
            mcp_servers=mcp_servers,
            auto_continue=auto_continue,
            etag=etag,
        )
        response = await self._transport.call(self._stub.UpdateConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    async def archive(self, *, timeout: float | None = None) -> ConversationInfo:
        """Archive the conversation, so that the list of active conversations omits it."""
        request = v1.ArchiveConversationRequest(name=self.name)
        response = await self._transport.call(self._stub.ArchiveConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    async def unarchive(self, *, timeout: float | None = None) -> ConversationInfo:
        """Undo `archive`: put the conversation back on the list of active ones."""
        request = v1.UnarchiveConversationRequest(name=self.name)
        response = await self._transport.call(self._stub.UnarchiveConversation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    async def delete(
        self, *, force: bool = False, missing_ok: bool = False, etag: str = "", timeout: float | None = None
    ) -> list[str]:
        """Delete the conversation and everything that belongs to it, and return warnings, usually none.

        Args:
            force: Cancel a run in progress first.
            missing_ok: Succeed if the conversation does not exist.
            etag: Delete only if the conversation has this `etag`; without this condition if empty.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            Aborted: The `etag` is given and outdated.
            AgentBusy: A run is in progress, and `force` is False.
            NotFound: The conversation does not exist, and `missing_ok` is False.
        """
        request = v1.DeleteConversationRequest(name=self.name, force=force, allow_missing=missing_ok, etag=etag)
        response = await self._transport.call(self._stub.DeleteConversation, request, timeout)
        return list(response.warnings)

    async def trigger_continuation(self, *, timeout: float | None = None) -> ConversationInfo:
        """Make the server write the summary with which a successor begins; `continue_` returns the successor then.

        The call does not wait for the summary. If none is written, the conversation gets a message of the role "error"
        that says why, and stays as it was, unless its context is full.
        """
        request = v1.TriggerContinuationRequest(name=self.name)
        response = await self._transport.call(self._stub.TriggerContinuation, request, timeout)
        return ConversationInfo.from_proto(response.conversation)

    async def continue_(
        self, *, include_summary: bool = True, request_id: str | None = None, timeout: float | None = None
    ) -> AsyncConversation:
        """Return the successor of a conversation whose context is used up. The first call creates the successor.

        With `include_summary` the successor begins with the summary of this conversation. Raises NotExhausted if the
        context is not used up.
        """
        request = v1.ContinueConversationRequest(
            name=self.name, include_summary=include_summary, request_id=request_id or requests.new_request_id()
        )
        response = await self._transport.call(self._stub.ContinueConversation, request, timeout)
        return AsyncConversation(self._transport, response.conversation.name)

    async def fork(
        self,
        at: RequestCycle | str = "",
        *,
        slug: str = "",
        title: str = "",
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> AsyncConversation:
        """Create a conversation with the history of this one up to the end of a request cycle.

        A request cycle is a message that started a run, and everything done for it. The new conversation has the same
        settings, and is independent of this one. Files stay as they are now. Queued messages, open questions and
        background jobs are not copied.

        Args:
            at: The last request cycle of the fork, or its name or id; the last one that has ended if empty.
            slug: The slug of the fork; generated if empty.
            title: The title of the fork; that of this conversation if empty.
            request_id: The id to reuse if this call is repeated; generated if None.
            timeout: Time limit of this call in seconds; the client's if None.

        Raises:
            CycleRunning: The cycle that `at` names has not ended.
            NotForkable: No cycle has ended, or the context was full or used up at the end of that cycle.
            SubAgent: This conversation belongs to a sub-agent.
            InvalidArgument: There is no such cycle.
        """
        request = v1.ForkConversationRequest(
            name=self.name,
            request_cycle=requests.cycle_name(self.name, at),
            slug=slug,
            title=title,
            request_id=request_id or requests.new_request_id(),
        )
        response = await self._transport.call(self._stub.ForkConversation, request, timeout)
        return AsyncConversation(self._transport, response.conversation.name)

    async def rewind(
        self, cycles: int = 1, *, slug: str = "", title: str = "", timeout: float | None = None
    ) -> AsyncConversation:
        """Create a fork without the last `cycles` request cycles, counting one that is still in progress.

        This conversation and its files stay as they are. The arguments and the errors raised are those of `fork`.

        Raises:
            NotForkable: The fork would have no request cycle.
        """
        found = 0
        async for cycle in self.cycles(newest_first=True, timeout=timeout):
            if found == cycles:
                return await self.fork(cycle, slug=slug, title=title, timeout=timeout)
            found += 1
        text = f"nothing would be left: the conversation has only {found} request cycle{'' if found == 1 else 's'}"
        raise NotForkable(text, reason="NOT_FORKABLE")
