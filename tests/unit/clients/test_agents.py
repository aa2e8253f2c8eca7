"""Sub-agents as people see them: the tree while they work, a line when one ends, and how they are listed."""

from datetime import UTC, datetime, timedelta

import pytest
from bedrock import ConversationInfo, Event, v1
from bedrock.cli.display import conversation_view as sub_agents
from bedrock.cli.display.conversation_view import AgentTree
from bedrock.cli.text.style import Paint
from prompt_toolkit.utils import get_cwidth

from tests.support.fake_server import state

PLAIN = Paint(False)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TASKS = ("Count the files", "Find the largest", "Read the README")
NAMES = tuple(f"conversations/c1-a{number}" for number in (1, 2, 3))


def waiting(*indices: int, done: int = 0) -> v1.Event:
    """The parent waits for these."""
    pending = [v1.SubAgent(conversation=NAMES[at], task=TASKS[at], task_index=at) for at in indices]
    detail = v1.ConversationState.AwaitingSubAgents(pending=pending, completed_count=done)
    return state("awaiting_sub_agents", "r", awaiting_sub_agents=detail)


def report(index: int, error: str = "", name: str | None = None) -> v1.Event.SubAgentsChanged.Report:
    return v1.Event.SubAgentsChanged.Report(
        conversation=NAMES[index] if name is None else name,
        task=TASKS[index],
        task_index=index,
        state=v1.STATE_KIND_FAILED if error else v1.STATE_KIND_COMPLETED,
        error=v1.RunError(message=error) if error else None,
    )


def changed(*reports: v1.Event.SubAgentsChanged.Report) -> v1.Event:
    return v1.Event(sub_agents_changed=v1.Event.SubAgentsChanged(reports=reports))


def own_snapshot(kind: v1.StateKind.ValueType = v1.STATE_KIND_LLM_REQUESTING, tokens: int = 0) -> v1.Event:
    """What a sub-agent's own stream begins with: it was created at noon."""
    made = v1.Conversation(
        state=v1.ConversationState(kind=kind), total_usage=v1.Usage(input_tokens=tokens, output_tokens=10)
    )
    made.create_time.FromDatetime(NOON)
    return v1.Event(snapshot=v1.Event.Snapshot(conversation=made))


def own_end(seconds: int, error: str = "") -> v1.Event:
    if error:
        failed = v1.ConversationState.Failed(error=v1.RunError(message=error))
        event = state("failed", failed=failed)
    else:
        event = state("completed", completed=v1.ConversationState.Completed(result="42"))
    event.state_changed.state.enter_time.FromDatetime(NOON + timedelta(seconds=seconds))
    return event


def tree_of(*events: v1.Event) -> AgentTree:
    tree = AgentTree()
    for event in events:
        tree.observe(Event.from_proto(event))
    return tree


def lines(tree: AgentTree, *, after: float = 0, width: int = 100) -> list[str]:
    return [*tree.lines(PLAIN, now=after, wall=NOON + timedelta(seconds=after), width=width)]


def test_the_tree_shows_what_each_does_for_how_long_and_what_it_has_used() -> None:
    tree = tree_of(waiting(0, 1, 2))
    running = v1.ConversationState.ToolExecuting(current=v1.ToolCall(tool_use_id="t", tool="bash"))
    tree.observe_agent(NAMES[0], Event.from_proto(own_snapshot(tokens=1_190)), 0)
    tree.observe_agent(NAMES[0], Event.from_proto(state("tool_executing", "r", tool_executing=running)), 9.0)
    tree.observe_agent(NAMES[1], Event.from_proto(own_snapshot()), 0)
    tree.observe_agent(NAMES[1], Event.from_proto(own_end(3)), 3.0)
    assert lines(tree, after=12) == [
        "├ ◦ Count the files · bash 1/1 3 s · 12 s · 1,200 tokens",
        "├ ✓ Find the largest · done · 3 s · 10 tokens",
        "└ ◦ Read the README · …",
    ]
    assert tree.at_work == [NAMES[0], NAMES[2]]


def test_a_line_of_the_tree_fits_the_terminal() -> None:
    tree = tree_of(waiting(0))
    tree.observe_agent(NAMES[0], Event.from_proto(own_snapshot(tokens=1_190)), 0)
    for width in (20, 30, 44, 45, 60):
        (line,) = lines(tree, after=12, width=width)
        assert len(line) <= width


def test_there_is_no_tree_unless_the_parent_waits() -> None:
    tree = tree_of(waiting(0))
    assert len(lines(tree)) == 1
    tree.observe(Event.from_proto(state("cancelling", "r")))
    assert len(lines(tree)) == 1
    tree.observe(Event.from_proto(state("llm_requesting", "r")))
    assert lines(tree) == []
    tree.observe(Event.from_proto(waiting(1, 2)))
    assert [line[4:20] for line in lines(tree)] == ["Find the largest", "Read the README "]


