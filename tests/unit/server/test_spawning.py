"""Sub-agents by hand: the request as the actor takes it, and its answer as clients see it."""

from __future__ import annotations

from bedrock import v1
from google.protobuf.duration_pb2 import Duration

from actors.messages import SpawnSubAgentsCommand, SpawnSubAgentsResult, SpawnSubAgentsTask
from server.wire import commands, results
from tests.support.samples import FACTS, MESSAGE

UUID = "123E4567-e89b-12d3-a456-426614174000"
Task = v1.SpawnSubAgentsRequest.Task


def test_tasks_say_everything() -> None:
    full = Task(
        task="Count.", model="models/a/b", max_turns=3, timeout=Duration(seconds=1, nanos=500_000_000),
        read_first=["a.txt"], working_directory="/work",
    )  # fmt: skip
    asked = commands.spawn_sub_agents(
        v1.SpawnSubAgentsRequest(name="conversations/c", tasks=[full, Task(task="Look.")], request_id=UUID)
    )
    tasks = (SpawnSubAgentsTask("Count.", "a/b", 3, 1_500, ("a.txt",), "/work"), SpawnSubAgentsTask("Look."))
    assert asked == SpawnSubAgentsCommand(tasks, UUID.lower(), asked.body_hash)


def test_two_requests_are_the_same_if_they_want_the_same() -> None:
    def body_hash(name: str, task: str, request_id: str) -> str:
        request = v1.SpawnSubAgentsRequest(name=name, tasks=[Task(task=task)], request_id=request_id)
        return commands.spawn_sub_agents(request).body_hash

    assert body_hash("conversations/c", "a", "1") == body_hash("conversations/slug", "a", "2")
    assert body_hash("conversations/c", "a", "1") != body_hash("conversations/c", "b", "1")


def test_the_answer_names_the_run_and_the_sub_agents() -> None:
    answer = results.spawn_sub_agents(FACTS, "c", SpawnSubAgentsResult(MESSAGE, "c:4", ("c-a1", "c-a2"), 17))
    assert answer.message.name == f"conversations/c/messages/{MESSAGE.id}"
    assert answer.run == "conversations/c/requestCycles/c:4"
    assert list(answer.sub_agents) == ["conversations/c-a1", "conversations/c-a2"]
    assert answer.revision == 17
