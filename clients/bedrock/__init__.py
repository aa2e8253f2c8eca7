"""The Python client of Bedrock, a server for conversations with LLM agents (not Amazon Bedrock).

Send a message and watch what happens::

    from bedrock import Client

    with Client() as client:
        conversation = client.create(working_directory=".")
        for event in conversation.send("What is in this directory?"):
            if event.kind == "text_delta":
                print(event.text, end="")

The loop ends when the run ends. It survives broken connections and restarts of the server, and yields no event twice.
To get just the answer, call ``conversation.ask("…")`` or, in a new conversation, ``bedrock.ask("…")``. `AsyncClient` is
the client for asyncio. The module `bedrock.errors` contains the exceptions, `bedrock.events` the events, and ``from
bedrock import v1`` imports the API's protobuf messages.
"""

# ruff: noqa: I001 -- the import sorter would put every name on its own line

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bedrock._async.client import AsyncClient
    from bedrock._async.conversation import AsyncConversation
    from bedrock._async.run import AsyncRun
    from bedrock._sync.client import Client
    from bedrock._sync.conversation import Conversation
    from bedrock._sync.one_shot import ask
    from bedrock._sync.run import Run
    from bedrock.answers import Answer, ToolAnswer
    from bedrock.catalog import McpHttp, McpServer, McpStdio, Model, Quota, ServerInfo, Tool
    from bedrock.conversations import Budget, ClientTool, ConversationInfo, Generation, Instructions, Task
    from bedrock.errors import (
        AgentBusy, ApprovalNeeded, AwaitingApproval, BedrockError, Cancelling, ContextExhausted, InvalidArgument,
        NotFound, PermissionDenied, QueueFull, RunFailed, RunInterrupted, Unauthenticated, Unavailable,
    )  # fmt: skip
    from bedrock.events import Event, Stop
    from bedrock.messages import Message, QueuedMessage, ToolCall, ToolResult, Usage
    from bedrock.request_cycles import RequestCycle
    from bedrock.states import Approval, ConversationState, Question, RunError, SubAgentStatus
    from bedrock.streams import AsyncStream, Stream

__all__ = [
    "AgentBusy", "Answer", "Approval", "ApprovalNeeded", "AsyncClient", "AsyncConversation", "AsyncRun", "AsyncStream",
    "AwaitingApproval", "BedrockError", "Budget", "Cancelling", "Client", "ClientTool", "ContextExhausted",
    "Conversation", "ConversationInfo", "ConversationState", "Event", "Generation", "Instructions", "InvalidArgument",
    "McpHttp", "McpServer", "McpStdio", "Message", "Model", "NotFound", "PermissionDenied", "Question", "QueueFull",
    "QueuedMessage", "Quota", "RequestCycle", "Run", "RunError", "RunFailed", "RunInterrupted", "ServerInfo", "Stop",
    "Stream", "SubAgentStatus", "Task", "Tool", "ToolAnswer", "ToolCall", "ToolResult", "Unauthenticated",
    "Unavailable", "Usage", "ask",
]  # fmt: skip

_HOMES = {
    "bedrock._async.client": ("AsyncClient",), "bedrock._async.conversation": ("AsyncConversation",),
    "bedrock._async.run": ("AsyncRun",), "bedrock.answers": ("Answer", "ToolAnswer"),
    "bedrock.catalog": ("McpHttp", "McpServer", "McpStdio", "Model", "Quota", "ServerInfo", "Tool"),
    "bedrock.conversations": ("Budget", "ClientTool", "ConversationInfo", "Generation", "Instructions", "Task"),
    "bedrock._sync.one_shot": ("ask",), "bedrock._sync.client": ("Client",),
    "bedrock._sync.conversation": ("Conversation",), "bedrock.events": ("Event", "Stop"),
    "bedrock.messages": ("Message", "QueuedMessage", "ToolCall", "ToolResult", "Usage"),
    "bedrock.request_cycles": ("RequestCycle",),
    "bedrock.states": ("Approval", "ConversationState", "Question", "RunError", "SubAgentStatus"),
    "bedrock._sync.run": ("Run",), "bedrock.streams": ("AsyncStream", "Stream"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a name when it is first used, so that `import bedrock` is cheap."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF.get(name, "bedrock.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
