"""A model whose parents start sub-agents, and whose sub-agents do what their task says."""

import json
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from actors import ports
from actors.adapters.tools.sub_agent_tools import ERROR_SPEC, RESULT_SPEC, SpawnSubAgentTool
from actors.core.content import SubAgentComplete, Text, ToolUse, Usage
from actors.core.context import ToolGroup, ToolTraits
from actors.core.errors import ErrorKind, LlmFailure
from tests.support.patience import PATIENCE, eventually
from tests.support.toolboxes import NothingKept

WINDOW = 190_000


def call(request: ports.ModelRequest, name: str, **arguments: Any) -> ports.ModelAnswer:
    """The one call of an answer. Its id is new, whatever the request has been answered before."""
    return answer(request, ToolUse(f"{request.request_id.replace(':', '-')}", name, json.dumps(arguments)))


def answer(request: ports.ModelRequest, *content: Any, tokens: int = 100) -> ports.ModelAnswer:
    blocks = tuple(Text(block) if isinstance(block, str) else block for block in content)
    ended = all(isinstance(block, Text) for block in blocks)
    return ports.ModelAnswer(blocks, ended, Usage(input_tokens=tokens - 10, output_tokens=10, cost_micros=tokens))


class Gates(dict[str, threading.Event]):
    """Events by name, made on first use; two threads that use one first at the same time get the same."""

    def __missing__(self, name: str) -> threading.Event:
        return self.setdefault(name, threading.Event())


class FamilyModel:
    """Sub-agents do what the first word of their task says, with the rest of it; a parent's message holds its tasks."""

    info = ports.ModelInfo("scripted", "Scripted", "tests", "demo", 200_000, 8_000, WINDOW)

    def __init__(self) -> None:
        self.requests: list[ports.ModelRequest] = []
        self.running: set[str] = set()
        """Conversations that a request of is under way."""
        self.gates = Gates()
        """What "wait" waits for, by name."""
        self.hanging = threading.Event()
        """A sub-agent that does not end by itself has begun."""
        self.news = threading.Condition()

    def asked(self, conversation_id: str) -> int:
        return sum(request.conversation_id == conversation_id for request in self.requests)

    def at_rest(self) -> bool:
        return not self.running

    def until_asked(self, conversation_id: str, times: int = 1) -> None:
        with self.news:
            assert self.news.wait_for(lambda: self.asked(conversation_id) >= times, PATIENCE)

    def respond(
        self, request: ports.ModelRequest, sink: ports.ModelSink, cancel: ports.CancelToken
    ) -> ports.ModelAnswer:
        if cancel.cancelled:  # as every adapter does before it asks anybody
            raise ports.ModelAbortedError
        with self.news:
            self.requests.append(request)
            self.running.add(request.conversation_id)
            self.news.notify_all()
        try:
            if "submit_result" not in {tool.name for tool in request.tools}:
                return self._parent(request)
            said = next(block for block in request.turns[0].content if isinstance(block, Text)).text
            word, _, rest = said.partition(" ")
            return self._sub_agent(request, word, rest, sink, cancel)
        finally:
            with self.news:
                self.running.discard(request.conversation_id)

    def _parent(self, request: ports.ModelRequest) -> ports.ModelAnswer:
        last = request.turns[-1].content[-1]
        if isinstance(last, Text) and last.text.startswith("["):
            return call(request, "spawn_sub_agent", tasks=json.loads(last.text))
        return answer(request, "All is told.")

    def _sub_agent(
        self, request: ports.ModelRequest, word: str, rest: str, sink: ports.ModelSink, cancel: ports.CancelToken
    ) -> ports.ModelAnswer:
        match word:
            case "submit":
                return call(request, "submit_result", result=rest)
            case "error":
                return call(request, "submit_error", error=rest)
            case "wait":
                return self._wait(request, rest, cancel)
            case "hang":
                sink.text("Let me see")
                sink.flush()
                self.hanging.set()
                assert cancel.wait(PATIENCE * 2)
                raise ports.ModelAbortedError
            case "talk":
                return answer(request, f"I think: {rest}")
            case "use":  # a tool in every turn, without an end
                return answer(request, f"turn {self.asked(request.conversation_id)}", *call(request, rest).content)
            case "nest":
                return call(request, "spawn_sub_agent", tasks=[{"task": rest}])
            case "last":  # submits only once this is the last turn
                said = "".join(block.text for block in request.turns[-1].content if isinstance(block, Text))
                is_last = "this is your last turn" in said
                return self._sub_agent(request, *(("submit", rest) if is_last else ("use", "look")), sink, cancel)
            case "overloaded":
                raise ports.ModelFailedError(
                    LlmFailure(ErrorKind.RATE_LIMIT, "too many requests"), retry_after_ms=50_000
                )
            case "refused":
                raise ports.ModelFailedError(LlmFailure(ErrorKind.AUTH, "the key is wrong"))
            case "fill":
                return answer(request, "I read it all.", *call(request, "look").content, tokens=WINDOW)
            case _:
                raise AssertionError(f"no such task: {word}")

    def _wait(self, request: ports.ModelRequest, rest: str, cancel: ports.CancelToken) -> ports.ModelAnswer:
        gate = self.gates[rest]
        cancel.on_cancel(gate.set)
        assert gate.wait(PATIENCE)
        if cancel.cancelled:
            raise ports.ModelAbortedError
        return call(request, "submit_result", result=rest)


