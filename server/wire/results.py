"""Converts the results of commands to API responses. Each function is named after a method of the API."""

from __future__ import annotations

from bedrock import v1

from actors import messages as requests
from actors.core.notifications import Fate
from server.contract import resource_names as names
from server.wire import conversation_messages as states
from server.wire import messages
from server.wire.messages import ConversionContext


def submit_tool_result(
    conversion: ConversionContext, conversation_id: str, answer: requests.SubmitToolResultResult
) -> v1.SubmitToolResultResponse:
    return v1.SubmitToolResultResponse(
        message=messages.message(conversion, conversation_id, answer.message), duplicate=answer.duplicate
    )


def send_message(
    conversion: ConversionContext, conversation_id: str, answer: requests.SendMessageResult
) -> v1.SendMessageResponse:
    delivery = "steer" if answer.disposition == "steer_queued" else "follow_up"
    if answer.message is not None:
        message = messages.message(conversion, conversation_id, answer.message)
    elif answer.queued is not None:
        message = messages.queued_message(conversation_id, answer.queued, delivery, answer.run)
    else:
        message = v1.Message(name=names.message(conversation_id, answer.message_id), role=v1.ROLE_USER)
    return v1.SendMessageResponse(
        message=message,
        disposition=v1.DISPOSITION_DUPLICATE if answer.duplicate else messages.DISPOSITION[answer.disposition],
        run=names.cycle(conversation_id, answer.run),
        revision=answer.revision,
    )


def cancel_conversation(
    conversion: ConversionContext, conversation_id: str, answer: requests.CancelConversationResult
) -> v1.CancelConversationResponse:
    settled: dict[Fate, list[v1.QueuedMessage]] = {Fate.RETURNED: [], Fate.DISCARDED: []}
    for change in answer.settled:
        settled[change.fate].append(messages.queued(conversation_id, change, at=answer.settled_at))
    return v1.CancelConversationResponse(
        no_op=answer.no_op,
        state=states.state(conversion, conversation_id, answer.state, answer.state_entered_at),
        run=names.cycle(conversation_id, answer.run),
        llm_request_id=answer.llm_request_id,
        tool_use_ids=answer.tool_use_ids,
        sub_agents=[names.conversation(agent) for agent in answer.sub_agents],
        returned_steers=settled[Fate.RETURNED],
        discarded_follow_ups=settled[Fate.DISCARDED],
        surviving_jobs=answer.surviving_jobs,
        ended_jobs=answer.ended_jobs,
        revision=0 if answer.no_op else answer.revision,
        unrecorded=not answer.recorded,
    )


def withdraw_message(conversation_id: str, answer: requests.WithdrawMessageResult) -> v1.WithdrawMessageResponse:
    return v1.WithdrawMessageResponse(message=messages.queued(conversation_id, answer.change, at=answer.at))


def spawn_sub_agents(
    conversion: ConversionContext, conversation_id: str, answer: requests.SpawnSubAgentsResult
) -> v1.SpawnSubAgentsResponse:
    return v1.SpawnSubAgentsResponse(
        message=messages.message(conversion, conversation_id, answer.message),
        run=names.cycle(conversation_id, answer.run),
        sub_agents=[names.conversation(agent) for agent in answer.sub_agents],
        revision=answer.revision,
    )
