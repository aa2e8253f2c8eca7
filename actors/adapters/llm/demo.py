"""The demo model: a script that answers without a key or a network, and uses real tools. Only the model is simulated.

Its answers depend only on the request. The server treats them like those of other models: text streams, tool calls run
or ask for approval, a simulated failure is retried, and everything can be cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from actors.adapters.llm.protocols.encoding import image_placeholder, is_failed
from actors.core.content import (
    Content,
    Image,
    Reasoning,
    Text,
    ToolCancelled,
    ToolOutcome,
    ToolResult,
    ToolUse,
    Usage,
    call_id,
    is_tool_result,
    text_of,
)
from actors.core.context import ReasoningEffort
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.history import Turn
from actors.core.steps.runs import SUBMIT_OUTPUT
from actors.ports import (
    CancelToken,
    ModelAbortedError,
    ModelAnswer,
    ModelFailedError,
    ModelInfo,
    ModelRequest,
    ModelSink,
    Purpose,
    ToolSpec,
)

_DEPTH = 24
# In made-up values, lists at this nesting depth or deeper have only the items that `minItems` requires, so that
# recursive schemas give finite values.
_WIDE = 6


def sample(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """Make up a value that fits a schema, as far as the schema's keywords are supported.

    Returns None if the schema is nested too deeply or is not an object. References ($ref) are resolved in `root`, by
    default `schema` itself; `depth` is the depth of `schema` in `root`.
    """
    root = schema if root is None else root
    if not isinstance(schema, dict) or depth > _DEPTH:
        return None
    if "default" in schema or "const" in schema:
        return schema.get("default", schema.get("const"))
    for choices in ("examples", "enum"):
        if schema.get(choices):
            return schema[choices][0]
    if "$ref" in schema:
        return sample(_definition(root, schema["$ref"]), root, depth + 1)
    for choices in ("anyOf", "oneOf", "allOf"):
        if schema.get(choices):
            return sample(schema | schema[choices][0] | {choices: []}, root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: dict[str, Any], root: Any, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            wanted = schema.get("properties", {})
            return {name: sample(wanted.get(name, {}), root, depth + 1) for name in schema.get("required", wanted)}
        case "array":
            usual = 1 if depth < _WIDE else 0
            return [sample(schema.get("items", {}), root, depth + 1)] * max(schema.get("minItems", usual), usual)
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            words = "Scripted text."
            return words.ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength", len(words) + 10**6)]


def _number(schema: dict[str, Any]) -> int:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
    step = schema.get("multipleOf", 1)
    number = -(-least // step) * step
    return int(number) if number == int(number) else number


def _definition(root: Any, reference: str) -> Any:
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step, {}) if isinstance(found, dict) else {}
    return found


HELP = """I am scripted, but what I do here is real: my tools run (or ask you first), my failures are retried, and you \
can cancel me at any time. Type one of these:
  run <command>   run a command with the bash tool
  read <file>     read a file
  search <words>  search for words; if there are many matches, a small model (also scripted) picks the best
  write <name>    write a file in the working directory; if the mode forbids that, I ask you first
  think           show reasoning before the answer
  retry           make the first attempt fail, so that you see a retry
  count           give a long, slow answer for you to cancel
  sleep           run a long, slow command for you to cancel
{more}To talk to a real model, set ANTHROPIC_API_KEY or OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own \
(with OPENAI_MODEL for its model), and restart."""

_HELP_WITH = {
    "spawn_sub_agent": "  agents          start three sub-agents and collect their results\n",
    "request_mode_upgrade": "  upgrade         ask you for unrestricted mode\n",
}
_HELP_WITH_CLIENTS = """  call <tool>     call a tool, with made-up input or with yours: call {first} {{…}}
I also call a tool of your program if your message contains all words of its name: {names}.
"""

_GREETING = """Hello! I am Bedrock's demo model. I follow a script, so no key is needed; everything around me is real. \
Let me look around first. I would like to list the files here; depending on the policy, you are asked first."""
_LIST = "ls -A | head -n 20"
_WRITTEN = "written by the demo model"
_COUNT_TO = 60
_TASKS = (
    "Count the files in this directory: run sleep 1; ls -A | wc -l",
    "Find the largest file: run sleep 2; ls -S | head -n 1",
    "Find out what the project is: read README.md",
)
SHOWN_LINES = 8
_SEARCH_TERMS = 5
# Seconds of sleep beyond which the demo model passes `wait_seconds`; otherwise bash would move the call to the
# background.
_PATIENCE_SECONDS = 25
_ASK = "request_mode_upgrade"
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_NOTICE = "<system-notice>\n"
_RESULTS = re.compile(re.escape(_NOTICE) + r'(Task: ".*)\n</system-notice>', re.DOTALL)


