"""Make `edition_3.db.xz`: logs that hold every text and rule of `Rules.OWN_TOOLS`, the third edition of the rules.

    .venv/bin/python -m tests.upgrade.make_edition_3 tests/upgrade/edition_3.db.xz

The machine is fed by a script, so the database is the same each time. It must be made with code in which that edition
says what it said when it was the newest; `test_edition_3.py` holds later code to it.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from actors.adapters.store.sqlite.engine import FILE, sqlite3
from actors.adapters.store.sqlite.store import open_store
from actors.core.content import Delivery, Text, ToolError, ToolSuccess, ToolUse
from actors.core.context import (
    Action,
    ApprovalPolicy,
    ApprovalRule,
    Budget,
    ConvContext,
    Limits,
    Mode,
    Origin,
    Rules,
    ToolGroup,
    ToolTraits,
)
from actors.core.errors import ErrorKind, LlmFailure
from actors.core.events import (
    AgentsSpawned,
    AnswerQuestion,
    ApprovalResponse,
    AskQuestion,
    InternalFault,
    LlmAborted,
    LlmError,
    LlmResponse,
    LlmStreamChunk,
    McpRestarted,
    Restart,
    RetryTimeout,
    SpawnSubAgents,
    SubAgentResult,
    SubAgentTimeout,
    SubmitToolResult,
    ToolAborted,
    ToolDeadline,
    ToolRetryTimeout,
    ToolTransient,
    TriggerContinuation,
    UserCancel,
    UserMessage,
)
from actors.core.states import (
    AgentFailed,
    AgentSucceeded,
    AgentTask,
    AwaitingContinuation,
    AwaitingSubAgents,
    Cancelling,
    LlmPhase,
    LlmRequesting,
    ToolExecuting,
    ToolPhase,
)
from tests.machine.columns import PARENT, TOOLS, WINDOW
from tests.machine.talk import Talk
from tests.property.test_fork import ForkedWorld
from tests.property.written import WrittenWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from actors.core.content import Content
    from actors.core.events import Event
    from actors.core.transition import Step
    from actors.ports import Store

CLIENT_TOOLS = (
    ToolTraits("find_order", ToolGroup.READ, client=True, timeout_ms=60_000),
    ToolTraits("ship_order", ToolGroup.WRITE, writes=True, client=True, timeout_ms=60_000),
)
CONTEXT = replace(
    PARENT,
    mode=Mode.UNRESTRICTED,
    limits=Limits(max_rounds=6, max_turns=3),
    tools=(*TOOLS, ToolTraits("spawn_sub_agent", ToolGroup.OTHER), *CLIENT_TOOLS),
    rules=Rules.OWN_TOOLS,
)
FULL = WINDOW * 9 // 10
BASH = ToolUse("t1", "bash", '{"command": "make"}')
READ = ToolUse("t2", "read_file", '{"path": "a"}')
PATCH = ToolUse("t3", "patch", '{"path": "a"}')
SPAWN = ToolUse("t1", "spawn_sub_agent", "{}")
OVERLOADED = LlmFailure(ErrorKind.SERVER_ERROR, "overloaded")
TOO_LONG = LlmFailure(ErrorKind.CONTEXT_EXHAUSTED, "the prompt is too long")
DENIED_BY = (
    ApprovalRule("r1", Action.DENY, tool="bash", origin=Origin.OPERATOR),
    ApprovalRule("r2", Action.DENY, tool="read_file"),
)


class StoredTalk(Talk):
    """A conversation whose every event is in a store's log."""

    def __init__(self, world: WrittenWorld) -> None:
        super().__init__(world.context, world.state)
        self.world = world

    def tell(self, event: Event) -> tuple[Step, ...]:
        assert self.world.apply(event) is True, (event, self.state)
        self.state, self.context = self.world.state, self.world.context
        return ()

    def at(self) -> int:
        return self.world.now

    def answer(self, *content: Content, **fields: Any) -> tuple[Step, ...]:
        return super().answer(*self.named(content), **fields)

    def named(self, content: Iterable[Content]) -> Iterator[Content]:
        """The content, with ids of calls that no other answer of the conversation has."""
        for block in content:
            yield replace(block, id=self.id_of(block.id)) if isinstance(block, ToolUse) else block

    def id_of(self, call_id: str) -> str:
        """The id of a call of the last answer."""
        return f"{call_id}-{self.state.ledger.req}"

    @property
    def request(self) -> tuple[str, int]:
        """The request that waits for an answer."""
        assert isinstance(self.state, (LlmRequesting, AwaitingContinuation)), self.state
        return self.state.request_id, self.state.attempt

    @property
    def execution(self) -> tuple[str, int]:
        """The execution that waits for a result."""
        assert isinstance(self.state, ToolExecuting), self.state
        return self.state.current_tool_id, self.state.execution_id

    def ask(self, text: str = "go on", **fields: Any) -> None:
        self.tell(UserMessage(self.at(), self.world.new_id("m"), text, **fields))

    def stream(self) -> None:
        self.tell(LlmStreamChunk(self.at(), *self.request, Text("~")))

    def fail(self, failure: LlmFailure = OVERLOADED, retry_after_ms: int | None = None) -> None:
        """The attempt fails; if it is tried again, that attempt has begun."""
        self.tell(LlmError(self.at(), *self.request, failure, retry_after_ms))
        if isinstance(self.state, (LlmRequesting, AwaitingContinuation)) and self.state.phase is LlmPhase.BACKOFF:
            self.tell(RetryTimeout(self.at(), *self.request))

    def fail_all(self) -> None:
        for _ in range(self.context.limits.max_attempts):
            self.fail()

    def spawn(self) -> None:
        """Three sub-agents begin."""
        tasks = tuple(AgentTask("", f"task {number}", "/work", "model-1", 3, 60_000) for number in range(3))
        self.call(SPAWN)
        self.tell(AgentsSpawned(self.at(), *self.execution, tasks))

    def cancel(self, **fields: Any) -> None:
        self.tell(UserCancel(self.at(), **fields))

    def restart(self) -> None:
        self.tell(Restart(self.at()))

    def summarize(self) -> None:
        self.tell(TriggerContinuation(self.at()))

    def succeed(self) -> None:
        self.result(ToolSuccess("", "done"))


