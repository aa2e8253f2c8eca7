"""The bell of a terminal: when a person is needed, and never where nobody looks."""

import io

import pytest
from bedrock import Event, v1
from bedrock.cli.chat.prompt import LONG_RUN_SECONDS, Attention
from bedrock.cli.display.follower import ConversationView
from bedrock.cli.text.safe_text import SafeStream

from tests.support.fake_server import state

APPROVAL = v1.PendingApproval(name="conversations/c1/approvals/t1", tool_call=v1.ToolCall(tool="bash"))
ASKED = v1.Event(approval_changed=v1.Event.ApprovalChanged(approval=APPROVAL))


class Screen(io.StringIO):
    def __init__(self, terminal: bool = True) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Scene:
    """A conversation that somebody watches, and what their terminal was sent."""

    def __init__(self, screen: io.StringIO, *, enabled: bool = True, term: str = "xterm", slug: str = "calm") -> None:
        self.screen = screen
        self.now = 0.0
        stream = SafeStream(screen)
        environ = {"TERM": term}
        self.attention = Attention(stream, enabled=enabled, environ=environ, clock=lambda: self.now)  # type: ignore[arg-type]
        self.view = ConversationView()
        self.happens(v1.Event(snapshot=v1.Event.Snapshot(conversation=v1.Conversation(slug=slug))))

    def happens(self, event: v1.Event) -> str:
        """Take an event, and return what was written for it."""
        before = len(self.screen.getvalue())
        self.view.observe(Event.from_proto(event), 0.0)
        self.attention.observe(self.view)
        return self.screen.getvalue()[before:]


def test_a_question_rings_once() -> None:
    scene = Scene(Screen())
    assert scene.happens(state("llm_requesting", "r")) == ""
    assert scene.happens(ASKED) == "\x07"
    assert scene.happens(ASKED) == ""
    assert scene.happens(state("idle")) == ""


@pytest.mark.parametrize(("seconds", "rings"), [(LONG_RUN_SECONDS - 1, False), (LONG_RUN_SECONDS, True)])
def test_the_end_of_a_long_run_rings(seconds: float, rings: bool) -> None:
    scene = Scene(Screen())
    scene.happens(state("llm_requesting", "r"))
    scene.now = seconds
    assert scene.happens(state("idle")).endswith("\x07") is rings


@pytest.mark.parametrize(
    ("terminal", "term", "enabled"),
    [(False, "xterm", True), (True, "dumb", True), (True, "", True), (True, "xterm", False)],
    ids=["no terminal", "dumb", "unknown", "switched off"],
)
def test_nothing_is_written_where_it_is_not_supported(terminal: bool, term: str, enabled: bool) -> None:
    scene = Scene(Screen(terminal), term=term, enabled=enabled)
    scene.happens(state("llm_requesting", "r"))
    scene.happens(ASKED)
    assert scene.screen.getvalue() == ""
