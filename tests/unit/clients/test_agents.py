"""Sub-agents as people see them: the tree while they work, and a line when one ends."""

from datetime import UTC, datetime, timedelta

import pytest
from bedrock import Event, v1
from bedrock.cli.display.transcript import AgentTree
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
    event = state("awaiting_sub_agents", "r", awaiting_sub_agents=detail)
    event.time.FromDatetime(NOON)
    return event


def report(index: int, error: str = "", name: str | None = None) -> v1.Event.SubAgentsChanged.Report:
    return v1.Event.SubAgentsChanged.Report(
        conversation=NAMES[index] if name is None else name,
        task=TASKS[index],
        task_index=index,
        state=v1.STATE_KIND_FAILED if error else v1.STATE_KIND_COMPLETED,
        error=v1.RunError(message=error) if error else None,
    )


def changed(*reports: v1.Event.SubAgentsChanged.Report, at: int = 0) -> v1.Event:
    event = v1.Event(sub_agents_changed=v1.Event.SubAgentsChanged(reports=reports))
    event.time.FromDatetime(NOON + timedelta(seconds=at))
    return event


def tree_of(*events: v1.Event) -> AgentTree:
    tree = AgentTree()
    for event in events:
        tree.observe(Event.from_proto(event))
    return tree


def lines(tree: AgentTree, *, after: float = 0, width: int = 100) -> list[str]:
    return [*tree.lines(PLAIN, wall=NOON + timedelta(seconds=after), width=width)]


def test_the_tree_shows_how_each_stands_and_for_how_long() -> None:
    tree = tree_of(waiting(0, 1, 2), changed(report(1), at=3))
    assert lines(tree, after=12) == [
        "├ ◦ Count the files · at work · 12 s",
        "├ ✓ Find the largest · done · 3 s",
        "└ ◦ Read the README · at work · 12 s",
    ]


def test_a_line_of_the_tree_fits_the_terminal() -> None:
    tree = tree_of(waiting(0))
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


def test_an_end_is_printed_once() -> None:
    tree = tree_of(waiting(0, 1, 2), changed(report(0), report(1, "no such file"), at=4))
    assert list(tree.endings(PLAIN)) == ["  ✓ Count the files · 4 s", "  ✗ Find the largest · 4 s: no such file"]
    tree.observe(
        Event.from_proto(changed(report(0), report(1, "no such file"), report(2, "not started", name=""), at=5))
    )
    assert list(tree.endings(PLAIN)) == ["  ✗ Read the README · 5 s: not started"]


def test_who_comes_late_learns_from_the_snapshot_who_is_at_work_and_who_is_done() -> None:
    pending = [v1.SubAgent(conversation=NAMES[2], task=TASKS[2], task_index=2)]
    standing = v1.Event.SubAgentsChanged(pending=pending, reports=[report(1, "no"), report(0)])
    there = v1.Conversation(state=waiting(2, done=2).state_changed.state)
    tree = tree_of(v1.Event(snapshot=v1.Event.Snapshot(conversation=there, sub_agents=standing)))
    assert [line[2] for line in lines(tree)] == ["✓", "✗", "◦"]
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
    shown = tree_of(wide).lines(PLAIN, NOON, width)
    assert [width // 2 < sum(map(get_cwidth, line)) <= width for line in shown] == [True, True]