class Scene(Struct, frozen=True):
    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    fails: str = ""
    """The error with which the attempt fails after the answer was streamed; "" if it succeeds."""
    tempo: float = 1.0


_Play: TypeAlias = Callable[[re.Match[str], ModelRequest], Scene]
_Scenes: TypeAlias = tuple[tuple[re.Pattern[str], _Play], ...]


def scene_for(request: ModelRequest) -> Scene:
    """The demo model's answer to a request; the same request always gets the same answer."""
    last = request.turns[-1] if request.turns else Turn("user", ())
    results = [block for block in last.content if is_tool_result(block)]
    said = next(reversed(said_in(last)), "")
    offered = {tool.name for tool in request.tools}
    if not offered:
        return _summary(request)
    mine = [tool for tool in request.tools if tool.name != SUBMIT_OUTPUT]
    if not results and mine and all(tool.traits.client for tool in mine):
        calls = tuple((tool.name, sample(tool.input_schema)) for tool in mine)
        return Scene("I am scripted, so I will use each of my tools once, with made-up input.", calls=calls)
    if found := _RESULTS.match(_end_of(last)):
        return Scene(f"The sub-agents are done. They reported:\n{found[1]}")
    # After the user has cancelled a tool call, the next message is a new request, not a comment on the call's result.
    ended = any(isinstance(result, ToolCancelled) for result in results)
    wanted = _wanted(said, request)
    if results and not wanted and not (ended and said):
        return _after_tools(results, said, request)
    if wanted:
        play, found = wanted
        return play(found, request)
    if not any(turn.role == "assistant" for turn in request.turns):
        return using("bash", {"cmd": _LIST}, _GREETING, request)
    return Scene(
        f'You said: "{shortened(said)}". A real model would have something to say to that; I only know my script. Type '
        "help to see what I can show, or set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL for a real model."
    )


def _wanted(said: str, request: ModelRequest) -> tuple[_Play, re.Match[str]] | None:
    """The function that makes the scene for a user's text, and the pattern's match; None if no pattern matches.

    A command at the beginning takes precedence over names of client tools, which take precedence over known words.
    """
    for scenes in (_COMMANDS, _of_clients(said, request), _SCENES):
        for pattern, play in scenes:
            if found := pattern.search(said):
                return play, found
    return None


def _of_clients(said: str, request: ModelRequest) -> _Scenes:
    """A scene that calls each client tool whose name consists of words in the user's text; () if there are none."""
    words = set(_words_in(said))
    named = [tool for tool in _client_tools(request) if words.issuperset(_words_in(tool.name))]
    calls = tuple((tool.name, sample(tool.input_schema)) for tool in named)
    text = f"I will call {' and '.join(name for name, _ in calls)}, with made-up input."
    return ((re.compile(""), lambda *_: Scene(text, calls=calls)),) if calls else ()


def _client_tools(request: ModelRequest) -> list[ToolSpec]:
    return [tool for tool in request.tools if tool.traits.client]


def _words_in(text: str) -> list[str]:
    return [word.lower() for word in _NAME_WORD.findall(text)]


def said_in(turn: Turn) -> list[str]:
    """The texts in a turn that users wrote: all texts except system notices."""
    texts = (block.text for block in turn.content if isinstance(block, Text))
    return [text for text in texts if not text.startswith(_NOTICE)]


