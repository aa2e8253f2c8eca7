# Generated from clients/bedrock/_async/client.py by `make client-sync`; edit that file.
"""`Client`: the connection to a server, and all calls that do not belong to one particular conversation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from bedrock import v1
from bedrock._shared import requests
from bedrock._shared.deadline import Deadline
from bedrock._shared.function_tools import tool_function
from bedrock._shared.run_progress import QuestionPolicy
from bedrock._shared.settings import resolve
from bedrock._shared.wrapper import check_list, resource_name
from bedrock._sync.conversation import Conversation
from bedrock._sync.run import ask
from bedrock._sync.sending import fitting
from bedrock._sync.transport import Transport
from bedrock.answers import Answer, OnApproval, OnQuestion, decider
from bedrock.catalog import AuditEntry, DirectoryListing, McpServer, Model, Node, Quota, ServerInfo, Tool
from bedrock.conversations import Budget, ClientTool, ConversationInfo, ConversationListEvent, Generation, Instructions
from bedrock.errors import BedrockError
from bedrock.states import Approval, Question
from bedrock.streams import Closing, Stream
from bedrock.types import ApprovalPolicy, AuditOutcome, FollowUpPolicy, Mode

__all__ = ["Client"]

Response = TypeVar("Response")
PageT = TypeVar("PageT", bound=requests.Page)


class Client(Closing):
    """A connection to a Bedrock server. May be used from several threads. Close it when done.

    The `timeout` of a method is the time limit for its call in seconds. It overrides the client's time limit.

    Example::

        with Client() as client:
            conversation = client.create(working_directory=".")
            for event in conversation.send("What is in this directory?"):
                if event.kind == "text_delta":
                    print(event.text, end="")
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        certificate_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        reconnect_for: float = 300.0,
        on_disconnect: Callable[[BedrockError, float], None] | None = None,
    ) -> None:
        """Prepare the connection, which the first call opens.

        Args:
            address: ``host:port``, ``https://host:port`` or ``unix:/path``. Default: the environment variable
                BEDROCK_ADDRESS or, if it is not set, the Unix socket of a server that this user runs on this machine.
            token: The bearer token. Default: the environment variable BEDROCK_TOKEN or, if it is not set, the token in
                the data directory of a server on this machine. The latter is sent through that server's Unix socket
                only.
            ca_file: A file with the CA certificates to trust instead of the system's (PEM). Default: BEDROCK_CA_FILE.
            certificate_file: The client's own certificate with its chain (PEM), for a server that asks for one.
                Default: BEDROCK_CERTIFICATE_FILE.
            key_file: The private key of `certificate_file` (PEM). Default: BEDROCK_KEY_FILE.
            timeout: Seconds that one call may take. Streams of events have no time limit.
            reconnect_for: How many seconds to keep retrying a broken stream of events before raising its error.
            on_disconnect: A function to call when a stream of events has broken and will be resumed. It gets the error
                and the number of seconds until the next attempt. The iteration over the stream waits until the function
                returns.

        Raises:
            Misconfigured: The token would be sent in the clear to another machine, a file cannot be read, or other
                users may have written the files of the server on this machine. If no server is running, the calls
                raise ServerNotRunning.
        """
        self._transport = Transport(
            partial(resolve, address, token, ca_file, certificate_file=certificate_file, key_file=key_file),
            timeout=timeout,
            reconnect_for=reconnect_for,
            on_disconnect=on_disconnect,
        )
        self.conversations_stub = self._transport.conversations
        """The gRPC stub of ConversationService, for calls that this class does not offer."""
        self.catalog_stub = self._transport.catalog
        """The gRPC stub of CatalogService, for calls that this class does not offer."""

    @property
    def address(self) -> str:
        """The address of the server; empty until a server is found."""
        return self._transport.address

    @property
    def on_disconnect(self) -> Callable[[BedrockError, float], None] | None:
        """The function called before each attempt to resume a broken stream of events; can be replaced."""
        return self._transport.on_disconnect

    @on_disconnect.setter
    def on_disconnect(self, callback: Callable[[BedrockError, float], None] | None) -> None:
        self._transport.on_disconnect = callback

    def close(self) -> None:
        """Close the connection and end every stream of events that is still open. Runs continue on the server."""
        self._transport.close()

    def create(
        self,
        working_directory: str | os.PathLike[str] | None = None,
        *,
        model: str | None = None,
        slug: str = "",
        title: str = "",
        mode: Mode | None = None,
        approval_policy: ApprovalPolicy | None = None,
        follow_up_policy: FollowUpPolicy | None = None,
        labels: Mapping[str, str] | None = None,
        budget: Budget | None = None,
        instructions: str | Instructions | None = None,
        tools: Sequence[str] | None = None,
        client_tools: Sequence[ClientTool | Callable[..., Any]] = (),
        generation: Generation | None = None,
        allow_unoffered: bool = False,
        mcp_servers: Sequence[McpServer] = (),
        auto_continue: bool = False,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> Conversation:
        """Create a conversation. The agent does nothing until a message is sent.

        Args:
            working_directory: A directory on the server's machine; this process's current directory if None.
            model: The model of the agent; the server's default if None.
            slug: A readable handle; generated if empty.
            title: A title to show to users.
            mode: "restricted", "workspace" or "unrestricted". If None, "restricted" is used, or "unrestricted" if the
                server cannot enforce "restricted".
            approval_policy: "auto", "ask_writes" or "ask_all"; the server's default if None.
            follow_up_policy: "always" or "completed_only"; the server's default if None.
            labels: Keys and values for the caller's own use.
            budget: Limits on tokens and cost; no limits if None.
            instructions: What to tell the agent in addition to the server's own prompt; an `Instructions` object can
                replace that prompt instead. Cannot be changed later.
            tools: The names of the tools to offer to the agent, from those that the method `tools` lists; all if None.
                Cannot be changed later.
            client_tools: Tools that clients run for the agent: `ClientTool` declarations, or functions of this program,
                which become tools as `Conversation.tool` describes.
            generation: How the model should answer; the model's defaults if None.
            allow_unoffered: Whether to create the conversation even if its mode keeps some of `client_tools` from the
                agent, as restricted mode does with all that are not read-only. `ConversationInfo.unoffered_tools` lists
                these tools.
            mcp_servers: MCP servers in addition to the operator's, if the operator allows it. The server connects to
                them in the background; a run can use the tools that are known when the run begins. See
                `ConversationInfo.mcp_servers`.
            auto_continue: Whether the server creates a successor conversation as soon as the context is used up;
                `ConversationInfo.continued_by` is the successor's name.
            request_id: Idempotency key; generated if None. A repeated call with the same key has no further effect.
            timeout: Time limit for this call in seconds; the client's if None.

        Raises:
            InvalidArgument: An argument is invalid. Two subclasses exist for particular arguments:
                WorkingDirectoryInvalid and ModelUnavailable.
            SlugTaken: Another conversation has this slug.
            ModeUnavailable: The server cannot enforce this mode, or a setting disables it.
            ToolNotOffered: The mode does not offer one of `client_tools`; no conversation was created.
            PermissionDenied: The token does not permit the call.
            Unavailable: The server cannot be reached, or accepts no calls at the moment.
        """
        check_list("client_tools", client_tools)
        given = [each for each in client_tools if not isinstance(each, ClientTool)]
        functions = [tool_function(fitting(each), allow_unoffered=allow_unoffered) for each in given]
        declared = [each for each in client_tools if isinstance(each, ClientTool)]
        request = requests.create(
            working_directory, model=model, slug=slug, title=title, mode=mode, approval_policy=approval_policy,
            follow_up_policy=follow_up_policy, labels=labels, budget=budget, instructions=instructions, tools=tools,
            client_tools=[*declared, *(function.declaration for function in functions)], generation=generation,
            allow_unoffered=allow_unoffered, mcp_servers=mcp_servers, auto_continue=auto_continue,
            request_id=request_id,
        )  # fmt: skip
        response = self.call(self.conversations_stub.CreateConversation, request, timeout)
        return Conversation(self._transport, response.conversation.name, functions)

    def ask(
        self,
        text: str,
        *,
        working_directory: str | os.PathLike[str] | None = None,
        model: str | None = None,
        mode: Mode | None = None,
        approval_policy: ApprovalPolicy | None = None,
        instructions: str | Instructions | None = None,
        tools: Sequence[str] | None = None,
        images: requests.ImageSource | Sequence[requests.ImageSource] = (),
        on_approval: OnApproval | None = None,
        on_question: OnQuestion | None = None,
        wait_for_others: bool = False,
        generation: Generation | None = None,
        output_schema: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Ask in a new conversation and wait for the answer, a `str` that also has `run`, `conversation` and `usage`.

        The conversation is kept: ``client.conversation(answer.conversation).ask("And …?")`` continues it. If the
        message is invalid, the conversation is deleted.

        Args:
            text: What to say.
            working_directory: A directory on the server's machine; this process's current directory if None.
            model: The model of the agent; the server's default if None.
            mode: As for `create`.
            approval_policy: As for `create`.
            instructions: As for `create`.
            tools: As for `create`.
            images: As for `Conversation.ask`.
            on_approval: As for `Conversation.ask`.
            on_question: As for `Conversation.ask`.
            wait_for_others: As for `Conversation.ask`.
            generation: As for `Conversation.ask`; applies to this message alone.
            output_schema: As for `Conversation.ask`; the answer's `output` is a value that fits the schema.
            timeout: Maximum seconds until the answer is complete; no limit if None.

        Raises:
            RunFailed, RunInterrupted: As for `Run.answer`.
            DeadlineExceeded: There was no answer within `timeout`; the run was cancelled.
            InvalidArgument, ModeUnavailable, PermissionDenied, Unavailable: As for `create`.
        """
        request = requests.send("", text, images=images, generation=generation, output_schema=output_schema)
        policy = QuestionPolicy(decider(on_approval), on_question, wait_for_others)
        deadline = Deadline(timeout)
        conversation = self.create(
            working_directory, model=model, mode=mode, approval_policy=approval_policy, instructions=instructions,
            tools=tools, timeout=deadline.shorten(self._transport.timeout),
        )  # fmt: skip
        request.name = conversation.name
        return ask(self._transport, request, policy, deadline, new=True)

    def conversation(self, name: str) -> Conversation:
        """Return the conversation with this slug, id or resource name, without calling the server."""
        return Conversation(self._transport, resource_name("conversations", name))

    def conversations(
        self,
        *,
        archived: bool | None = False,
        parent: str = "",
        working_directory: str | os.PathLike[str] | None = None,
        filter: str = "",  # noqa: A002 -- the name of the field in the API
        order_by: str = "",
        timeout: float | None = None,
    ) -> Iterator[ConversationInfo]:
        """Iterate over the conversations, most recently changed first.

        Args:
            archived: True for archived conversations only, False for all others, None for both.
            parent: List the sub-agents of this conversation instead.
            working_directory: List only conversations in this directory on the server's machine; all if None.
            filter: List only conversations that match this condition, for example ``busy = true AND labels.team =
                "docs"``. The function `bedrock.conversations.quoted` quotes a string for a filter. The API reference
                describes the filter language under ConversationService.
            order_by: "update_time", "create_time" or "title", followed by " desc" for the reverse order.
            timeout: Time limit for each page in seconds; the client's if None.

        Raises:
            InvalidArgument: The filter is invalid; the message says what was expected, and at which character.
        """
        request = requests.conversations(
            archived=archived, parent=parent, working_directory=working_directory, filter=filter, order_by=order_by
        )
        stub = self.conversations_stub
        return self._transport.items(stub.ListConversations, request, "conversations", ConversationInfo, timeout)

    def approvals(self, *, timeout: float | None = None) -> Iterator[Approval]:
        """Iterate over the open approvals of all conversations; the conversation that has waited longest comes first.

        To answer an approval, call `approve` or `deny` on ``client.conversation(approval.conversation)``. `timeout` is
        the time limit for fetching each page, in seconds.
        """
        request = v1.ListApprovalsRequest(parent="conversations/-")
        return self._transport.items(self.conversations_stub.ListApprovals, request, "approvals", Approval, timeout)

    def tool_questions(self, *, timeout: float | None = None) -> Iterator[Question]:
        """Iterate over the open questions of running tools in all conversations.

        To answer a question, call `answer_question` or `decline_question` on
        ``client.conversation(question.conversation)``. `timeout` is the time limit for fetching each page, in seconds.
        """
        request = v1.ListQuestionsRequest(parent="conversations/-")
        return self._transport.items(self.conversations_stub.ListQuestions, request, "questions", Question, timeout)

    def audit(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        principal: str = "",
        conversation: str = "",
        outcome: AuditOutcome | None = None,
        timeout: float | None = None,
    ) -> Iterator[AuditEntry]:
        """Iterate over the audit trail of all principals, oldest entry first. Requires the operator role.

        Args:
            since: Only entries from this time on; it must have a time zone.
            until: Only entries before this time.
            principal: Only entries for this principal.
            conversation: Only entries about this conversation: its id or resource name, not its slug.
            outcome: Only entries with this outcome.
            timeout: Time limit for each page in seconds; the client's if None.

        Raises:
            PermissionDenied: The token does not have the operator role.
        """
        request = requests.audit(
            since=since, until=until, principal=principal, conversation=conversation, outcome=outcome
        )
        return self._transport.items(self.conversations_stub.ListAuditEntries, request, "entries", AuditEntry, timeout)

    def watch_conversations(
        self,
        *,
        changes_only: bool = False,
        include_sub_agents: bool = False,
        filter: str = "",  # noqa: A002 -- the name of the field in the API
        order_by: str = "",
        timeout: float | None = None,
    ) -> Stream[ConversationListEvent]:
        """A stream of changes to the list of conversations. It ends with an error if the connection breaks.

        Args:
            changes_only: Omit the conversations that exist already.
            include_sub_agents: Show sub-agents, too.
            filter: Show only conversations that match, as for `conversations`. When a conversation no longer matches,
                the stream yields an event with `conversation_unmatched`.
            order_by: The order of the conversations that exist already, as for `conversations`.
            timeout: Seconds that the whole stream may take; no limit if None.
        """
        request = v1.WatchConversationsRequest(
            changes_only=changes_only, include_sub_agents=include_sub_agents, filter=filter, order_by=order_by
        )
        entries = self.stream(self.conversations_stub.WatchConversations, request, timeout)
        return entries.map(ConversationListEvent.from_proto)

    def models(self, *, timeout: float | None = None) -> list[Model]:
        """The models that conversations can currently use."""
        pages = self.pages(self.catalog_stub.ListModels, v1.ListModelsRequest(), timeout)
        return [Model.from_proto(model) for page in pages for model in page.models]

    def tools(self, *, timeout: float | None = None) -> list[Tool]:
        """The tools that agents can call."""
        pages = self.pages(self.catalog_stub.ListTools, v1.ListToolsRequest(), timeout)
        return [Tool.from_proto(tool) for page in pages for tool in page.tools]

    def model(self, name: str, *, timeout: float | None = None) -> Model:
        """One of the models that conversations can currently use. Raises NotFound if the model does not exist."""
        request = v1.GetModelRequest(name=resource_name("models", name))
        return Model.from_proto((self.call(self.catalog_stub.GetModel, request, timeout)).model)

    def tool(self, name: str, *, timeout: float | None = None) -> Tool:
        """One of the tools that agents can call. Raises NotFound if the tool does not exist."""
        request = v1.GetToolRequest(name=resource_name("tools", name))
        return Tool.from_proto((self.call(self.catalog_stub.GetTool, request, timeout)).tool)

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """The version of the server, what its sandbox can do, and its limits."""
        response = self.call(self.catalog_stub.GetServerInfo, v1.GetServerInfoRequest(), timeout)
        return ServerInfo.from_proto(response)

    def quotas(self, *, timeout: float | None = None) -> list[Quota]:
        """The quotas of this client's principal, with the amounts used.

        An operator gets the quotas of all principals.
        """
        response = self.call(self.catalog_stub.GetQuotas, v1.GetQuotasRequest(), timeout)
        return [Quota.from_proto(quota) for quota in response.quotas]

    def nodes(self, *, timeout: float | None = None) -> list[Node]:
        """The servers that share this server's database, including this one. Requires the operator role.

        `timeout` is the time limit for fetching each page, in seconds.
        """
        pages = self.pages(self.catalog_stub.ListNodes, v1.ListNodesRequest(), timeout)
        return [Node.from_proto(node) for page in pages for node in page.nodes]

    def browse(self, path: str = "", *, timeout: float | None = None) -> DirectoryListing:
        """The content of a directory on the server's machine.

        An empty `path` means the home directory of the user that the server runs as.
        """
        listing = v1.BrowseDirectoryResponse()
        for page in self.pages(self.catalog_stub.BrowseDirectory, v1.BrowseDirectoryRequest(path=path), timeout):
            listing.MergeFrom(page)
        return DirectoryListing.from_proto(listing)

    def call(self, method: Callable[..., Response], request: Any, timeout: float | None = None) -> Response:
        """Call a method of a gRPC stub with this client's token and time limit; errors are those of `bedrock.errors`.

        The call is repeated if the connection is lost and repeating it is safe.
        """
        return self._transport.call(method, request, timeout)

    def pages(self, method: Callable[..., PageT], request: Any, timeout: float | None = None) -> Iterator[PageT]:
        """Iterate over the pages of a call that lists something.

        `page_token` in `request` is set for each further page.
        """
        return self._transport.pages(method, request, timeout)

    def stream(
        self, method: Callable[..., Iterable[Response]], request: Any, timeout: float | None = None
    ) -> Stream[Response]:
        """The responses of a streaming call. The call starts at the first read; closing the stream cancels it."""
        return self._transport.stream(method, request, timeout)
