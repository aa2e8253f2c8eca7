"""SpawnSubAgents as a request to the conversation's actor, and the actor's answer as a response."""

from __future__ import annotations

from bedrock import v1

from actors.messages.commands import Spawn, Spawned, SpawnTask
from server.contract import resource_names as names
from server.wire import messages
from server.wire.commands import body_hash
from server.wire.context import Facts


def spawn(request: v1.SpawnSubAgentsRequest) -> Spawn:
    return Spawn(
        tasks=tuple(map(_task, request.tasks)),
        request_id=request.request_id.lower(),
        body_hash=body_hash(request, "name"),
    )


def _task(task: v1.SpawnSubAgentsRequest.Task) -> SpawnTask:
    return SpawnTask(
        task=task.task,
        model=names.parse_model(task.model) or "",
        max_turns=task.max_turns,
        timeout_ms=task.timeout.ToMilliseconds(),
        read_first=tuple(task.read_first),
        working_directory=task.working_directory,
    )


def spawned(facts: Facts, conversation_id: str, answer: Spawned) -> v1.SpawnSubAgentsResponse:
    return v1.SpawnSubAgentsResponse(
        message=messages.message(facts, conversation_id, answer.message),
        run=names.cycle(conversation_id, answer.run),
        sub_agents=[names.conversation(agent) for agent in answer.sub_agents],
        revision=answer.revision,
    )