def interruptions(new: Callable[..., StoredTalk]) -> None:
    """A cancel and a restart at every step of a run. Each next message begins with the notice of it."""
    for end in (StoredTalk.cancel, StoredTalk.restart):
        talk = new()
        talk.ask()
        end(talk)
        talk.ask()
        talk.stream()
        end(talk)
        talk.ask()
        talk.call(READ)
        talk.succeed()
        end(talk)
        talk.ask()
        talk.call(PATCH, BASH)
        end(talk)
        talk.ask()
        talk.call(BASH, READ)
        end(talk)
        talk.ask()
        talk.spawn()
        end(talk)
        for agent in talk.state.pending_agents if isinstance(talk.state, Cancelling) else ():
            talk.tell(SubAgentTimeout(talk.at(), agent.agent_id))
        talk.ask()
        talk.answer(Text("full"), used=FULL)
        end(talk)
        talk.ask()
        talk.text("done")
    talk = new()
    talk.ask()
    talk.ask("later", delivery=Delivery.FOLLOW_UP)
    talk.ask("now", delivery=Delivery.STEER)
    talk.cancel(discard_queued=True, kill_jobs=True, reason="enough")


def tools(new: Callable[..., StoredTalk]) -> None:
    """Results that the machine writes itself."""
    talk = new()
    talk.ask()
    talk.call(READ, BASH)
    for _ in range(3):
        talk.tell(ToolTransient(talk.at(), *talk.execution, "no sandbox"))
        if isinstance(talk.state, ToolExecuting) and talk.state.phase is ToolPhase.BACKOFF:
            talk.tell(ToolRetryTimeout(talk.at(), *talk.execution, talk.state.attempt))
    talk.tell(ToolTransient(talk.at(), *talk.execution, "no sandbox"))
    talk.call(BASH)
    talk.tell(ToolAborted(talk.at(), *talk.execution))
    talk.call(SPAWN)
    talk.tell(AgentsSpawned(talk.at(), *talk.execution, ()))
    talk.call(BASH, READ)
    talk.tell(InternalFault(talk.at(), "see the log"))
    talk.ask()
    talk.answer(BASH, end_turn=False, truncated=True)
    talk.call(READ)
    talk.result(ToolError("", "no such file"))
    talk.call(BASH, used=FULL)
    talk.text("the summary")

    talk = new(tools=(*CLIENT_TOOLS, *(each for each in TOOLS if each.name != "request_mode_upgrade")))
    talk.ask()
    talk.call(ToolUse("t1", "request_mode_upgrade", "{}"))
    talk.call(ToolUse("t1", "find_order", "{}"), ToolUse("t2", "ship_order", "{}"))
    talk.tell(ToolDeadline(talk.at(), *talk.execution))
    talk.tell(SubmitToolResult(talk.at(), talk.id_of("t2"), ToolSuccess("", "sent")))
    talk.call(ToolUse("t1", "find_order", "{", "not valid: no id"))
    talk.set_mode(Mode.RESTRICTED)
    talk.call(ToolUse("t1", "ship_order", "{}"))
    talk.text("done")

    talk = new()
    talk.ask()
    talk.call(BASH)
    talk.tell(AskQuestion(talk.at(), *talk.execution, 1, "files", "Which?", 60_000, "{}"))
    talk.tell(AnswerQuestion(talk.at(), 1, accept=True, content="{}"))
    talk.succeed()
    talk.text("done")