def _end_of(turn: Turn) -> str:
    block = turn.content[-1] if turn.content else None
    return block.text if isinstance(block, Text) else ""


def words_of(block: Content) -> str:
    match block:
        case Text() | Reasoning():
            return block.text
        case ToolUse():
            return block.name + block.input
        case Image():
            return image_placeholder(block)
        case _:
            return block.output


# --- scenes started by a word of the user ------------------------------------------------------------------------


def _run(found: re.Match[str], request: ModelRequest) -> Scene:
    return using("bash", {"cmd": found[1].strip()}, "I will run that.", request)


def _read(found: re.Match[str], request: ModelRequest) -> Scene:
    return using("read_file", {"path": found[1]}, f"I will read {found[1]}.", request)


def _search(found: re.Match[str], request: ModelRequest) -> Scene:
    arguments = {"query": found[1].strip(), "search_terms": found[1].split()[:_SEARCH_TERMS]}
    return using("keyword_search", arguments, f"I will look for {shortened(found[1])}.", request)


def _write(found: re.Match[str], request: ModelRequest) -> Scene:
    name = found[1] or "demo.txt"
    command = f"echo {_WRITTEN} > ./{name} && cat ./{name}"
    return using("bash", {"cmd": command}, f"I will write {name}.", request)


def _help(_: re.Match[str], request: ModelRequest) -> Scene:
    offered = {tool.name for tool in request.tools}
    more = "".join(line for tool, line in _HELP_WITH.items() if tool in offered)
    if names := [tool.name for tool in _client_tools(request)]:
        more += _HELP_WITH_CLIENTS.format(first=names[0], names=", ".join(names))
    return Scene(HELP.format(more=more))


def _call(found: re.Match[str], request: ModelRequest) -> Scene:
    """Call the named tool with the JSON object that follows the name; if none follows, with made-up input."""
    name = found[1]
    schemas = (tool.input_schema for tool in request.tools if tool.name == name)
    try:
        given = msgspec.json.decode(found[2], type=dict[str, Any]) if found[2] else sample(next(schemas, {}))
    except msgspec.DecodeError as error:
        return Scene(f"What follows {name} is not a JSON object: {error}")
    return using(name, given, f"I will call {name}.", request)


def _retry(_: re.Match[str], request: ModelRequest) -> Scene:
    if request.attempt == 1:
        return Scene(
            "This sentence is about to be thrown away, because",
            tempo=4,  # slow enough for a client to show some of the text before it is discarded
            fails="demo: a staged failure; nothing is wrong, this shows how a failed attempt is retried",
        )
    return Scene(
        f"This is attempt {request.attempt}. The first one failed on purpose: its text was discarded, "
        "and Bedrock waited and tried again. The failed attempt left nothing in the history."
    )


def _count(_: re.Match[str], __: ModelRequest) -> Scene:
    numbers = " ".join(map(str, range(1, _COUNT_TO + 1)))
    return Scene(f"I will count to {_COUNT_TO}, slowly. Cancel me: {numbers}. Done.", tempo=10)


def _sleep(found: re.Match[str], request: ModelRequest) -> Scene:
    seconds = min(int(found[1] or 25), 600)
    text = f"I will run a command that takes {seconds} seconds. Cancel it, and its whole process tree is killed."
    arguments: dict[str, Any] = {"cmd": f"sleep {seconds}"}
    if seconds > _PATIENCE_SECONDS:
        arguments["wait_seconds"] = seconds + _PATIENCE_SECONDS
    return using("bash", arguments, text, request)


def _think(_: re.Match[str], __: ModelRequest) -> Scene:
    return Scene(
        "That was reasoning: it is shown apart from the answer, and kept for the model that wrote it.",
        reasoning="The user wants to see me think. I weigh nothing, since I am a script, but I do it step by step.",
    )


def _agents(_: re.Match[str], request: ModelRequest) -> Scene:
    tasks = [{"task": task} for task in _TASKS]
    text = "I will start three sub-agents in parallel. Each has its own conversation, which you can watch."
    return using("spawn_sub_agent", {"tasks": tasks}, text, request)


