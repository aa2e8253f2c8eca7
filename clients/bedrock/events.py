"""The events of a conversation, as a loop yields them: ``for event in conversation.send("…")``.

Branch on ``event.kind``. The attribute of that name has the full data of the event, except that reasoning is in
``text_delta``. The attributes in the table are shortcuts, empty or None where an event does not have them.

| kind | what happened | look at |
|---|---|---|
| ``text_delta``, ``reasoning_delta`` | the model wrote some text, or some visible reasoning | ``text`` |
| ``tool_output_delta`` | a tool wrote some output | ``text`` |
| ``stream_discarded`` | text streamed since the last message is void | |
| ``message_added`` | a message was stored | ``message``, ``role``, ``text`` |
| ``state_changed`` | the state changed | ``state``, ``run``, ``sub_agents`` when they start |
| ``approval_changed`` | an approval was requested, answered or withdrawn | ``approval`` while open, else ``decision`` |
| ``queue_changed`` | a steer or follow-up was queued, or left the queue | ``message``, ``fate`` |
| ``retrying`` | a request or a tool failed and will be tried again | ``error`` |
| ``run_stopped`` | a run ended | ``stop``, ``run``, ``error`` |
| ``conversation_updated`` | mode, usage or settings changed | ``conversation``, ``state`` |
| ``context_warning`` | the context is 80 % full | |
| ``sub_agents_changed`` | a sub-agent ended | ``sub_agents`` |
| ``client_tool_call_changed`` | a call waits for a client's answer, or no longer does | |
| ``question_changed`` | a tool asks a user, or its question has ended | ``question`` while it is open |
| ``background_job_changed`` | a background job began or has ended | |
| ``tool_tree_reaped`` | the processes of a cancelled tool have ended | |
| ``snapshot`` | the state, at the start or after a gap | ``conversation``, ``state``, ``messages``, ``sub_agents`` |
| ``caught_up`` | all events that the client had missed have been yielded | |
| ``deleted`` | the conversation was deleted | |
"""

# ruff: noqa: I001, PLC0414 -- one statement exports what is generated in another module

from bedrock._shared.values import (
    ApprovalChanged as ApprovalChanged, BackgroundJobChanged as BackgroundJobChanged, CaughtUp as CaughtUp,
    ClientToolCallChanged as ClientToolCallChanged, Event as Event, QuestionChanged as QuestionChanged,
    Retrying as Retrying, RunStopped as RunStopped, Snapshot as Snapshot, StateChanged as StateChanged, Stop as Stop,
    StreamDiscarded as StreamDiscarded, TextDelta as TextDelta, ToolOutputDelta as ToolOutputDelta,
    ToolTreeReaped as ToolTreeReaped,
)  # fmt: skip
