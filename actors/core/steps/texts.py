"""All texts that the state machine writes. Programs must not parse these texts: use the typed kinds instead.

The texts are stored in histories, and a replay compares them, so a changed text makes replays of older logs differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from actors.core.context import Mode
from actors.core.states import BackgroundJob, JobStatus

# The tag that surrounds a system message, which is sent to the model as part of a user's turn.
NOTICE = "system-notice"
# The tag around a repository file in the system prompt.
REPOSITORY_FILE = "repository-file"
# The tags around tool calls and tool results when they are rendered as text.
CALL, RESULT = "tool-call", "tool-result"

# A fixed list instead of `unicodedata`, whose categories change with the Python version: text that a model has seen
# must stay the same.
_FORMAT = (
    r"\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Characters that a model may ignore inside a tag: white space, control and format characters.
_IGNORED = rf"[\s\x00-\x1f\x7f-\x9f{_FORMAT}]*+"


@cache
def _opening(*names: str) -> re.Pattern[str]:
    # Compiled at first use, because compiling takes as long as importing a whole package.
    spaced = "|".join(_IGNORED.join(map(re.escape, name)) for name in names)
    return re.compile(f"<(?={_IGNORED}/?{_IGNORED}(?:{spaced}))", re.IGNORECASE)


def escape(text: str) -> str:
    """Escape the tags of notices and repository files: their `<` becomes `&lt;`."""
    return _opening(NOTICE, REPOSITORY_FILE).sub("&lt;", text)


def escape_calls(text: str) -> str:
    """Escape the tags of tool calls and tool results as well as those that `escape` handles."""
    return _opening(NOTICE, REPOSITORY_FILE, CALL, RESULT).sub("&lt;", text)


def notice(text: str) -> str:
    return f"<{NOTICE}>\n{escape(text)}\n</{NOTICE}>"


CANCELLED = "Cancelled by user"
SKIPPED = "Skipped due to cancellation"
INTERRUPTED = "Interrupted by server restart"
DENIED = "Denied by user"
NOT_EXECUTED = "Not executed: "
OTHER_DENIED = NOT_EXECUTED + "another tool call in the same response was denied"
CUT_OFF = NOT_EXECUTED + "the response was cut off at the output token limit"
CONTEXT_LIMIT = NOT_EXECUTED + "context limit reached"
TURN_LIMIT = NOT_EXECUTED + "turn limit reached"
BAD_SUBMISSION = NOT_EXECUTED + "submit_result and submit_error must be the only call in the response, with valid input"
CANNOT_ASK = NOT_EXECUTED + "it needs approval, and sub-agents cannot ask"
NOT_OFFERED = NOT_EXECUTED + "this conversation is not offered that tool"
NOT_IN_MODE = {mode: f"{NOT_EXECUTED}in {mode.value} mode only read-only tools of clients are called" for mode in Mode}
NO_SUCH_WAIT = "no call of this id waits for an answer"
# For each way in which a question can end: the text that refuses a late answer to it.
NO_SUCH_QUESTION = {
    "answered": "this question has been answered",
    "declined": "this question has been declined",
    "timed_out": "the time to answer this question is over",
    "withdrawn": "this question was withdrawn: its tool no longer wants an answer",
    "unknown": "no question of this name waits for an answer",
}
BAD_OUTPUT = NOT_EXECUTED + "submit_output must be the only call in the response"
OUTPUT_ACCEPTED = "accepted"
OUTPUT_MISSING = "there is no value"
OUTPUT_REFUSED = "The run has no output: the model refused to answer. Ask in another way, or another model."
FAULT = "Interrupted by an internal error of the server"
SUBMITTED = "submitted"
TOOL_ABORTED = "The tool was stopped unexpectedly; what it had done until then is unknown."
NO_TASKS = "No sub-agent was started: no tasks were given."

EMPTY_ANSWER = "the model's answer ended without any content. Send a message to try again, or choose another model."
LLM_ABORTED = "the request was aborted unexpectedly. Send a message to try again."

MODES = {
    Mode.RESTRICTED: (
        "The mode is now restricted: tools can read but not change anything, and have no network. "
        "To be allowed to make changes, call request_mode_upgrade and say why."
    ),
    Mode.WORKSPACE: (
        "The mode is now workspace: tools can change files beneath the working directory, but nothing else, and have "
        "no network. What people run later without a look stays read-only there, .git above all."
    ),
    Mode.UNRESTRICTED: "The mode is now unrestricted: tools may change files and run any command.",
}

# The notice of restricted mode for an agent that is not offered request_mode_upgrade.
RESTRICTED_FOR_GOOD = "The mode is now restricted: tools can read but not change anything, and have no network."

STOPPED_FOR_MODE = {
    mode: f"Stopped by user: the mode is now {mode.value}. What the call had done until then was not undone."
    for mode in Mode
}

MCP_RESTARTED = (
    "The mode has changed since these MCP servers were started: {servers}. They are started again in the new mode, and "
    "what they kept in memory is lost."
)

IMAGES_HIDDEN = (
    "The model {model} takes no images: in place of each image of this conversation, and of each that a tool returns, "
    "it gets a text."
)

DATE = "The date is now {date} (UTC)."

_NOT_RESUMED = "Do not take up again what was asked before this notice unless the user asks for it."
RUN_CANCELLED = f"The user interrupted the run {{step}}. {_NOT_RESUMED}"
RUN_CUT_OFF = f"The server was stopped and the run was cut off {{step}}. {_NOT_RESUMED}"
BEFORE_ANSWERING = "before you answered"
WHILE_ANSWERING = "while you were answering; what you had written of that answer is discarded and not shown here"
WHILE_SUB_AGENTS_WORKED = "while sub-agents were at work"
WHILE_SUMMING_UP = "while you were writing the summary of a full context"

_JOB_ENDS = {
    JobStatus.EXITED: "exit code {code}",
    JobStatus.KILLED: "killed",
    JobStatus.LOST: "ended with the server, and its output is lost",
}

FORKED = (
    "This conversation was forked: the history up to here is that of another one, which may have gone on without you. "
    "Nothing but the history was taken back: files are as they are now, also where the history says otherwise, so read "
    "them again before you rely on them. Background jobs and clipboards of the other conversation are not yours."
)

GRACE = (
    "The turn limit is reached: this is your last turn. Call submit_result with what you have, or submit_error; "
    "no other tool will run."
)
NUDGE = "Your work counts only once it is submitted: call submit_result with your result, or submit_error."

SUB_AGENT_INTERRUPTED = "interrupted by a server restart before result submission"
SUB_AGENT_EXHAUSTED = "context exhausted before result submission"
SUB_AGENT_TURN_LIMIT = "turn limit reached before result submission"
SUB_AGENT_NO_RESULT = "ended without calling submit_result or submit_error"
SUB_AGENT_BUDGET = "budget reached before result submission"
REPEATED = "Note: this is the second failure of this kind in a row. Do something else: the third ends the run."
AGENT_TIMED_OUT = "no result before the deadline"

# The fallback summary in editions of the rules before `Rules.NOTHING_LOST`.
FIRST_FALLBACK_SUMMARY = (
    "The context is used up and no summary could be written. The whole history stays readable here; "
    "continue in a new conversation and say what matters from this one."
)
FALLBACK_SUMMARY = (
    "The context is used up and no summary could be written. The whole history can still be read here. To go on, "
    "continue this conversation in a new one (`bedrock continue`, or ContinueConversation), and say there what matters "
    "from this one."
)
NO_SUMMARY = "the model's answer has no text"
SUMMARY_REFUSED = "the model refused to write one"
RESTARTED = "the server was restarted"


def after_step(number: int) -> str:
    """Describe an interruption between two model requests, after `number` complete answers."""
    return f"after your answer {number} of it, before the next one"


def while_asking(tools: Iterable[str]) -> str:
    """Describe an interruption while calls of these tools waited for approval."""
    return f"while it waited for approval of {', '.join(tools)}; none of these calls was run"


def while_running(tool: str) -> str:
    """Describe an interruption while a tool was running."""
    return f"while {tool} was running"


def jobs_ended(jobs: Iterable[BackgroundJob]) -> str:
    lines = (f"- {job.handle}: {_JOB_ENDS[job.status].format(code=job.exit_code)}: {job.command}" for job in jobs)
    return "\n".join(("Background jobs have ended:", *lines, "Call bash with `peek` and a handle to see the output."))


def denied(reason: str) -> str:
    return f"{DENIED}: {reason}" if reason else DENIED


def client_silent(seconds: int) -> str:
    return f"The client did not answer within {seconds} s. Whether it did what the call asked for is unknown."


def denied_by(rule: str) -> str:
    return f"Denied: {rule}. Do not try it in another way; say what you need it for."


def repeated(count: int, tool: str, result: str) -> str:
    """`tool` and `result` are those of the first failed call; `tool` is "" if the failure does not depend on it."""
    lines = result.splitlines() or [""]
    cause = lines[0] if len(lines[0]) <= 200 else f"{lines[0][:200]}…"
    named = f"{tool}: {cause}" if tool else cause
    return (
        f"Stopped: tool calls failed in the same way {count} times in a row. {named}\n"
        "Send a message to go on, or choose another model."
    )


def output_misfit(problem: str) -> str:
    return f"Not accepted: {problem}. Call submit_output again with a value that fits its schema."


def output_nudge(problem: str) -> str:
    return (
        f"This run ends with a value that fits a JSON Schema, and your answer has none: {problem}. "
        "Call submit_output with the value if there is that tool; otherwise answer with the JSON of the value, and "
        "nothing else."
    )


def output_invalid(problem: str) -> str:
    return f"The run has no output that fits its schema. Of the last attempt: {problem}. Send a message to try again."


def sub_agent_cancelled(reason: str) -> str:
    cancelled = "cancelled before result submission"
    return f"{cancelled}: {reason}" if reason else cancelled


def round_cap(rounds: int) -> str:
    return f"Stopped after {rounds} requests to the model in one run. Send a message to go on."


def round_cap_nears(rounds: int, cap: int) -> str:
    return f"This run has made {rounds} of {cap} requests to the model; it stops at {cap}."


def budget_nears(ratio: float, what: str) -> str:
    return f"At least {ratio * 100:.0f} % of the budget of {what} is spent; the run stops when all of it is."


def budget_reached(what: str) -> str:
    return f"Stopped: the budget of {what} is spent. Raise it to go on."


def quota_reached(what: str) -> str:
    return f"Stopped: {what}, is used up. `bedrock quota` says when it is counted anew."


def failed_after(attempts: int, cause: str) -> str:
    return f"Failed after {attempts} {'attempt' if attempts == 1 else 'attempts'}: {cause}"


def summary_failed(cause: str) -> str:
    """The message that a summary requested by a client was not written."""
    return f"No summary was written, and the conversation is as it was before: {cause}"


def authentication_failed(cause: str) -> str:
    """The message for an authentication error; it begins with the same words for every provider."""
    begin = "Authentication failed"
    return cause if cause.startswith(begin) else f"{begin}: {cause}"


def retry_after_too_long(seconds: int, limit: int, cause: str) -> str:
    return f"The provider asks to wait {seconds} s (Retry-After), more than the {limit} s Bedrock waits: {cause}"