def _upgrade(said: re.Match[str], request: ModelRequest) -> Scene:
    reason = "This demo shows how an agent asks for more rights. You can deny the request."
    mode = "workspace" if said[1].lower() == "workspace" else "unrestricted"
    asked = {"reason": reason, "mode": mode}
    return using("request_mode_upgrade", asked, f"I will ask you for {mode} mode.", request)


_COMMANDS: _Scenes = (
    (re.compile(r"^\s*run\s+(.+)", re.IGNORECASE | re.DOTALL), _run),
    (re.compile(r"^\s*read\s+(\S+)", re.IGNORECASE), _read),
    (re.compile(r"^\s*search\s+(\S.*)", re.IGNORECASE), _search),
    (re.compile(r"^\s*write(?:\s+([\w][\w.-]*))?\s*$", re.IGNORECASE), _write),
    (re.compile(r"^\s*call\s+([\w-]+)\s*(\{.*)?$", re.IGNORECASE | re.DOTALL), _call),
)
_SCENES: _Scenes = (
    (re.compile(r"\b(help|what can you do)\b", re.IGNORECASE), _help),
    (re.compile(r"\bretry\b", re.IGNORECASE), _retry),
    (re.compile(r"\b(slow|slowly|count)\b", re.IGNORECASE), _count),
    (re.compile(r"\bsleep\b(?:\s+(\d{1,4})\b)?", re.IGNORECASE), _sleep),
    (re.compile(r"\bthink\b", re.IGNORECASE), _think),
    (re.compile(r"\b(sub-?)?agents?\b", re.IGNORECASE), _agents),
    (re.compile(r"\b(upgrade|unrestricted|workspace)\b", re.IGNORECASE), _upgrade),
)


# --- scenes for tool results, and other scenes -------------------------------------------------------------------


def _after_tools(results: list[ToolResult], said: str, request: ModelRequest) -> Scene:
    calls = {block.id: block for turn in request.turns for block in turn.content if isinstance(block, ToolUse)}
    asked = [result for result in results if _name(calls, result) == _ASK]
    blocked = _blocked(request, calls)
    if not said and blocked and asked and not is_failed(asked[-1]):
        return using(blocked.name, _arguments(blocked), "Thank you. I will try again:", request)
    if not said and blocked and not asked and any(result.tool_use_id == blocked.id for result in results):
        return _ask_for_more(blocked, request)
    parts = [_report(_name(calls, result), result) for result in results]
    if said:
        parts.append(f'Meanwhile you said: "{shortened(said)}". It reached me between two steps.')
    return Scene("\n\n".join((*parts, "Type help to see what else I can show.")))


def _name(calls: dict[str, ToolUse], result: ToolResult) -> str:
    call = calls.get(result.tool_use_id)
    return call.name if call else "tool"


def _blocked(request: ModelRequest, calls: dict[str, ToolUse]) -> ToolUse | None:
    """The latest call that the mode did not allow, recognised by "request_mode_upgrade" in its result; or None."""
    results = [block for turn in request.turns for block in turn.content if is_tool_result(block)]
    found = (result for result in reversed(results) if _ASK in result.output and _name(calls, result) != _ASK)
    latest = next(found, None)
    return calls.get(latest.tool_use_id) if latest else None


def _arguments(call: ToolUse) -> dict[str, Any]:
    return msgspec.json.decode(call.input, type=dict[str, Any])


def _ask_for_more(call: ToolUse, request: ModelRequest) -> Scene:
    results = [block for turn in request.turns for block in turn.content if is_tool_result(block)]
    told = next(result.output for result in results if result.tool_use_id == call.id)
    mode = "workspace" if "The mode is workspace" in told else "restricted"
    if not any(tool.name == _ASK for tool in request.tools):
        return Scene(f"The mode is {mode}, so {call.name} could not do that, and I cannot ask for another mode here.")
    tried = shortened(next((value for value in _arguments(call).values() if isinstance(value, str)), call.name))
    text = f"The mode is {mode}, so {call.name} could not do that. I will ask you for more."
    return using(_ASK, {"reason": f"To run this, which changes something: {tried}"}, text, request)


