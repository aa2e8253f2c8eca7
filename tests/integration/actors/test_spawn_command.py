"""The command that starts sub-agents without the model: a run of its own, checked like the tool, done once."""

import threading
from typing import Any

import pytest

from actors.core.content import MessageType, SystemKind
from actors.core.context import Budget
from actors.core.errors import Reason, Rejected
from actors.core.states import AwaitingSubAgents, Completed, ContextExhausted, Idle
from actors.messages import (
    ArchiveConversationCommand,
    DeadlineExceededError,
    InvalidFieldError,
    SendMessageCommand,
    SpawnSubAgentsCommand,
    SpawnSubAgentsResult,
    SpawnSubAgentsTask,
    TaskRefusedError,
    TriggerContinuationCommand,
    UnknownConversationError,
)
from actors.ports import ToolTransientError
from tests.integration.actors.family import FamilyBox, FamilyModel, all_left, child
from tests.support.patience import PATIENCE

World = Any
Talk = Any

ID = "44444444-4444-4444-8444-444444444444"


def spawn(*texts: str, **more: Any) -> SpawnSubAgentsCommand:
    return SpawnSubAgentsCommand(tuple(SpawnSubAgentsTask(text) for text in texts), **more)


def refused(talk: Talk, request: SpawnSubAgentsCommand) -> Any:
    error = talk.world.supervisor.ask(talk.id, request).exception(PATIENCE)
    assert error is not None
    assert talk.world.truth.children(talk.id) == ()
    assert talk.record.step == 1
    return error


def test_it_is_a_run_whose_root_holds_the_tasks_and_whose_results_the_model_reads(family: World) -> None:
    talk = family.create()
    answer = talk.ask(spawn("submit 42", "error no door"))
    assert isinstance(answer, SpawnSubAgentsResult)
    assert answer.sub_agents == (f"{talk.id}-a1", f"{talk.id}-a2")
    assert (answer.run, answer.revision) == (f"{talk.id}:1", 0)
    talk.rest(Idle)
    root, results, last = family.truth.history(talk.id, 99)
    assert root == answer.message
    assert (results.type, results.kind) == (MessageType.SYSTEM, SystemKind.SUB_AGENT_RESULTS)
    assert talk.texts() == [
        "submit 42\nerror no door",
        'Task: "submit 42"\nResult: 42\n\nTask: "error no door"\nFailed: no door',
        "All is told.",
    ]
    assert last.type is MessageType.AGENT
    all_left(family)


def test_what_a_task_leaves_open_is_that_of_the_conversation(family: World, tmp_path: Any) -> None:
    talk = family.create()
    talk.ask(
        SpawnSubAgentsCommand(
            (
                SpawnSubAgentsTask("submit 1"),
                SpawnSubAgentsTask("submit 2", working_directory=str(tmp_path), max_turns=5),
            )
        )
    )
    talk.rest(Idle)
    assert [child(talk, number).record.cwd for number in (1, 2)] == ["/tmp", str(tmp_path)]
    assert [child(talk, number).state.ledger.max_turns for number in (1, 2)] == [20, 5]


