"""ListRequestCycles is what anybody can compute from the events of the conversation."""

from collections.abc import Callable

from bedrock import v1

from tests.support.auditing import assert_cycles
from tests.support.chat import Chat
from tests.support.fake_provider import calls, held, refuses, says, stalls
from tests.support.folding import listed_steps
from tests.support.patience import within
from tests.support.watcher import Watcher

SHELL = ("bash", {"cmd": "echo hi"})
READ = ("read_file", {"path": "notes.txt"})
THINK = ("think", {"thoughts": "so"})


def test_cycles_are_what_the_events_amount_to(open_chat: Callable[..., Chat], watch: Callable[..., Watcher]) -> None:
    chat = open_chat()
    watcher = watch(chat.name, after_revision=0)
    _live_a_little(chat)
    chat.settle()
    head = chat.conversation.get().revision
    watcher.until(lambda event: event.revision == head)

    listed = [cycle.proto for cycle in chat.conversation.cycles(view="full")]
    assert_cycles(listed, watcher.durable)
    _assert_everything_was_there(listed)
    newest = list(chat.conversation.cycles(view="rounds", newest_first=True))
    assert [cycle.name for cycle in newest] == [cycle.name for cycle in reversed(listed)]
    assert all(not cycle.steps for cycle in newest)


def _live_a_little(chat: Chat) -> None:
    """Tools of several groups with and without a text, a steer, follow-ups, a cancel in a tool round, a failure."""
    part = chat.part
    waits = held(calls(SHELL))
    part.then(
        calls(READ, READ, SHELL, READ, THINK, text="Let me look."),
        waits,
        says("With the steer in mind."),
        says("The follow-up."),
    )
    first = chat.send("Begin.")
    second = part.next_reached(waits)
    chat.send("Mind this.", delivery="steer")
    follow_up = chat.send("Then that.", delivery="follow_up")
    second.go.set()
    within(first.wait)
    within(follow_up.wait)

    part.then(calls(("bash", {"cmd": "echo up; sleep 1000"}), THINK))
    run = chat.send("Never finish.")
    for event in run:
        if event.kind == "tool_output_delta":
            break
    chat.send("Not to be run.", delivery="follow_up")
    chat.conversation.cancel(discard_queued=True)

    part.then(refuses(400, "invalid_request_error", "no"))
    within(chat.send("Fail.").wait)
    part.then(stalls)
    chat.send("Be cut off.")
    part.next_reached(stalls)
    chat.conversation.cancel()
    part.then(calls(SHELL), says("Good bye."))
    assert chat.ask("End.") == "Good bye."


def _assert_everything_was_there(cycles: list[v1.RequestCycle]) -> None:
    """The conversation was worth comparing."""
    reasons = [v1.StopReason.Name(cycle.stop_reason).removeprefix("STOP_REASON_") for cycle in cycles]
    assert reasons == [
        "COMPLETED", "COMPLETED", "INTERRUPTED", "INTERRUPTED", "ERROR", "INTERRUPTED", "COMPLETED",
    ]  # fmt: skip
    kinds = [step[0] for step in listed_steps(cycles[0])]
    assert kinds == ["root", "assistant", "steer", "assistant"]
    assert [len(calls) for _, calls in listed_steps(cycles[0])[1][3]] == [2, 1, 1, 1, 1]
    assert [len(cycle.rounds) for cycle in cycles] == [3, 1, 1, 0, 0, 0, 2]
    assert cycles[2].steps[1].ai_block.tool_call_groups[0].results, "results are shown with their calls"