def _lines(result: ToolResult) -> list[str]:
    """The lines of a result, without empty lines at the beginning and the end; the first line keeps its indentation."""
    return result.output.rstrip().lstrip("\n").splitlines()


def _report(name: str, result: ToolResult) -> str:
    if result.outcome is ToolOutcome.DENIED:
        return f"You said no, so {name} did not run. That is fine."
    lines = _lines(result)
    shown_lines = "\n".join(lines[:SHOWN_LINES])
    if is_failed(result):
        return f"{name} failed. It says:\n{shown_lines}"
    more = f"\n… and {len(lines) - SHOWN_LINES} more lines" if len(lines) > SHOWN_LINES else ""
    return f"{name} answered with {len(lines)} line{'' if len(lines) == 1 else 's'}:\n{shown_lines}{more}"


def _summary(request: ModelRequest) -> Scene:
    texts = [words_of(block) for turn in request.turns if turn.role == "user" for block in turn.content]
    topic = shortened(texts[0]) if texts else "nothing yet"
    return Scene(f'Summary by the demo model: {len(request.turns)} turns so far. It began with: "{topic}".')


def using(name: str, arguments: dict[str, Any], text: str, request: ModelRequest) -> Scene:
    if not any(tool.name == name for tool in request.tools):
        return Scene(f"I would use the tool {name} for that, but it is not available here. Type help for more.")
    return Scene(text, calls=((name, arguments),))


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:79] + "…"


_TASK_COMMANDS: _Scenes = (
    (re.compile(r"(?:^|:)\s*run\s+(.+)", re.IGNORECASE), _run),
    (re.compile(r"(?:^|:)\s*read\s+(\S+)", re.IGNORECASE), _read),
    (re.compile(r"^\s*count\b", re.IGNORECASE), _count),
)
_SUBMITTED_LINES = 5
_WENT_WELL = "[exit code 0]"


def sub_agent_scene(request: ModelRequest) -> Scene:
    """The demo model's answer as a sub-agent; the same request always gets the same answer."""
    task = next((text for turn in request.turns for text in said_in(turn)), "")
    last = request.turns[-1].content if request.turns else ()
    results = [block for block in last if is_tool_result(block) and not _is_submission(block, request)]
    if results:
        return _submit(results[-1], request)
    if any(turn.role == "assistant" for turn in request.turns):
        return using("submit_result", {"result": f"Done, by script: {shortened(task)}"}, "I am done.", request)
    return _begin(task, request)


def _begin(task: str, request: ModelRequest) -> Scene:
    for pattern, play in _TASK_COMMANDS:
        if found := pattern.search(task):
            return play(found, request)
    if any(tool.name == "think" for tool in request.tools):
        return using("think", {"thoughts": f"My task: {shortened(task)}"}, "I have a task.", request)
    return using("submit_result", {"result": f"Done, by script: {shortened(task)}"}, "I am done.", request)


def _submit(result: ToolResult, request: ModelRequest) -> Scene:
    lines = [line for line in _lines(result) if line != _WENT_WELL]
    said = "\n".join(lines[:_SUBMITTED_LINES]) or "nothing"
    if is_failed(result):
        return using("submit_error", {"error": said}, "That did not work.", request)
    return using("submit_result", {"result": said}, "I am done.", request)


def _is_submission(result: ToolResult, request: ModelRequest) -> bool:
    blocks = (block for turn in request.turns for block in turn.content)
    return any(
        isinstance(block, ToolUse) and block.id == result.tool_use_id and block.name.startswith("submit_")
        for block in blocks
    )


_TITLE_WORDS = 5
_MATCH = re.compile(r"^[^\n:]+:\d+:.*$", re.MULTILINE)


def side_query_scene(request: ModelRequest) -> Scene:
    """The answer to a request for a title or for excerpts; the same request always gets the same answer."""
    said = "".join(text_of(turn.content) for turn in request.turns)
    return _excerpts(said) if request.purpose is Purpose.EXCERPTS else _title(said)


