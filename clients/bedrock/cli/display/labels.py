"""Texts for users in place of the gRPC API's enum names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from bedrock.catalog import McpToolLeftOut
from bedrock.cli.text.output import ago
from bedrock.cli.text.safe_text import SafeText
from bedrock.cli.text.style import one_line
from bedrock.conversations import CancelConversationResult, ContextUsage, Generation, SetModeResult
from bedrock.messages import Image, QueuedMessage, ToolResult
from bedrock.request_cycles import RequestCycle
from bedrock.states import ConversationState

# The label of a queued follow-up that was discarded before its run began.
NOT_RUN = "discarded before it began"


# The label of a run that waits for a user to approve a tool call.
APPROVAL = "waiting for approval"

# The message about a cancel that the server could not store yet.
UNRECORDED = "stopped, but not recorded yet: the server cannot store this now and will try again"

# The labels of states, the same as in the web console (clients/console/format.js). Other states keep their names.
STATES = {
    "awaiting_llm": "starting a request",
    "llm_requesting": "thinking",
    "awaiting_tool_approval": APPROVAL,
    "tool_executing": "running a tool",
    "awaiting_sub_agents": "waiting for sub-agents",
    "awaiting_continuation": "summarizing",
    "context_exhausted": "context used up",
}

# Labels for the causes of interrupted runs, and for the outcomes of queued messages.
_LABELS = {
    "restart": "interrupted by a server restart",
    "not_run": NOT_RUN,
    "round_cap": "stopped: the run has reached its limit of model requests",
    "budget": "stopped: the budget is spent",
    "context_exhausted": f"stopped: {STATES['context_exhausted']}; continue with `bedrock continue`",
    "cancel_timeout": "cancelled; some sub-agents did not end in time",
    "queued": "waiting",
    "returned": "not delivered",
    "discarded": NOT_RUN,
    "withdrawn": "taken back",
}

# What is wrong with an incomplete answer, by the `stop_detail` of its run.
NOT_WHOLE = {
    "max_tokens": "the answer, or the reasoning before it, was cut off at the token limit",
    "refusal": "the model refused, or a content filter cut the answer off",
    "empty": "the answer is empty",
}

# What tools can do in each mode.
MODES = {
    "restricted": "tools can read but not change anything, and have no network",
    "workspace": "tools can change files beneath the working directory, but nothing else, and have no network",
    "unrestricted": "tools may change files and run any command",
}


def mode_notice(kind: str) -> str:
    """The notice about a mode change, by the `system_kind` of the server's message; "" for other messages."""
    mode = kind.removeprefix("mode_")
    return f"The mode is now {mode}: {MODES[mode]}." if mode in MODES and mode != kind else ""


def cancel_lines(receipt: CancelConversationResult, kill: str, *, jobs: bool) -> list[str]:
    """What a cancel could not do. `kill` is the command that ends background jobs; `jobs` is True if it was used."""
    left = ", ".join(receipt.surviving_jobs)
    nothing = "there is nothing to cancel" + (", and no background job is running" if jobs else "")
    return [
        *([nothing] if receipt.no_op else []),
        *([UNRECORDED] if receipt.unrecorded else []),
        *([f"still running in the background: {left} (`{kill}` ends them)"] if left else []),
    ]


def mode_lines(changed: SetModeResult, stop: str, title: Callable[[str], str] = "tool call {}".format) -> list[str]:
    """What a mode change means for tools, calls, jobs and MCP servers.

    `stop` is the command that stops whatever still has wider rights; `title` describes a tool call by its id.
    """
    unoffered = ", ".join(tool.name for tool in changed.conversation.unoffered_tools)
    ended = _named(title, changed.stopped_tool_use_ids, changed.ended_jobs, changed.stopped_mcp_servers)
    left = _named(title, changed.surviving_tool_use_ids, changed.surviving_jobs, changed.surviving_mcp_servers)
    return [
        *([f"not offered to the agent in this mode: {unoffered}"] if unoffered else []),
        *([f"stopped: {ended}"] if ended else []),
        *([f"still running with more rights: {left} (`{stop}` stops them)"] if left else []),
    ]