def approvals(new: Callable[..., StoredTalk]) -> None:
    """Decisions of people and of rules; among them on a call whose input its tool refuses after the yes."""
    talk = new(approval_policy=ApprovalPolicy.ASK_ALL)

    def decide(call_id: str, approve: bool, reason: str = "") -> None:
        talk.tell(ApprovalResponse(talk.at(), talk.id_of(call_id), approve, reason))

    talk.ask()
    talk.call(BASH, READ)
    decide("t1", True)
    decide("t2", False, "not that file")
    talk.call(BASH)
    decide("t1", False)
    talk.call(ToolUse("t1", "bash", '{"cmd": 1}'))
    decide("t1", True)
    talk.result(ToolError("", "The input does not fit the tool's schema."))
    talk.call(ToolUse("t1", "find_order", "{", "not valid: no id"), READ)
    decide("t2", True)
    talk.succeed()
    talk.text("done")

    talk = new(approval_rules=DENIED_BY)
    talk.ask()
    talk.call(BASH, PATCH)
    talk.call(READ)
    talk.text("done")


def modes(new: Callable[..., StoredTalk]) -> None:
    """Changes of the mode, with and without calls that are stopped, and MCP servers that start again."""
    talk = new()
    for mode in (Mode.RESTRICTED, Mode.WORKSPACE, Mode.UNRESTRICTED):
        talk.set_mode(mode)
    talk.ask()
    for mode in (Mode.RESTRICTED, Mode.WORKSPACE, Mode.UNRESTRICTED):
        talk.call(BASH, READ)
        talk.set_mode(mode, talk.id_of("t1"))
        talk.succeed()
    talk.text("done")
    talk.tell(McpRestarted(talk.at(), ("files", "github")))
    talk.ask()
    talk.text("done")
    talk = new(tools=())
    talk.set_mode(Mode.RESTRICTED)
    talk.ask()
    talk.text("done")
    talk = new(mode=Mode.RESTRICTED)
    talk.ask()
    talk.call(ToolUse("t1", "request_mode_upgrade", '{"mode":"workspace"}'))
    talk.tell(ApprovalResponse(talk.at(), talk.id_of("t1"), True))
    talk.succeed()
    talk.text("done")


