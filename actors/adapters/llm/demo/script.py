"""The script of the demo model: chooses the next scene (answer) of a conversation. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from actors.adapters.llm.demo.sample import sample
from actors.adapters.llm.protocols.rendering import image_placeholder, is_failed
from actors.core.content import (
    Content,
    Image,
    Reasoning,
    Text,
    ToolCancelled,
    ToolOutcome,
    ToolResult,
    ToolUse,
    is_tool_result,
)
from actors.core.history import Turn
from actors.core.steps.submissions import SUBMIT_OUTPUT
from actors.ports import ModelRequest, ToolSpec

HELP = """I am scripted, but what I do here is real: my tools run (or ask you first), my failures are retried, and you \
can cancel me at any time. Type one of these:
  run <command>   run a command with the bash tool
  read <file>     read a file
  search <words>  look for words; where much is found, a small model (scripted too) picks what matters
  write <name>    write a file in the working directory; where the mode forbids that, I ask you first
  think           show reasoning before the answer
  retry           let the first attempt fail, so that you see it tried again
  count           a long, slow answer: cancel it
  sleep           a long, slow command: cancel it
{more}To talk to a real model set ANTHROPIC_API_KEY or OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own \
(OPENAI_MODEL names its model), and start again."""

_HELP_WITH = {
    "spawn_sub_agent": "  agents          start three sub-agents and collect their results\n",
    "request_mode_upgrade": "  upgrade         ask you for unrestricted mode\n",
}
"""Lines of the help text, by tool; a line is shown only if its tool is offered."""
_HELP_WITH_CLIENTS = """  call <tool>     call a tool, with made-up input or with what follows: call {first} {{…}}
I also call a tool of your program where all words of its name are in what you say: {names}.
"""
"""Lines of the help text that are shown only if a client offers tools of its own."""

_GREETING = """Hello! I am Bedrock's demo model. I follow a script, so no key is needed; everything around me is real. \
Let me look around first. I would like to list the files here; depending on the policy you are asked whether I may."""
_LIST = "ls -A | head -n 20"
_WRITTEN = "written by the demo model"
_COUNT_TO = 60
_TASKS = (
    "Count what is in this directory: run sleep 1; ls -A | wc -l",
    "Find the largest file: run sleep 2; ls -S | head -n 1",
    "See what the project is: read README.md",
)
"""Tasks for sub-agents. The module `sub_agent` recognises them by words such as "run" and "read"."""
SHOWN_LINES = 8
_SEARCH_TERMS = 5
_PATIENCE_SECONDS = 25
"""A sleep of more seconds gets the argument `wait_seconds`; otherwise bash would move it to the background."""
_ASK = "request_mode_upgrade"
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")
_NOTICE = "<system-notice>\n"
_RESULTS = re.compile(re.escape(_NOTICE) + r'(Task: ".*)\n</system-notice>', re.DOTALL)
"""Matches the system message with the results of sub-agents that a user has started."""


class Scene(Struct, frozen=True):
    """One answer of the script."""

    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    fails: str = ""
    """If not "", the attempt fails with this text after the answer was streamed."""
    tempo: float = 1.0
    """Factor for the length of the pauses between words."""


_Play: TypeAlias = Callable[[re.Match[str], ModelRequest], Scene]
_Scenes: TypeAlias = tuple[tuple[re.Pattern[str], _Play], ...]


def scene_for(request: ModelRequest) -> Scene:
    """Return the demo model's answer to a request; the same request always gets the same answer."""
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
        return Scene(f"The sub-agents are done. They say:\n{found[1]}")
    # If the user cancelled a tool call, a message that follows is a new request, not a comment on the call's result.
    ended = any(isinstance(result, ToolCancelled) for result in results)
    wanted = _wanted(said, request)
    if results and not wanted and not (ended and said):
        return _after_tools(results, said, request)
    if wanted:
        play, found = wanted
        return play(found, request)
    if not any(turn.role == "assistant" for turn in request.turns):
        return using("bash", bash_input(request, _LIST), _GREETING, request)
    return Scene(
        f'You said: "{shortened(said)}". A real model would have something to say to that; I only know my script. '
        "Type help for what I can show, or set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL for a real model."
    )


def _wanted(said: str, request: ModelRequest) -> tuple[_Play, re.Match[str]] | None:
    """Return the function that makes the scene that a user's text `said` asks for, and the match of its pattern.

    The text is searched for a command at its beginning, then for the names of clients' tools, then for a known word.
    Returns None if it contains none of these.
    """
    for scenes in (_COMMANDS, _of_clients(said, request), _SCENES):
        for pattern, play in scenes:
            if found := pattern.search(said):
                return play, found
    return None


def _of_clients(said: str, request: ModelRequest) -> _Scenes:
    """Return a scene that calls every client tool whose name consists of words of the user's text; () for no tool."""
    words = set(_words_in(said))
    named = [tool for tool in _client_tools(request) if words.issuperset(_words_in(tool.name))]
    calls = tuple((tool.name, sample(tool.input_schema)) for tool in named)
    text = f"I will call {' and '.join(name for name, _ in calls)}, with made-up input."
    return ((re.compile(""), lambda *_: Scene(text, calls=calls)),) if calls else ()


def _client_tools(request: ModelRequest) -> list[ToolSpec]:
    return [tool for tool in request.tools if tool.traits.client]


def _words_in(text: str) -> list[str]:
    """Return the words of a text, or of a name such as find_order or findOrder, in lower case."""
    return [word.lower() for word in _NAME_WORD.findall(text)]


def said_in(turn: Turn) -> list[str]:
    """Return those texts in a turn that users wrote: all texts except system notices."""
    texts = (block.text for block in turn.content if isinstance(block, Text))
    return [text for text in texts if not text.startswith(_NOTICE)]