def _named(title: Callable[[str], str], calls: Sequence[str], jobs: Sequence[str], servers: Sequence[str]) -> str:
    others = (*(f"background job {job}" for job in jobs), *(f"MCP server {server}" for server in servers))
    return ", ".join((*map(title, calls), *others))


def assumed_window(usage: ContextUsage, model: str) -> str:
    """A notice that a model's window is assumed, and how to set it; "" if the window is known."""
    if not usage.assumed:
        return ""
    name = model.removeprefix("models/")
    return (
        f"The context window of {name} is unknown: {usage.usable_window_tokens:,} usable tokens are assumed; "
        f'set window under [models."{name}"] in the server\'s settings'
    )


def for_people(result: ToolResult) -> str:
    """The output of a tool for users: without the part that is marked as for the agent only."""
    addressed = str(result.display.get("for_agent", ""))
    before, found, after = result.output.rpartition(addressed) if addressed else ("", "", result.output)
    return before.rstrip(" ") + after if found else result.output


def interruption(detail: str) -> str:
    """The text for users about why a run was interrupted; "cancelled" if `detail` is empty."""
    return _LABELS.get(detail, f"interrupted: {detail}") if detail else "cancelled"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun, e.g. "1 request" or "2 requests"."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def waits_for(state: ConversationState) -> str:
    """The reason why a run waits: `APPROVAL`, or e.g. "waiting for an answer (TOOL)"; "" if it does not wait."""
    if state.kind == "awaiting_tool_approval":
        return APPROVAL
    running = state.tool_executing
    if running is None or not (running.deadline or running.questions):
        return ""
    whom = "an answer" if running.questions else "a client"
    return f"waiting for {whom} ({one_line(running.current.tool, 64)})"


def ending(cycle: RequestCycle) -> str:
    if cycle.stop_reason == "interrupted":
        return interruption(cycle.stop_detail)
    reason, detail = cycle.stop_reason, cycle.stop_detail
    return f"{reason} ({NOT_WHOLE.get(detail, detail)})" if detail else reason or "running"


def fate(name: str) -> str:
    return _LABELS.get(name, name)


def in_words(generation: Generation | None) -> str:
    """The settings for a model's answers as text to follow the model's name; "" if there are none."""
    if generation is None:
        return ""
    parts = [
        *([f"effort {generation.reasoning_effort}"] if generation.reasoning_effort else []),
        *([f"temperature {generation.temperature:g}"] if generation.temperature is not None else []),
        *([f"{generation.max_output_tokens:,} tokens at most"] if generation.max_output_tokens else []),
    ]
    return f" ({', '.join(parts)})" if parts else ""


def tool_left_out(tool: McpToolLeftOut) -> SafeText:
    """The line that says that a tool of an MCP server is not offered to agents, and why."""
    return one_line(f"tool {tool.name or 'without a name'} is omitted: {tool.reason}", 300)


def state_in_words(kind: str) -> str:
    return STATES.get(kind, kind)


# Length of an image's short name, which is the beginning of the image's hash.
SHOWN = 12

# The characters that are removed from ids and media types, because these become parts of file names.
_NO_NAME = re.compile(r"[^0-9A-Za-z]+")


def short(image: Image) -> str:
    return _NO_NAME.sub("", image.attachment.rpartition("/")[2].rpartition("-")[2])[:SHOWN]


def kind(image: Image) -> str:
    return _NO_NAME.sub("", image.media_type.rpartition("/")[2])


def described(image: Image) -> str:
    return f"[image {short(image)}: {kind(image)}, {image.width} x {image.height}]"


QUEUE_COLUMNS: dict[str, Callable[[QueuedMessage], str]] = {
    "message": lambda entry: entry.message.name.rpartition("/")[2],
    "delivery": lambda entry: entry.message.delivery.replace("_", "-"),
    "sent": lambda entry: ago(entry.message.create_time),
    "fate": lambda entry: fate(entry.fate),
    "text": lambda entry: entry.message.text,
}
"""The columns of a list of queued messages."""
