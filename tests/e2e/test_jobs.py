"""Background jobs over a whole server, with real processes: what goes on, what ends, and what is told of it."""

from collections.abc import Callable

import pytest
from bedrock import NotFound, v1

from tests.support import processes
from tests.support.chat import Chat
from tests.support.fake_provider import calls, says
from tests.support.patience import eventually, within
from tests.support.server_process import ServerProcess
from tests.support.watcher import Watcher

OpenChat = Callable[..., Chat]
Watch = Callable[..., Watcher]

STUBBORN = "echo up; bash -c 'trap \"\" TERM INT; sleep {0} & setsid sleep {0} & sleep {0}'; true"
"""Processes that close their ears, one of them in a session of its own."""


def in_background(open_chat: OpenChat, *commands: str) -> tuple[Chat, str]:
    """A conversation at rest whose commands go on; and the marker of their processes."""
    marker = processes.forever()
    jobs = [("bash", {"cmd": command.format(marker), "wait_seconds": 0}) for command in commands]
    chat = open_chat(calls(*jobs), says("They run."))
    assert chat.ask("Start them.") == "They run."
    eventually(lambda: len(processes.sleepers(marker)) >= len(commands), "the jobs run")
    return chat, marker


def test_jobs_go_on_until_they_are_ended_and_each_end_has_its_receipt(open_chat: OpenChat, watch: Watch) -> None:
    chat, marker = in_background(open_chat, STUBBORN, "exec sleep {0}")
    watcher = watch(chat.name)
    receipt = chat.conversation.cancel()
    assert (receipt.no_op, list(receipt.surviving_jobs)) == (True, ["b-1", "b-2"])
    assert list(chat.conversation.get().background_jobs) == ["b-1", "b-2"]
    assert list(watch(chat.name).events[0].snapshot.conversation.background_jobs) == ["b-1", "b-2"]
    assert processes.sleepers(marker)

    receipt = chat.conversation.cancel(kill_jobs=True)

    assert (receipt.no_op, list(receipt.ended_jobs), list(receipt.surviving_jobs)) == (False, ["b-1", "b-2"], [])
    assert list(chat.conversation.get().background_jobs) == []
    watcher.until(lambda _: len(watcher.of("tool_tree_reaped")) == 2)
    assert processes.running(marker) == []
    reaped = watcher.of("tool_tree_reaped")
    started = [block.tool_call.tool_use_id for block in chat.messages()[1].content if block.HasField("tool_call")]
    assert sorted(each.tool_use_id for each in reaped) == sorted(started)
    assert all(each.pids and not each.leaked for each in reaped)
    assert chat.conversation.cancel(kill_jobs=True).no_op
    chat.assert_valid()


@pytest.mark.parametrize("busy", [False, True])
def test_a_deletion_returns_when_everything_is_dead(
    open_chat: OpenChat, watch: Watch, server: ServerProcess, busy: bool
) -> None:
    chat, marker = in_background(open_chat, STUBBORN)
    if busy:
        chat.part.then(calls(("bash", {"cmd": STUBBORN.format(marker)})))
        watcher = watch(chat.name)
        chat.send("And this.")
        watcher.until("tool_output_delta")
        eventually(lambda: len(processes.sleepers(marker)) == 6, "all of them run")
    assert chat.conversation.delete(force=busy) == []
    assert processes.running(marker) == []
    with pytest.raises(NotFound):
        chat.send("Anybody?")
    eventually(lambda: server.running() == [server.pid], "nothing but the server runs")


# --- a cancel in every phase of a tool ----------------------------------------------------------------------------

FLOOD = "yes the same line again and again"
SLOW_TO_BEGIN = f"true {'x ' * 30_000}; sleep 1000"
"""Long to hand over and to parse."""
ENDING = "for i in $(seq 40); do setsid sleep 1000 & done; echo up"
"""It is over at once, and leaves processes behind that have to be cleared."""


def begins(event: v1.Event) -> bool:
    return event.state_changed.state.kind == v1.STATE_KIND_TOOL_EXECUTING or event.HasField("run_stopped")


def writes(event: v1.Event) -> bool:
    return event.HasField("tool_output_delta") or event.HasField("run_stopped")


@pytest.mark.parametrize(
    ("command", "moment"),
    [(FLOOD, begins), (FLOOD, writes), (SLOW_TO_BEGIN, begins), (ENDING, begins), (ENDING, writes)],
    ids=["about to flood", "flooding", "slow to begin", "about to end", "ending"],
)
def test_a_cancel_in_any_phase_of_a_tool_leaves_rest_and_no_process(
    open_chat: OpenChat, watch: Watch, server: ServerProcess, command: str, moment: Callable[[v1.Event], bool]
) -> None:
    for _ in range(5):
        chat = open_chat(calls(("bash", {"cmd": command})), says("Next."), says("Next."))
        watcher = watch(chat.name)
        chat.send("Go.")
        watcher.until(moment)
        receipt = chat.conversation.cancel()
        assert chat.state.kind == "idle"
        if receipt.tool_use_ids:
            reaped = watcher.until("tool_tree_reaped").tool_tree_reaped
            assert (reaped.tool_use_id, reaped.leaked) == (receipt.tool_use_ids[0], False)
        assert within(chat.send("Again.").answer) == "Next."
        chat.assert_valid()
    eventually(lambda: server.running() == [server.pid], "nothing but the server runs")