def test_an_end_is_printed_once_whichever_source_reports_it_first() -> None:
    tree = tree_of(waiting(0, 1, 2))
    tree.observe_agent(NAMES[0], Event.from_proto(own_snapshot(tokens=90)), 0)
    tree.observe_agent(NAMES[0], Event.from_proto(own_end(4)), 4.0)
    assert list(tree.endings(PLAIN)) == ["  ✓ Count the files · 4 s · 100 tokens"]
    tree.observe(Event.from_proto(changed(report(0), report(1, "no such file"))))
    assert list(tree.endings(PLAIN)) == ["  ✗ Find the largest: no such file"]
    tree.observe_agent(NAMES[1], Event.from_proto(own_end(5, "no such file")), 5.0)
    tree.observe(Event.from_proto(changed(report(0), report(1, "no such file"), report(2, "not started", name=""))))
    assert list(tree.endings(PLAIN)) == ["  ✗ Read the README: not started"]
    assert tree.at_work == []


def test_the_end_of_the_last_one_is_printed_even_after_the_parent_continued() -> None:
    tree = tree_of(waiting(0), state("llm_requesting", "r"))
    tree.observe_agent(NAMES[0], Event.from_proto(own_snapshot()), 0)
    tree.observe_agent(NAMES[0], Event.from_proto(own_end(2, "cancelled")), 2.0)
    assert list(tree.endings(PLAIN)) == ["  ✗ Count the files · 2 s · 10 tokens: cancelled"]


def test_who_comes_late_learns_from_the_snapshot_who_is_at_work_and_who_is_done() -> None:
    pending = [v1.SubAgent(conversation=NAMES[2], task=TASKS[2], task_index=2)]
    standing = v1.Event.SubAgentsChanged(pending=pending, reports=[report(1, "no"), report(0)])
    there = v1.Conversation(state=waiting(2, done=2).state_changed.state)
    tree = tree_of(v1.Event(snapshot=v1.Event.Snapshot(conversation=there, sub_agents=standing)))
    assert [line[2] for line in lines(tree)] == ["✓", "✗", "◦"]
    assert list(tree.running(PLAIN)) == ["· sub-agent 3 of 3 at work: Read the README"]
    assert len(list(tree.endings(PLAIN))) == 2


def test_what_a_task_says_cannot_control_the_terminal() -> None:
    evil = waiting(0)
    evil.state_changed.state.awaiting_sub_agents.pending[0].task = "a\x1b[2J\x07b"
    (line,) = lines(tree_of(evil))
    assert "\x1b" not in line
    assert "\x07" not in line


@pytest.mark.parametrize("width", [40, 79, 119])
def test_no_line_of_the_tree_is_wider_than_the_terminal(width: int) -> None:
    """Whatever the terminal makes of wide and joined characters: the lines are drawn over by their number."""
    wide = waiting(0, 1)
    for pending, task in zip(
        wide.state_changed.state.awaiting_sub_agents.pending,
        ("漢字" * 60, "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL} " * 40),
        strict=True,
    ):
        pending.task = task
    shown = tree_of(wide).lines(PLAIN, 0.0, NOON, width)
    assert [width // 2 < sum(map(get_cwidth, line)) <= width for line in shown] == [True, True]


# --- listed -----------------------------------------------------------------------------------------------------------


def listed(number: int, **detail: object) -> ConversationInfo:
    made = v1.Conversation(name=NAMES[number - 1], title=TASKS[number - 1], total_usage=v1.Usage(input_tokens=1_234))
    made.state.CopyFrom(v1.ConversationState(**detail))  # type: ignore[arg-type]
    made.create_time.FromDatetime(NOON)
    made.update_time.FromDatetime(NOON + timedelta(seconds=number))
    return ConversationInfo.from_proto(made)


AGENTS = [
    listed(3, kind=v1.STATE_KIND_TOOL_EXECUTING),
    listed(1, kind=v1.STATE_KIND_COMPLETED),
    listed(2, kind=v1.STATE_KIND_FAILED, failed=v1.ConversationState.Failed(error=v1.RunError(message="no"))),
]


def test_they_are_listed_in_the_order_in_which_they_were_started() -> None:
    rows = [[cell(agent) for cell in sub_agents.COLUMNS.values()] for agent in sub_agents.in_order(AGENTS)]
    assert rows == [
        ["c1-a1", "completed", "1 s", "1,234", "Count the files"],
        ["c1-a2", "failed", "2 s", "1,234", "Find the largest"],
        ["c1-a3", "tool executing", "3 s", "1,234", "Read the README"],
    ]
    ten = [ConversationInfo.from_proto(v1.Conversation(name=f"c1-a{number}")) for number in (10, 9, 2)]
    assert [agent.name for agent in sub_agents.in_order(ten)] == [
        "c1-a2",
        "c1-a9",
        "c1-a10",
    ]


@pytest.mark.parametrize(
    ("at", "line"),
    [
        (0, "  ✓ c1-a1  Count the files · 1 s · 1,234 tokens"),
        (1, "  ✗ c1-a2  Find the largest · 2 s · 1,234 tokens: no"),
        (2, "  ◦ c1-a3  Read the README · 3 s · 1,234 tokens"),
    ],
)
def test_their_parent_shows_what_became_of_each(at: int, line: str) -> None:
    assert list(sub_agents.lines(AGENTS, PLAIN))[at] == line
