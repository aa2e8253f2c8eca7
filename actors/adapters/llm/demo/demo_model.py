"""The demo model: a script that answers without a key or network. Only the model is simulated.

Its answers depend only on the request (see `script`). The server treats them like those of other models: text streams,
tool calls run or ask for approval, a simulated failure is retried, and everything can be cancelled.
"""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import replace

from actors.adapters.llm.demo.demo_side_queries import side_query_scene
from actors.adapters.llm.demo.sample import sample
from actors.adapters.llm.demo.script import Scene, scene_for, words_of
from actors.adapters.llm.demo.sub_agent import sub_agent_scene
from actors.core.content import Content, Reasoning, Text, ToolUse, Usage, call_id
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.profile import ReasoningEffort
from actors.core.steps.submissions import SUBMIT_OUTPUT
from actors.ports import (
    CancelToken,
    ModelAbortedError,
    ModelAnswer,
    ModelFailedError,
    ModelInfo,
    ModelRequest,
    ModelSink,
    Purpose,
)

#: The name of the demo model, which every server offers.
DEMO = "demo"

_WINDOW = 64_000
_OUTPUT = 4_000
_WORD = re.compile(r"\s*\S+|\s+")
_CHARS_PER_TOKEN = 4


class DemoModel:
    """Implements ports.Model by a script. Safe to call from any thread."""

    def __init__(self, pace: float = 0.03) -> None:
        """`pace` is the pause between two words in seconds; tests set it to 0."""
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
        """Stream the script's answer to the request; see ports.Model."""
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
    """Return `scene`, the last answer of a run; if the run has an output schema, one that submits a matching value."""
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
