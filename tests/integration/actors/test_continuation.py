"""A context that fills up: over real actors, from the last answer that fits to the summary (REQ-BED-019 to 021)."""

from pathlib import Path
from typing import Any

import pytest

from actors import messages
from actors.conversation import creation
from actors.core.content import ToolUse, Usage, content_tokens, is_tool_result, text_of
from actors.core.context import Profile
from actors.core.errors import ErrorKind, Reason, Rejected
from actors.core.notifications import ContextWarning, ConversationUpdated, Fate, QueueChanged, RunStop
from actors.core.states import ContextExhausted, Idle
from actors.ports import ToolOutput, etag_of
from actors.ports.store import Selection
from tests.integration.actors.conftest import Talk
from tests.integration.actors.test_restart import reborn
from tests.support.patience import PATIENCE
from tests.support.replaying import differences

World = Any

BASH = ToolUse("t1", "bash", "{}")


def create_in(world: World, directory: Path, **fields: Any) -> Talk:
    command = messages.CreateConversationCommand("tester", str(directory), **fields)
    return Talk(world, world.supervisor.create(command).result(PATIENCE).id)


def full(world: World) -> Usage:
    """90 % of the model's usable window."""
    return Usage(input_tokens=world.model.info.usable_window * 9 // 10)


def test_at_ninety_percent_no_tool_runs_and_the_summary_is_written(world: World) -> None:
    talk = world.create()
    talk.asks("go on").say(BASH, end_turn=False, usage=full(world))
    summary = talk.exchange()
    assert summary.request.tools == ()
    assert "bash" in summary.request.turns[-1].content[-1].text
    summary.say("This is what was done.")
    assert talk.rest(ContextExhausted).summary == "This is what was done."
    assert world.box.tools["bash"].started == 0
    assert "Not executed: context limit reached" in talk.texts()
    assert len(talk.found(ContextWarning)) == 1
    assert [(stop.reason.value, stop.detail) for stop in talk.found(RunStop)] == [("interrupted", "context_exhausted")]
    with pytest.raises(Rejected, check=lambda error: error.reason is Reason.CONTEXT_EXHAUSTED):
        talk.send("more")


def ran_much(world: World) -> Any:
    """A conversation whose tool printed more than the window has room for, and the request with its result."""
    talk = world.create()
    talk.asks("go on").say(BASH, end_turn=False, usage=Usage(input_tokens=1_000))
    talk.tool().finish.put(ToolOutput("12345\n" * 100_000))
    return talk, talk.exchange()


def shown(exchange: Any) -> str:
    return next(block.output for turn in exchange.request.turns for block in turn.content if is_tool_result(block))


def test_a_result_that_the_window_has_no_room_for_is_cut_in_requests_and_whole_in_the_history(world: World) -> None:
    talk, exchange = ran_much(world)
    assert len(shown(exchange)) < world.model.info.usable_window
    exchange.say("done")
    talk.rest(Idle)
    assert "12345\n" * 100_000 in talk.texts()


def test_a_request_that_the_provider_finds_too_long_is_sent_once_more_with_shorter_results(world: World) -> None:
    talk, refused = ran_much(world)
    refused.fail(ErrorKind.CONTEXT_EXHAUSTED)
    again = talk.exchange()
    again.say("done")
    talk.rest(Idle)
    later = talk.asks("and now?")
    later.say("nothing")
    talk.rest(Idle)
    assert len(shown(again)) < len(shown(refused)) / 3
    assert shown(later) == shown(again), "what was cut once stays cut"


def test_a_request_that_stays_too_long_is_followed_by_a_summary_that_is_shortened_until_it_fits(world: World) -> None:
    talk, exchange = ran_much(world)
    for _ in range(2):
        exchange.fail(ErrorKind.CONTEXT_EXHAUSTED)
        exchange = talk.exchange()
    lengths = [len(str(exchange.request.turns))]
    for _ in range(3):
        exchange.fail(ErrorKind.CONTEXT_EXHAUSTED)
        exchange = talk.exchange()
        lengths.append(len(str(exchange.request.turns)))
    exchange.say("what was done")
    assert talk.rest(ContextExhausted).summary == "what was done"
    assert lengths == sorted(lengths, reverse=True)
    assert [(stop.reason.value, stop.detail) for stop in talk.found(RunStop)] == [("interrupted", "context_exhausted")]


def test_what_waited_when_the_context_was_used_up_has_its_fate_and_the_successor_is_informed(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("go on")
    for text in ("then the tests", "then the docs"):
        talk.send(text, delivery="follow_up")
    exchange.say("That is all I could do.", usage=full(world))
    talk.answer("the summary", ContextExhausted)
    fates = [(told.input.text, told.fate) for told in talk.found(QueueChanged) if told.fate is not Fate.QUEUED]
    assert fates == [("then the tests", Fate.DISCARDED), ("then the docs", Fate.DISCARDED)]
    assert [stop.detail for stop in talk.found(RunStop)] == ["context_exhausted", "not_run", "not_run"]

    successor = talk.ask(messages.ContinueConversationCommand(include_summary=True))

    (seed,) = world.truth.messages(successor.id, after=0, limit=10)
    assert successor.state.ledger.follows == ()
    assert "the summary\n\n" in seed.content[0].text
    assert seed.content[0].text.endswith("comes back to them:\n\n- then the tests\n\n- then the docs")


def test_the_successor_of_a_conversation_in_which_nothing_waited_begins_with_the_summary(world: World) -> None:
    talk = world.create()
    talk.asks("go on").say("That is all I could do.", usage=full(world))
    talk.answer("the summary", ContextExhausted)

    successor = talk.ask(messages.ContinueConversationCommand(include_summary=True))

    (seed,) = world.truth.messages(successor.id, after=0, limit=10)
    assert seed.content[0].text.endswith("Its summary:\n\nthe summary")


def test_instructions_that_cannot_be_read_are_said_before_the_first_message(world: World, tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes("Use tabs.".encode("utf-16"))
    warning = f"{tmp_path}/AGENTS.md is not used as instructions: it is not UTF-8 text."
    talk = create_in(world, tmp_path)
    talk.asks("go on").say("That is all I could do.", usage=full(world))
    talk.answer("the summary", ContextExhausted)
    begin = [text_of(message.content) for message in world.truth.history(talk.id, 2)]
    assert begin == [warning, "go on"]

    successor = talk.ask(messages.ContinueConversationCommand(include_summary=True))

    first, seed = world.truth.messages(successor.id, after=0, limit=10)
    assert text_of(first.content) == warning
    assert text_of(seed.content).endswith("the summary")
    assert differences(world.truth, talk.record) == differences(world.truth, successor) == []


def test_an_empty_file_and_one_that_the_prompt_does_not_use_are_not_spoken_of(world: World, tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").touch()
    assert create_in(world, tmp_path).record.revision == 0
    (tmp_path / "AGENTS.md").write_bytes(b"\0")
    own = Profile(instructions="Answer.", replaces_prompt=True)
    assert create_in(world, tmp_path, profile=own).record.revision == 0


def test_messages_that_are_too_long_fill_neither_the_summary_nor_the_successor(world: World) -> None:
    talk = world.create()
    exchange = talk.asks("why " * 200_000)
    talk.send("how " * 200_000, delivery="follow_up")
    exchange.fail(ErrorKind.CONTEXT_EXHAUSTED)
    summary = talk.exchange()
    window = world.model.info.usable_window
    assert content_tokens(block for turn in summary.request.turns for block in turn.content) < window
    summary.say("the summary")
    talk.rest(ContextExhausted)

    successor = talk.ask(messages.ContinueConversationCommand(include_summary=True))

    (seed,) = world.truth.messages(successor.id, after=0, limit=10)
    assert content_tokens(seed.content) < window // 4
    assert "how how" in seed.content[0].text
    assert "characters are left out here" in seed.content[0].text


# --- auto_continue ---

BY_ITSELF = Profile(auto_continue=True)


def summarised(talk: Talk) -> Any:
    """Use up the context while a message waits, and return the request for the summary."""
    exchange = talk.asks("go on")
    talk.send("then the tests", delivery="follow_up")
    exchange.say("That is all I could do.", usage=full(talk.world))
    return talk.exchange()


def successors(talk: Talk) -> list[Any]:
    listed = talk.world.truth.list(Selection("tester"), limit=10).records
    return [record for record in listed if record.continued_from == talk.id]


def test_a_conversation_that_continues_by_itself_has_its_successor_once_it_is_exhausted(world: World) -> None:
    talk = world.create(profile=BY_ITSELF, title="Numbers", labels={"team": "docs"})
    summarised(talk).say("the summary")
    talk.rest(ContextExhausted)

    (successor,) = successors(talk)
    assert talk.record.continued_by == successor.id
    assert talk.found(ConversationUpdated)[-1].fields == ("continued_by",)
    assert (successor.title, successor.labels, successor.profile) == ("Numbers", {"team": "docs"}, BY_ITSELF)
    (seed,) = world.truth.messages(successor.id, after=0, limit=10)
    assert "the summary\n\n" in seed.content[0].text
    assert seed.content[0].text.endswith("comes back to them:\n\n- then the tests")
    assert talk.ask(messages.ContinueConversationCommand(include_summary=True)).id == successor.id
    goes_on = Talk(world, successor.id)
    goes_on.asks("the tests, then").say("done")
    goes_on.rest(Idle)


def test_a_fallback_has_a_successor_too(world: World) -> None:
    talk = world.create(profile=BY_ITSELF)
    summarised(talk).fail(ErrorKind.AUTH)
    talk.rest(ContextExhausted)
    (successor,) = successors(talk)
    (seed,) = world.truth.messages(successor.id, after=0, limit=10)
    assert talk.state.summary in seed.content[0].text


def test_continuing_by_itself_is_turned_on_and_off(world: World) -> None:
    talk = world.create()
    for wanted in (True, False):
        before = etag_of(talk.record)
        assert talk.ask(messages.UpdateConversationCommand(auto_continue=wanted)).profile.auto_continue is wanted
        assert etag_of(talk.record) != before
        assert talk.found(ConversationUpdated)[-1].fields == ("auto_continue",)
    summarised(talk).say("the summary")
    talk.rest(ContextExhausted)
    assert successors(talk) == []


@pytest.mark.parametrize(("point", "stored"), [("commit.before", 0), ("commit.after", 1), ("publish.after", 1)])
def test_a_server_that_is_killed_at_the_end_of_a_context_leaves_exactly_one_successor(
    world: World, hold: Any, point: str, stored: int
) -> None:
    talk = world.create(profile=BY_ITSELF)
    summary = summarised(talk)
    world.faults.arm(point, hold)
    summary.say("the summary")
    hold.wait()
    assert len(successors(talk)) == stored
    after = reborn(world)
    try:
        lives_on = Talk(after, talk.id)
        if not stored:
            lives_on.rest(Idle)
            lives_on.ask(messages.TriggerContinuationCommand())
            lives_on.exchange().say("the summary")
        lives_on.rest(ContextExhausted)
        hold.release()
        (successor,) = successors(lives_on)
        assert lives_on.ask(messages.ContinueConversationCommand()).id == lives_on.record.continued_by == successor.id
    finally:
        after.close()


@pytest.mark.parametrize("written", [False, True])
def test_a_store_that_fails_at_the_end_of_a_context_leaves_exactly_one_successor(shaky: World, written: bool) -> None:
    talk = shaky.create(profile=BY_ITSELF)
    summary = summarised(talk)
    shaky.store.lies, shaky.store.down = int(written), not written
    summary.say("the summary")
    assert shaky.store.refusals.acquire(timeout=PATIENCE)
    shaky.store.down = False
    talk.rest(ContextExhausted)
    assert talk.ask(messages.ContinueConversationCommand()).id == talk.record.continued_by
    assert [each.id for each in successors(talk)] == [talk.record.continued_by]


def test_a_slug_that_is_taken_delays_the_successor_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = world.create(profile=BY_ITSELF, slug="taken")
    summary = summarised(talk)
    monkeypatch.setattr(world.services.ids, "slug", iter(["taken", "free"]).__next__)
    summary.say("the summary")
    talk.rest(ContextExhausted)
    assert [each.slug for each in successors(talk)] == ["free"]


def test_a_successor_that_cannot_be_created_is_left_to_a_command(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = world.create(profile=BY_ITSELF)
    summary = summarised(talk)
    with monkeypatch.context() as patch:
        patch.setattr(creation, "system_prompt", None)
        summary.say("the summary")
        talk.rest(ContextExhausted)
    assert successors(talk) == []
    assert talk.ask(messages.ContinueConversationCommand()).continued_from == talk.id