class FamilyBox(NothingKept):
    """look answers at once, linger lasts until it is cancelled, read_file reads files that tests have made."""

    def __init__(self) -> None:
        self.lingering = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.forgotten: list[str] = []
        self.files: dict[str, str] = {}
        self._runs: dict[str, Callable[[Mapping[str, Any], ports.ToolContext], ports.ToolOutput]] = {
            "look": lambda arguments, context: ports.ToolOutput("seen"),
            "linger": self._linger,
            "read_file": self._read,
        }

    def specs(self, *, sub_agent: bool) -> tuple[ports.ToolSpec, ...]:
        traits = [ToolTraits(name, ToolGroup.OTHER, retry_safe=True) for name in self._runs]
        standard = tuple(ports.ToolSpec(each.name, {}, each) for each in traits)
        return (*standard, RESULT_SPEC, ERROR_SPEC) if sub_agent else (*standard, SpawnSubAgentTool().spec)

    def get(self, name: str) -> Any:
        if name == "spawn_sub_agent":
            return SpawnSubAgentTool()
        return SimpleNamespace(spec=ports.ToolSpec(name, {}, ToolTraits(name, ToolGroup.OTHER)), run=self._runs[name])

    def parse(self, name: str, raw: str) -> Mapping[str, Any]:
        parsed: Mapping[str, Any] = json.loads(raw)
        return parsed

    def forget(self, conversation_id: str) -> None:
        self.forgotten.append(conversation_id)

    def _linger(self, arguments: Mapping[str, Any], context: ports.ToolContext) -> ports.ToolOutput:
        self.lingering.release()
        assert context.cancel.wait(PATIENCE * 2)
        self.ended.release()
        return ports.ToolOutput("cut off", is_error=True)

    def _read(self, arguments: Mapping[str, Any], context: ports.ToolContext) -> ports.ToolOutput:
        text = self.files.get(arguments["path"])
        if text is None:
            return ports.ToolOutput(f"Cannot read {arguments['path']}: no such file.", is_error=True)
        return ports.ToolOutput(text)


def tasks(*texts: str, **more: Any) -> str:
    """A message that makes a parent start these."""
    return json.dumps([{"task": text, **more} for text in texts])


def child(talk: Any, number: int) -> Any:
    return type(talk)(talk.world, f"{talk.id}-a{number}")


def aggregate(talk: Any) -> list[str]:
    """The report that the parent's model got, a paragraph per task."""
    history = talk.world.truth.history(talk.id, talk.state.ledger.seq)
    (report,) = [block for message in history for block in message.content if isinstance(block, SubAgentComplete)]
    return report.output.split("\n\n")


def all_left(world: Any) -> None:
    """Wait until only idle parents have an actor."""
    eventually(lambda: not world.supervisor._shared.sub_agents._parents, "idle parents only")