def _end_of(turn: Turn) -> str:
    block = turn.content[-1] if turn.content else None
    return block.text if isinstance(block, Text) else ""


def words_of(block: Content) -> str:
    """Return the text of a content block as a model would read it."""
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
    return using("bash", bash_input(request, found[1].strip()), "I will run that.", request)


def _read(found: re.Match[str], request: ModelRequest) -> Scene:
    return using("read_file", {"path": found[1]}, f"I will read {found[1]}.", request)


def _search(found: re.Match[str], request: ModelRequest) -> Scene:
    arguments = {"query": found[1].strip(), "search_terms": found[1].split()[:_SEARCH_TERMS]}
    return using("keyword_search", arguments, f"I will look for {shortened(found[1])}.", request)


def _write(found: re.Match[str], request: ModelRequest) -> Scene:
    name = found[1] or "demo.txt"
    command = f"echo {_WRITTEN} > ./{name} && cat ./{name}"
    return using("bash", bash_input(request, command), f"I will write {name}.", request)


def _help(_: re.Match[str], request: ModelRequest) -> Scene:
    offered = {tool.name for tool in request.tools}
    more = "".join(line for tool, line in _HELP_WITH.items() if tool in offered)
    if names := [tool.name for tool in _client_tools(request)]:
        more += _HELP_WITH_CLIENTS.format(first=names[0], names=", ".join(names))
    return Scene(HELP.format(more=more))


def _call(found: re.Match[str], request: ModelRequest) -> Scene:
    """Call a tool by its name, with the JSON object that follows the name or, without one, with made-up input."""
    name = found[1]
    schemas = (tool.input_schema for tool in request.tools if tool.name == name)
    try:
        given = msgspec.json.decode(found[2], type=dict[str, Any]) if found[2] else sample(next(schemas, {}))
    except msgspec.DecodeError as error:
        return Scene(f"What follows {name} is no JSON object: {error}")
    return using(name, given, f"I will call {name}.", request)


def _retry(_: re.Match[str], request: ModelRequest) -> Scene:
    if request.attempt == 1:
        return Scene(
            "This sentence is about to be thrown away, because",
            tempo=4,  # slow enough for a client to show some of the text before it is discarded
            fails="demo: a staged failure; nothing is wrong, this shows how a failed attempt is tried again",
        )
    return Scene(
        f"This is attempt {request.attempt}. The first one failed on purpose: its text was discarded, "
        "Bedrock waited and asked again. Nothing of the failed attempt is in the history."
    )


def _count(_: re.Match[str], __: ModelRequest) -> Scene:
    numbers = " ".join(map(str, range(1, _COUNT_TO + 1)))
    return Scene(f"I count to {_COUNT_TO}, slowly. Cancel me: {numbers}. Done.", tempo=10)


def _sleep(found: re.Match[str], request: ModelRequest) -> Scene:
    seconds = min(int(found[1] or 25), 600)
    text = f"I will run a command that takes {seconds} seconds. Cancel it, and its whole process tree is gone at once."
    arguments = bash_input(request, f"sleep {seconds}")
    if seconds > _PATIENCE_SECONDS and "wait_seconds" in _properties(request):
        arguments["wait_seconds"] = seconds + _PATIENCE_SECONDS
    return using("bash", arguments, text, request)


def _think(_: re.Match[str], __: ModelRequest) -> Scene:
    return Scene(
        "That was reasoning: shown apart from the answer, and kept for the model that wrote it.",
        reasoning="The user wants to see me think. I weigh nothing, since I am a script, but I do it step by step.",
    )


def _agents(_: re.Match[str], request: ModelRequest) -> Scene:
    tasks = [{"task": task} for task in _TASKS]
    text = "I will ask three sub-agents, in parallel. Each has a conversation of its own: watch them."
    return using("spawn_sub_agent", {"tasks": tasks}, text, request)


def _upgrade(said: re.Match[str], request: ModelRequest) -> Scene:
    reason = "The demo shows how an agent asks for more rights. Deny it if you like."
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
        return using(blocked.name, _arguments(blocked), "Thank you. Then once more:", request)
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
    """Return the latest tool call that the mode did not allow; None if there is none.

    The result of such a call mentions the tool request_mode_upgrade.
    """
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
        return Scene(f"The mode is {mode}, so {call.name} could not do that, and I cannot ask for more here.")
    tried = shortened(next((value for value in _arguments(call).values() if isinstance(value, str)), call.name))
    text = f"The mode is {mode}, so {call.name} could not do that. I will ask you for more."
    return using(_ASK, {"reason": f"To run this, which changes something: {tried}"}, text, request)


def _report(name: str, result: ToolResult) -> str:
    if result.outcome is ToolOutcome.DENIED:
        return f"You said no, so {name} did not run. That is fine."
    lines = result.output.strip().splitlines()
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
    """Return an answer that calls a tool, or that says that this tool is not offered."""
    if not any(tool.name == name for tool in request.tools):
        return Scene(f"I would use the tool {name} for that, but it is not offered here. Type help for more.")
    return Scene(text, calls=((name, arguments),))


def bash_input(request: ModelRequest, command: str) -> dict[str, Any]:
    """Return the arguments for the bash tool, whose schema names the command either "command" or "cmd"."""
    properties = _properties(request)
    return {"command" if "command" in properties and "cmd" not in properties else "cmd": command}


def _properties(request: ModelRequest) -> dict[str, Any]:
    schemas = (tool.input_schema for tool in request.tools if tool.name == "bash")
    properties: dict[str, Any] = next(schemas, {}).get("properties", {})
    return properties


def shortened(text: str) -> str:
    """Return the text on one line of at most 80 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:79] + "…"