def failures(new: Callable[..., StoredTalk]) -> None:
    """Requests that fail, limits that are reached, and answers that are not finished."""
    talk = new()
    talk.ask()
    talk.fail_all()
    talk.ask()
    talk.fail(LlmFailure(ErrorKind.AUTH, "no such key"))
    talk.ask()
    talk.fail(LlmFailure(ErrorKind.RATE_LIMIT, "slow down"), 3_600_000)
    talk.ask()
    talk.tell(LlmAborted(talk.at(), *talk.request))
    talk.tell(RetryTimeout(talk.at(), *talk.request))
    talk.answer(end_turn=False)
    talk.tell(RetryTimeout(talk.at(), *talk.request))
    talk.answer(end_turn=False)
    talk.ask()
    for text in ("one", "two", "three", "four"):
        talk.answer(Text(text), end_turn=False, truncated=True, used=WINDOW // 2)
    talk.ask()
    for _ in range(talk.context.limits.max_rounds):
        talk.call(READ)
        talk.succeed()
    talk = new(limits=replace(CONTEXT.limits, max_attempts=1))
    talk.ask()
    talk.fail()
    for spent in ({"budget": Budget(run_tokens=10)}, {"quota_spent": "the quota of 10 tokens per day"}):
        talk = new(**spent)
        talk.ask()
        if "budget" in spent:
            talk.answer(READ, end_turn=False, used=WINDOW // 2)
            talk.succeed()


def outputs(new: Callable[..., StoredTalk]) -> None:
    """Runs with an output schema."""
    submit = ToolUse("t1", "submit_output", "{}")

    def answer(*content: Content, output: str = "", problem: str = "", refusal: bool = False) -> None:
        blocks = tuple(talk.named(content))
        event = LlmResponse(talk.at(), *talk.request, blocks, end_turn=not content, refusal=refusal, output=output)
        talk.tell(replace(event, output_problem=problem))

    talk = new()
    talk.ask(output_schema="{}")
    answer(submit, BASH)
    answer(submit, problem="1 is not a string")
    answer(submit)
    answer(submit, problem="2 is not a string")
    talk.ask(output_schema="{}")
    talk.answer(Text("a text"))
    answer(submit, output='"x"')
    talk.ask(output_schema="{}")
    answer(refusal=True)


def summaries(new: Callable[..., StoredTalk]) -> None:
    """A full context, one that the provider says is full, and summaries by command: written, failed, stopped."""

    def no_text(talk: StoredTalk) -> None:
        talk.answer(Text(" "))

    def refused(talk: StoredTalk) -> None:
        talk.answer(Text("no"), refusal=True)

    def unauthorized(talk: StoredTalk) -> None:
        talk.stream()
        talk.fail(LlmFailure(ErrorKind.AUTH, "no such key"))

    def too_long(talk: StoredTalk) -> None:
        talk.fail(TOO_LONG)

    def aborted(talk: StoredTalk) -> None:
        for _ in range(3):
            talk.tell(LlmAborted(talk.at(), *talk.request))
            if talk.world.terminal:
                break
            talk.tell(RetryTimeout(talk.at(), *talk.request))

    def written(talk: StoredTalk) -> None:
        talk.text("the summary")

    ends = (written, no_text, refused, unauthorized, too_long, aborted, StoredTalk.fail_all)
    for end in ends:
        for used in (10, WINDOW * 8 // 10):
            talk = new()
            talk.ask()
            talk.answer(Text("done"), used=used)
            talk.summarize()
            end(talk)
        for calls in ((), (BASH,)):
            talk = new()
            talk.ask()
            talk.answer(*calls, Text("full"), end_turn=not calls, used=FULL)
            end(talk)
    talk = new()
    talk.ask()
    talk.fail(LlmFailure(ErrorKind.AUTH, "no such key"))
    talk.summarize()
    talk.cancel()
    talk.summarize()
    talk.restart()
    talk.summarize()
    talk.fail_all()
    talk = new()
    talk.ask()
    talk.fail(TOO_LONG)
    talk = new()
    talk.ask()
    talk.answer(Text("cut"), end_turn=False, truncated=True, used=FULL)
    talk.text("the summary")


def sub_agents(new: Callable[..., StoredTalk]) -> None:
    """Sub-agents by all their ends, and what their parents get of them."""

    def agent(**fields: Any) -> StoredTalk:
        begun = new(is_sub_agent=True, **fields)
        begun.start()
        return begun

    submit = ToolUse("t1", "submit_result", '{"result": "found"}')
    talk = agent()
    talk.call(BASH, PATCH)
    talk.succeed()
    talk.call(submit, READ)
    talk.call(submit)
    agent().call(ToolUse("t1", "submit_error", '{"error": "cannot"}'))
    talk = agent()
    for _ in range(3):
        talk.text("thinking")
    talk = agent()
    for _ in range(3):
        talk.call(READ)
        talk.succeed()
    talk.call(READ)
    agent().call(READ, used=FULL)
    agent().fail(TOO_LONG)
    agent().restart()
    agent().cancel()
    agent().cancel(reason="not needed")
    agent(budget=Budget(run_tokens=10)).answer(Text("much"), end_turn=False, used=WINDOW // 2)
    talk = new()
    talk.ask()
    talk.spawn()
    assert isinstance(talk.state, AwaitingSubAgents)
    first, second, third = talk.state.pending_ids
    talk.tell(SubAgentResult(talk.at(), first, AgentSucceeded("found")))
    talk.tell(SubAgentResult(talk.at(), second, AgentFailed(ErrorKind.NO_RESULT, "gave up", "half of it")))
    talk.tell(SubAgentTimeout(talk.at(), third, "half of it"))
    talk.text("done")
    talk.tell(SpawnSubAgents(talk.at(), "m-agents", (AgentTask("", "one", "/work", "model-1", 3, 60_000),)))
    assert isinstance(talk.state, AwaitingSubAgents)
    talk.tell(SubAgentResult(talk.at(), talk.state.pending_ids[0], AgentSucceeded("found")))
    talk.text("done")


def forks(new: Callable[..., StoredTalk]) -> None:
    talk = new(mode=Mode.WORKSPACE)
    talk.ask()
    talk.text("done")
    fork = StoredTalk(ForkedWorld(talk.world, "", "fork"))
    fork.ask()
    fork.text("done")


PARTS = (interruptions, tools, approvals, modes, failures, outputs, summaries, sub_agents, forks)


def write(store: Store) -> None:
    """Write the conversations into an empty store."""
    for part in PARTS:
        made = 0

        def new(part: Any = part, **fields: Any) -> StoredTalk:
            nonlocal made
            made += 1
            name = f"{part.__name__.replace('_', '-')}-{made}"
            context: ConvContext = replace(CONTEXT, conversation_id=name, **fields)
            return StoredTalk(WrittenWorld(store, context))

        part(new)


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(open_store(folder)) as store:
            write(store)
        with closing(sqlite3.connect(folder / FILE)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            database.execute("VACUUM")
        target.write_bytes(lzma.compress((folder / FILE).read_bytes(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