@pytest.mark.parametrize(
    ("task", "field", "text"),
    [
        (SpawnSubAgentsTask(" "), "tasks[1].task", "must not be empty"),
        (SpawnSubAgentsTask("x", max_turns=101), "tasks[1].max_turns", "must be 1 to 100"),
        (SpawnSubAgentsTask("x", max_turns=-1), "tasks[1].max_turns", "must be 1 to 100"),
        (SpawnSubAgentsTask("x", timeout_ms=999), "tasks[1].timeout", "must be 1 to 7,200 seconds"),
        (SpawnSubAgentsTask("x", read_first=("gone",)), "tasks[1].read_first[0]", "Cannot read gone: no such file."),
        (SpawnSubAgentsTask("x", read_first=("a",) * 11), "tasks[1].read_first", "must name at most 10 files"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_field_is_named_and_nothing_is_started(
    family: World, task: SpawnSubAgentsTask, field: str, text: str
) -> None:
    error = refused(family.create(), SpawnSubAgentsCommand((SpawnSubAgentsTask("submit 42"), task)))
    assert isinstance(error, InvalidFieldError)
    assert error.field == field
    assert text in str(error)


@pytest.mark.parametrize(
    ("task", "reason", "text"),
    [
        (
            SpawnSubAgentsTask("x", model="gpt-9"),
            Reason.MODEL_UNAVAILABLE,
            "tasks[1].model: model 'gpt-9' is not available",
        ),
        (
            SpawnSubAgentsTask("x", working_directory="tmp"),
            Reason.WORKING_DIRECTORY_INVALID,
            "tasks[1].working_directory: it must be an absolute path",
        ),
    ],
)
def test_a_task_that_cannot_be_served_here_has_a_reason(
    family: World, task: SpawnSubAgentsTask, reason: Reason, text: str
) -> None:
    error = refused(family.create(), SpawnSubAgentsCommand((SpawnSubAgentsTask("submit 42"), task)))
    assert isinstance(error, TaskRefusedError)
    assert (error.reason, error.index) == (reason, 1)
    assert str(error).startswith(text)


@pytest.mark.parametrize("count", [0, 11])
def test_there_are_one_to_ten(family: World, count: int) -> None:
    error = refused(family.create(), spawn(*["submit 42"] * count))
    assert isinstance(error, InvalidFieldError)
    assert (error.field, str(error)) == ("tasks", f"1 to 10 sub-agents can be started at a time, not {count}")


def test_one_request_id_starts_them_once(family: World) -> None:
    talk = family.create()
    request = SpawnSubAgentsCommand(
        (SpawnSubAgentsTask("submit 42", read_first=("notes",)),), request_id=ID, body_hash="h"
    )
    family.box.files["notes"] = "     1\tnote\n"
    first = talk.ask(request)
    talk.rest(Idle)
    family.box.files.clear()
    assert talk.ask(request) == first, "the files need not be there any more"
    assert family.truth.children(talk.id) == first.sub_agents
    with pytest.raises(Rejected) as refusal:
        talk.ask(SpawnSubAgentsCommand(request.tasks, request_id=ID, body_hash="other"))
    assert refusal.value.reason is Reason.REQUEST_ID_REUSED


def test_it_is_refused_when_it_does_not_fit(family: World) -> None:
    def reason(talk: Talk, request: SpawnSubAgentsCommand) -> Reason:
        with pytest.raises(Rejected) as refusal:
            talk.ask(request)
        return refusal.value.reason

    talk = family.create()
    talk.ask(spawn("wait a"))
    assert isinstance(talk.state, AwaitingSubAgents)
    assert reason(talk, spawn("submit 42")) is Reason.AGENT_BUSY
    family.model.until_asked(f"{talk.id}-a1")
    assert reason(child(talk, 1), spawn("submit 42")) is Reason.SUB_AGENT
    family.model.gates["a"].set()
    talk.rest(Idle)
    assert reason(child(talk, 1), spawn("submit 42")) is Reason.TERMINAL
    talk.ask(ArchiveConversationCommand(True))
    assert reason(talk, spawn("submit 42")) is Reason.ARCHIVED
    talk.ask(ArchiveConversationCommand(False))
    talk.ask(TriggerContinuationCommand())
    talk.until(lambda: isinstance(talk.state, ContextExhausted))
    assert reason(talk, spawn("submit 42")) is Reason.TERMINAL

    poor = family.create(budget=Budget(conversation_tokens=50))
    poor.ask(SendMessageCommand("hello"))
    poor.rest(Idle)
    assert reason(poor, spawn("submit 42")) is Reason.BUDGET_REACHED
    with pytest.raises(UnknownConversationError):
        family.supervisor.ask(
            "nobody", SpawnSubAgentsCommand((SpawnSubAgentsTask("x", read_first=("notes",)),))
        ).result(PATIENCE)


def test_files_are_read_before_the_conversation_is_asked_and_block_nothing(make_world: Any) -> None:
    world = make_world(model=FamilyModel(), box=Slow())
    talk = world.create()
    answer = world.supervisor.ask(
        talk.id, SpawnSubAgentsCommand((SpawnSubAgentsTask("submit 42", read_first=("notes",)),))
    )
    assert world.box.reading.wait(PATIENCE)
    talk.send("meanwhile")
    talk.rest(Idle)
    world.box.go.set()
    assert answer.result(PATIENCE).sub_agents == (f"{talk.id}-a1",)
    talk.rest(Idle)
    (said,) = (block.text for block in world.truth.history(f"{talk.id}-a1", 1)[0].content)
    assert said.endswith('<file path="notes">\nslowly read\n</file>')
    child(talk, 1).rest(Completed)


def test_reading_ends_with_the_deadline(make_world: Any) -> None:
    world = make_world(model=FamilyModel(), box=Slow())
    talk = world.create()
    request = SpawnSubAgentsCommand((SpawnSubAgentsTask("submit 42", read_first=("notes",)),))
    soon = world.clock.monotonic() + 0.05
    assert isinstance(world.supervisor.ask(talk.id, request, deadline=soon).exception(PATIENCE), DeadlineExceededError)
    assert world.truth.children(talk.id) == ()


def test_a_reader_that_is_lost_starts_nothing(make_world: Any) -> None:
    world = make_world(model=FamilyModel(), box=Slow())
    world.box.failure = ToolTransientError("its process was lost", begun=True)
    error = refused(world.create(), SpawnSubAgentsCommand((SpawnSubAgentsTask("submit 42", read_first=("notes",)),)))
    assert isinstance(error, InvalidFieldError)
    assert "could not be read: its process was lost" in str(error)


class Slow(FamilyBox):
    """Reads when the test lets it, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = threading.Event()
        self.go = threading.Event()
        self.failure: Exception | None = None

    def _read(self, arguments: Any, context: Any) -> Any:
        if self.failure:
            raise self.failure
        context.cancel.on_cancel(self.go.set)
        self.reading.set()
        assert self.go.wait(PATIENCE)
        self.files[arguments["path"]] = "slowly read"
        return super()._read(arguments, context)