def _title(said: str) -> Scene:
    words = said.split()
    return Scene(f"Demo: {' '.join(words[:_TITLE_WORDS])}{' …' if len(words) > _TITLE_WORDS else ''}")


def _excerpts(said: str) -> Scene:
    """Return the first lines that contain a match as excerpts, because a script cannot judge which lines are useful."""
    matches = _MATCH.findall(said.partition("Found:\n")[2])
    return Scene("\n".join(matches[:SHOWN_LINES]) or "Nothing relevant was found.", tempo=0.1)


# The name of the demo model, which every server offers.
DEMO = "demo"

_WINDOW = 64_000
_OUTPUT = 4_000
_WORD = re.compile(r"\s*\S+|\s+")
_CHARS_PER_TOKEN = 4


class DemoModel:
    def __init__(self, pace: float = 0.03) -> None:
        self.info = ModelInfo(
            name=DEMO,
            display_name="Demo (scripted)",
            provider=DEMO,
            protocol=DEMO,
            context_window=_WINDOW,
            max_output=_OUTPUT,
            usable_window=_WINDOW - _OUTPUT,
            reasoning_efforts=tuple(ReasoningEffort),
        )
        self._pace = pace

    def respond(self, request: ModelRequest, sink: ModelSink, cancel: CancelToken) -> ModelAnswer:
        if cancel.cancelled:
            raise ModelAbortedError
        scene = _scene(request)
        sink.started()
        sink.flush()
        self._say(scene.reasoning, scene, sink, cancel, reasoning=True)
        self._say(scene.text, scene, sink, cancel, reasoning=False)
        if scene.fails:
            raise ModelFailedError(LlmFailure(ErrorKind.SERVER_ERROR, scene.fails))
        content = _content(scene, request)
        return ModelAnswer(content, end_turn=not scene.calls, usage=_usage(request, content))

    def _say(self, text: str, scene: Scene, sink: ModelSink, cancel: CancelToken, *, reasoning: bool) -> None:
        for word in _WORD.findall(text):
            if cancel.wait(self._pace * scene.tempo):
                raise ModelAbortedError
            sink.text(word, reasoning=reasoning)
            sink.flush()
        if cancel.cancelled:
            raise ModelAbortedError


def _scene(request: ModelRequest) -> Scene:
    if request.purpose is not Purpose.CONVERSATION:
        return side_query_scene(request)
    is_sub_agent = any(tool.name == "submit_result" for tool in request.tools)
    scene = sub_agent_scene(request) if is_sub_agent else scene_for(request)
    if not scene.calls:
        scene = _with_output(scene, request)
    silent = request.generation.reasoning_effort is ReasoningEffort.NONE
    return replace(scene, reasoning="") if silent else scene


def _with_output(scene: Scene, request: ModelRequest) -> Scene:
    schema = next((tool.input_schema for tool in request.tools if tool.name == SUBMIT_OUTPUT), None)
    return scene if schema is None else replace(scene, text="", calls=((SUBMIT_OUTPUT, sample(schema)),))


def _content(scene: Scene, request: ModelRequest) -> tuple[Content, ...]:
    blocks: list[Content] = [Reasoning(scene.reasoning, DEMO, DEMO)] if scene.reasoning else []
    if scene.text or not scene.calls:
        blocks.append(Text(scene.text))
    for index, (name, arguments) in enumerate(scene.calls):
        blocks.append(ToolUse(call_id(request.request_id, index), name, msgspec.json.encode(arguments).decode()))
    return tuple(blocks)


def _usage(request: ModelRequest, content: tuple[Content, ...]) -> Usage:
    tools = sum(len(tool.description) + len(msgspec.json.encode(tool.input_schema)) for tool in request.tools)
    read = len(request.system) + tools + sum(len(words_of(block)) for turn in request.turns for block in turn.content)
    return Usage(read // _CHARS_PER_TOKEN, sum(map(len, map(words_of, content))) // _CHARS_PER_TOKEN)
