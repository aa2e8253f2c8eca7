"""Approval rules through real actors: made with an answer or by themselves, kept, revoked, and taken over."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors import messages
from actors.adapters.store.sqlite.store import open_store
from actors.core.content import ToolUse
from actors.core.context import Action, ApprovalPolicy, ApprovalRule, ClientTool, Origin, Profile
from actors.core.errors import Reason, Rejected
from actors.core.notifications import ApprovalDecision, ApprovalRequested, ApprovalResolved, ConversationUpdated
from actors.core.states import AwaitingToolApproval, ContextExhausted, Idle
from actors.ports import ToolOutput
from tests.integration.actors.conftest import Talk
from tests.integration.actors.family import child, tasks

World = Any
ALLOW, ASK, DENY = Action
PATIENCE = 10.0


@pytest.fixture
def world(make_world: Callable[..., World], tmp_path: Path) -> Iterator[World]:
    store = open_store(tmp_path / "data")
    made = make_world(store)
    yield made
    made.close()
    store.close()


def bash(call_id: str, command: str) -> ToolUse:
    return ToolUse(call_id, "bash", json.dumps({"cmd": command}))


def make(talk: Talk, action: Action, **subject: str) -> ApprovalRule:
    rule = talk.ask(messages.CreateApprovalRuleCommand(replace(ApprovalRule("", action), **subject), "ann"))
    assert isinstance(rule, ApprovalRule)
    return rule


def asked(talk: Talk, *calls: ToolUse) -> tuple[ApprovalRequested, ...]:
    """The questions that an answer with these calls raises."""
    before = talk.record.revision
    talk.exchange().call(*calls)
    talk.until(lambda: isinstance(talk.state, AwaitingToolApproval))
    return tuple(talk.found(ApprovalRequested, before))


def ended(talk: Talk) -> None:
    talk.until(lambda: isinstance(talk.state, Idle))


def runs(talk: Talk) -> None:
    talk.tool().finish.put(ToolOutput("done"))


def test_an_answer_with_a_rule_decides_the_next_calls_too(world: World) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_WRITES)
    talk.send("go")
    (question,) = asked(talk, bash("t1", "make test"))
    exactly, prefix = question.suggestions
    assert (exactly.command, prefix.command_prefix) == ("make test", "make test")

    record = talk.ask(messages.ResolveApprovalCommand("t1", True, prefix, principal="ann"))
    (rule,) = record.approval_rules
    assert (rule.command_prefix, rule.action, rule.creator, rule.origin) == (
        "make test",
        ALLOW,
        "ann",
        Origin.CONVERSATION,
    )
    assert rule.id
    assert rule.created_at > 0
    runs(talk)
    talk.exchange().call(bash("t2", "make test && make 'test' all"))
    runs(talk)
    (question,) = asked(talk, bash("t3", "make test; git push"))
    talk.ask(
        messages.ResolveApprovalCommand("t3", False, replace(question.suggestions[2], action=ALLOW), "not yet", "bob")
    )
    talk.exchange().call(bash("t4", "git push origin"))
    talk.answer("I see")

    assert [(rule.command_prefix, rule.action, rule.creator) for rule in talk.record.approval_rules] == [
        ("make test", ALLOW, "ann"),
        ("git push", DENY, "bob"),
    ]
    assert [note.decision for note in talk.found(ApprovalResolved)] == [ApprovalDecision.APPROVE, ApprovalDecision.DENY]
    assert any("Denied by user: not yet" in text for text in talk.texts())
    assert any(
        "a rule of this conversation denies commands that begin with 'git push'" in text for text in talk.texts()
    )
    assert talk.found(ConversationUpdated)[-1].fields == ("approval_rules",)


def test_rules_judge_a_call_by_the_name_that_is_meant_and_its_result_says_what_was_corrected(world: World) -> None:
    talk = world.create()
    talk.ask(messages.CreateApprovalRuleCommand(ApprovalRule("", DENY, command_prefix="git push"), "ann"))
    talk.send("go")
    for call_id, command in (("t1", "git push origin"), ("t2", "git status")):
        talk.exchange().call(replace(bash(call_id, command), name="functions.bash"))
        if call_id == "t2":
            runs(talk)
    later = talk.exchange()

    calls = [block for turn in later.request.turns for block in turn.content if isinstance(block, ToolUse)]
    assert [call.name for call in calls] == ["bash", "bash"]
    denied, ran = (text for text in talk.texts() if "git push'" in text or "Note" in text)
    assert "denies commands that begin with 'git push'" in denied
    assert ran == 'done\n\nNote: this call was corrected before it ran: the name "functions.bash" to bash.'
    later.say("I see")
    talk.rest(Idle)


def test_an_answer_whose_rule_cannot_be_made_leaves_the_question_open(world: World) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_ALL)
    talk.send("go")
    asked(talk, bash("t1", "bash x"))
    with pytest.raises(messages.InvalidFieldError) as refusal:
        talk.ask(messages.ResolveApprovalCommand("t1", True, ApprovalRule("", ALLOW, command_prefix="bash")))

    assert refusal.value.field == "rule.command_prefix"
    assert isinstance(talk.state, AwaitingToolApproval)
    assert talk.record.approval_rules == ()


def test_a_call_that_cannot_run_is_refused_before_a_person_is_asked_about_it(world: World) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_ALL)
    talk.send("go")
    wrong = ToolUse("t1", "loook", "{}")
    (question,) = asked(talk, wrong, bash("t2", "make"))
    assert question.call.id == "t2"
    talk.ask(messages.ResolveApprovalCommand("t2", True))
    runs(talk)
    talk.exchange().call(replace(wrong, id="t3"))
    talk.answer("I see")
    assert len(talk.found(ApprovalRequested)) == 1
    assert sum("there is no tool loook" in text for text in talk.texts()) == 2


def test_an_answer_that_comes_too_late_makes_no_rule(world: World) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_WRITES)
    talk.send("go")
    (question,) = asked(talk, bash("t1", "make test"))
    talk.ask(messages.ResolveApprovalCommand("t1", False))
    with pytest.raises(Rejected) as refusal:
        talk.ask(messages.ResolveApprovalCommand("t1", True, question.suggestions[1], principal="ann"))
    assert refusal.value.reason is Reason.NOT_AWAITING_APPROVAL
    assert talk.record.approval_rules == ()
    talk.answer("I see")


def test_a_rule_for_a_tool_that_does_not_exist_is_refused_with_what_may_have_been_meant(world: World) -> None:
    declared = ClientTool("find_order", "Finds it.", '{"type": "object"}')
    talk = world.create(profile=Profile(client_tools=(declared,)))
    meanings = {"loook": "did you mean 'look'?", "findorder": "did you mean 'find_order'?", "?": "available tools: "}
    for wrong, meant in meanings.items():
        with pytest.raises(messages.InvalidFieldError, match=re.escape(meant)) as refusal:
            make(talk, DENY, tool=wrong)
        assert refusal.value.field == "tool"
    for known in ("look", "find_order", "mcp__new__any"):
        make(talk, DENY, tool=known)


def test_rules_are_made_once_replaced_and_revoked(world: World, caplog: pytest.LogCaptureFixture) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_WRITES)
    command = messages.CreateApprovalRuleCommand(ApprovalRule("", ALLOW, command_prefix=" make "), "ann", "id", "h")
    first = talk.ask(command)
    assert talk.ask(command) == first == make(talk, ALLOW, command_prefix="make")
    instead = make(talk, DENY, command_prefix="make")
    other = make(talk, ASK, tool="look")
    assert talk.record.approval_rules == (instead, other)
    assert len({first.id, instead.id, other.id}) == 3

    talk.ask(messages.DeleteApprovalRuleCommand(instead.id, "bob"))
    assert talk.record.approval_rules == (other,)
    with pytest.raises(messages.UnknownApprovalRuleError):
        talk.ask(messages.DeleteApprovalRuleCommand(instead.id, "bob"))
    assert "fault" not in caplog.text
    talk.check()


@pytest.mark.parametrize(
    ("field", "subject"),
    [
        *(
            ("command_prefix", prefix)
            for prefix in ("bash", "env make", "git -c a=b", "make $x", "a | b", "find .", "*")
        ),
        *(("command_prefix", prefix) for prefix in ("sudo", "command ls", "python3.11", "xargs", "A=1 make", "'a")),
        ("path", "src"),
        ("command", " "),
    ],
)
def test_what_no_rule_can_allow_is_refused_by_name(world: World, field: str, subject: str) -> None:
    talk = world.create()
    with pytest.raises(messages.InvalidFieldError) as refusal:
        make(talk, ALLOW, **{field: subject})
    assert refusal.value.field == field


def test_a_conversation_has_a_bounded_number_of_rules(world: World) -> None:
    talk = world.create()
    for number in range(100):
        make(talk, DENY, command=f"make {number}")
    with pytest.raises(messages.InvalidFieldError, match="at most 100"):
        make(talk, DENY, command="make more")
    make(talk, ASK, command="make 7")


def test_forks_and_successors_keep_the_rules_and_go_their_own_ways(world: World) -> None:
    talk = world.create(approval_policy=ApprovalPolicy.ASK_WRITES)
    rule = make(talk, DENY, command_prefix="git push")
    talk.turn("hello", "hi")
    fork = Talk(world, world.supervisor.create(messages.ForkConversationCommand("tester", talk.id)).result(PATIENCE).id)
    talk.ask(messages.TriggerContinuationCommand())
    talk.answer("nothing", ContextExhausted)
    successor = Talk(world, talk.ask(messages.ContinueConversationCommand()).id)

    for heir in (fork, successor):
        assert heir.record.approval_rules == (rule,)
        heir.asks("push").call(bash("t9", "git push"))
        heir.exchange().say("no")
        ended(heir)
        more = make(heir, ALLOW, tool="look")
        heir.ask(messages.DeleteApprovalRuleCommand(rule.id, "ann"))
        assert heir.record.approval_rules == (more,)
    assert talk.record.approval_rules == (rule,)


def test_sub_agents_keep_to_the_rules_of_parent_and_operator_and_ask_nobody(family: World) -> None:
    object.__setattr__(
        family.services, "approval_rules", (ApprovalRule("1", DENY, tool="look", origin=Origin.OPERATOR),)
    )
    talk = family.create()
    rule = make(talk, ASK, tool="linger")
    talk.send(tasks("submit 42"))
    talk.rest(Idle)

    assert child(talk, 1).record.approval_rules == (rule,)
    context = family.services.context_of(child(talk, 1).record)
    assert [(rule.tool, rule.action) for rule in context.approval_rules] == [("look", DENY), ("linger", ASK)]
