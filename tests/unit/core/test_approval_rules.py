"""Approval rules (A1 to A5): a denial before a question before a permission, whatever is not seen is asked for."""

from __future__ import annotations

import shlex

import pytest
from msgspec.structs import replace

from actors.core.approval import suggestions
from actors.core.content import Text, ToolError, ToolOutcome, ToolSuccess, ToolUse
from actors.core.context import (
    Action,
    ApprovalPolicy,
    ApprovalRule,
    CallSubject,
    ConvContext,
    Origin,
    Rules,
    ShellCommand,
    ToolGroup,
    ToolTraits,
)
from actors.core.effects import ExecuteTool, RequestLlm
from actors.core.events import ApprovalResponse, LlmResponse
from actors.core.notifications import ApprovalRequested
from actors.core.states import AwaitingToolApproval, LlmRequesting, ToolExecuting
from actors.core.steps.approvals import evaluate
from tests.machine.columns import PARENT, SUB_AGENT
from tests.machine.talk import Talk, messages

TOOLS = (
    ToolTraits("read_file", ToolGroup.READ, retry_safe=True),
    ToolTraits("patch", ToolGroup.WRITE, writes=True),
    ToolTraits("bash", ToolGroup.BASH, writes=True),
    ToolTraits("mcp__jira__comment", ToolGroup.OTHER, writes=True),
    ToolTraits("deploy", ToolGroup.OTHER, writes=True, client=True, timeout_ms=1_000),
    ToolTraits("request_mode_upgrade", ToolGroup.OTHER, always_asks=True),
)
BASH, READ, PATCH, JIRA, DEPLOY, UPGRADE = (
    ToolUse(f"t-{name}", name, "{}")
    for name in ("bash", "read_file", "patch", "mcp__jira__comment", "deploy", "request_mode_upgrade")
)
ALLOW, ASK, DENY = Action
MAKE = CallSubject("make", (ShellCommand(("make",)),))
MAKE_PUSH = CallSubject("make && git push", (ShellCommand(("make",)), ShellCommand(("git", "push"))))
PUSH_SOMETHING = CallSubject("git $x", (ShellCommand(("git",), open=True),))
PIPED_TO_SHELL = CallSubject("make | sh", (ShellCommand(("make",)), ShellCommand(("sh",))))
UNSEEN = CallSubject("$x", opaque=True)


def under(policy: ApprovalPolicy, *rules: ApprovalRule, of: ConvContext = PARENT) -> ConvContext:
    return replace(of, tools=TOOLS, approval_policy=policy, approval_rules=rules)


def rule(action: Action, *, operator: bool = False, **subject: str) -> ApprovalRule:
    words = tuple((subject.get("command_prefix") or subject.get("command") or "").split())
    origin = Origin.OPERATOR if operator else Origin.CONVERSATION
    return replace(ApprovalRule("r1", action, words=words, origin=origin), **subject)


def prefix(action: Action, text: str, *, operator: bool = False) -> ApprovalRule:
    return rule(action, command_prefix=text, operator=operator)


@pytest.mark.parametrize(
    ("rules", "call", "subject", "verdict"),
    [
        ((), BASH, MAKE, "ask"),
        ((prefix(ALLOW, "make"),), BASH, MAKE, "run"),
        ((prefix(ALLOW, "make"),), BASH, MAKE_PUSH, "ask"),
        ((prefix(ALLOW, "make"), prefix(ALLOW, "git")), BASH, MAKE_PUSH, "run"),
        ((prefix(ALLOW, "make"), prefix(ALLOW, "sh")), BASH, PIPED_TO_SHELL, "ask"),
        ((prefix(ALLOW, "git"),), BASH, PUSH_SOMETHING, "ask"),
        ((prefix(ALLOW, "git push"),), BASH, PUSH_SOMETHING, "ask"),
        ((prefix(ALLOW, "mak"),), BASH, MAKE, "ask"),
        ((rule(ALLOW, command="make"),), BASH, MAKE, "run"),
        ((rule(ALLOW, command="make"),), BASH, MAKE_PUSH, "ask"),
        ((rule(ALLOW, command="$x"),), BASH, UNSEEN, "run"),
        ((prefix(ALLOW, "make"),), BASH, CallSubject("make; $x", (ShellCommand(("make",)),), opaque=True), "ask"),
        ((rule(ALLOW, tool="bash"),), BASH, UNSEEN, "run"),
        ((rule(ALLOW, tool="bash"),), BASH, None, "run"),
        ((prefix(ALLOW, "make"),), BASH, None, "ask"),
        ((rule(ALLOW, tool="bash"), prefix(ASK, "git push")), BASH, MAKE_PUSH, "ask"),
        ((rule(ALLOW, tool="bash"), prefix(ASK, "git push")), BASH, UNSEEN, "ask"),
        ((rule(ALLOW, tool="bash"), prefix(ASK, "git push")), BASH, MAKE, "run"),
        ((prefix(DENY, "git push"), rule(ALLOW, tool="bash")), BASH, MAKE_PUSH, "deny"),
        ((prefix(DENY, "git push"), rule(ALLOW, tool="bash")), BASH, PUSH_SOMETHING, "ask"),
        ((prefix(DENY, "git push"), rule(ALLOW, tool="bash")), BASH, PIPED_TO_SHELL, "ask"),
        ((prefix(DENY, "git push"), rule(ALLOW, tool="bash")), BASH, None, "ask"),
        ((prefix(ASK, "make"), prefix(DENY, "make", operator=True)), BASH, MAKE, "deny"),
        ((rule(ALLOW, path="/src"),), PATCH, CallSubject(paths=("/src/a",)), "run"),
        ((rule(ALLOW, path="/src"),), PATCH, CallSubject(paths=("/srcs/a",)), "ask"),
        ((rule(ALLOW, path="/"),), PATCH, CallSubject(paths=("/srcs/a",)), "run"),
        ((rule(ALLOW, path="/src"),), PATCH, CallSubject(also_reads=("/src/a",)), "ask"),
        ((rule(DENY, path="/src"), rule(ALLOW, tool="patch")), PATCH, CallSubject(also_reads=("/src/a",)), "deny"),
        ((rule(DENY, path="/w/keys"),), READ, CallSubject(trees=("/w",)), "ask"),
        ((rule(DENY, path="/w"),), READ, CallSubject(trees=("/w/keys",)), "deny"),
        ((rule(ALLOW, mcp_server="jira"),), JIRA, CallSubject(), "run"),
        ((rule(ALLOW, mcp_server="jir"),), JIRA, CallSubject(), "ask"),
        ((rule(DENY, mcp_server="jira"), rule(ALLOW, tool="mcp__jira__comment")), JIRA, CallSubject(), "deny"),
        ((rule(ALLOW, tool="deploy"),), DEPLOY, CallSubject(), "run"),
        ((rule(DENY, tool="deploy"),), DEPLOY, CallSubject(), "deny"),
        ((prefix(DENY, "make"),), DEPLOY, CallSubject(), "ask"),
        ((rule(ALLOW, tool="request_mode_upgrade"),), UPGRADE, CallSubject(), "ask"),
        ((rule(DENY, tool="request_mode_upgrade"),), UPGRADE, CallSubject(), "deny"),
        ((rule(DENY, tool="deploy"),), replace(DEPLOY, bad_input="wrong"), CallSubject(), "run"),
    ],
)
def test_a_denial_comes_before_a_question_and_that_before_a_permission(
    rules: tuple[ApprovalRule, ...], call: ToolUse, subject: CallSubject | None, verdict: str
) -> None:
    assert evaluate(under(ApprovalPolicy.ASK_WRITES, *rules), call, subject).verdict == verdict


def command(text: str, *, runs_others: bool = False) -> CallSubject:
    return CallSubject(text, (ShellCommand(tuple(text.split()), runs_others=runs_others),))


@pytest.mark.parametrize(
    ("one", "subject", "before", "now"),
    [
        (prefix(ALLOW, "git push"), command("git push --exe=./evil"), "run", "ask"),
        (prefix(ALLOW, "git push"), command("git push origin main -q"), "run", "run"),
        (prefix(ALLOW, "git push -f"), command("git push -f origin"), "run", "run"),
        (prefix(ALLOW, "docker container"), command("docker container run x"), "run", "ask"),
        (prefix(ALLOW, "podman container"), command("podman container exec x"), "run", "ask"),
        (prefix(ALLOW, "npm"), command("npm explore x -- rm"), "run", "ask"),
        (prefix(ALLOW, "npm"), command("npm test"), "run", "run"),
        (prefix(ALLOW, "make"), command("make CC=./evil"), "run", "ask"),
        (prefix(ALLOW, "x"), command("x y"), "run", "ask"),
        (prefix(ALLOW, "git grep"), command("git grep -O x", runs_others=True), "ask", "ask"),
        (prefix(DENY, "git push"), command("linux32 git push"), "ask", "deny"),
        (prefix(DENY, "git push"), command("/lib64/ld-linux-x86-64.so.2 /usr/bin/git push"), "ask", "deny"),
        (prefix(DENY, "git push"), command("sudo git push", runs_others=True), "ask", "deny"),
        (prefix(DENY, "git push"), command("git -C . push", runs_others=True), "ask", "ask"),
        (rule(DENY, command="rm x"), command("ssh-agent rm x"), "ask", "deny"),
    ],
)
def test_an_old_log_is_judged_by_the_rules_that_wrote_it(
    one: ApprovalRule, subject: CallSubject, before: str, now: str
) -> None:
    context = under(ApprovalPolicy.ASK_WRITES, one)
    assert evaluate(replace(context, rules=Rules.OWN_TOOLS), BASH, subject).verdict == before
    assert evaluate(context, BASH, subject).verdict == now


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("./x rm y", "deny"),
        ("./x rm y z", "run"),
        ("./x rm all y", "run"),
        ("watch 'rm y'", "ask"),
    ],
)
def test_an_exact_command_is_denied_wherever_it_begins_and_nothing_longer(text: str, verdict: str) -> None:
    subject = CallSubject(text, (ShellCommand(tuple(shlex.split(text))),))
    assert evaluate(under(ApprovalPolicy.AUTO, rule(DENY, command="rm y")), BASH, subject).verdict == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("watch 'git push'", "ask"),
        ("git commit -m 'git push'", "ask"),
        ("git commit -m push", "run"),
        ("git -c alias.x=push x", "ask"),
        ("python3 -c \"run(['git', 'push'])\"", "ask"),
        ("awk 'BEGIN { system($0) }'", "ask"),
        ("xargs sh x", "ask"),
        ("env -S'git push'", "ask"),
        ("script -qc'git push'", "ask"),
        ("x 'a b'", "run"),
        ("python3 x.py", "run"),
        ("ls '*.py'", "run"),
    ],
)
def test_what_may_run_denied_words_asks(text: str, verdict: str) -> None:
    subject = CallSubject(text, (ShellCommand(tuple(shlex.split(text))),))
    assert evaluate(under(ApprovalPolicy.AUTO, prefix(DENY, "git push")), BASH, subject).verdict == verdict


@pytest.mark.parametrize("operand", ["a/$(shell ./x)=1", "$(if /,SHELL)=./x", "a\n${x}", "a/`x`"])
def test_what_the_program_would_expand_is_no_operand(operand: str) -> None:
    """make expands the names of variables that it is given."""
    subject = CallSubject("make", (ShellCommand(("make", operand)),))
    assert evaluate(under(ApprovalPolicy.ASK_ALL, prefix(ALLOW, "make")), BASH, subject).verdict == "ask"


def test_the_operators_denial_is_the_one_that_is_named() -> None:
    rules = (rule(DENY, tool="bash"), rule(DENY, tool="bash", operator=True))

    assert evaluate(under(ApprovalPolicy.AUTO, *rules), BASH, MAKE).rule == rules[1]


def test_a_denied_call_gets_an_error_no_other_runs_and_nobody_is_asked() -> None:
    talk = Talk(under(ApprovalPolicy.ASK_ALL, prefix(DENY, "git push", operator=True)))
    talk.say("go")
    respond(talk, (PATCH, BASH), (CallSubject(paths=("/a",)), MAKE_PUSH))

    assert (talk.acts(ExecuteTool), talk.notes(ApprovalRequested)) == ([], [])
    assert len(talk.acts(RequestLlm)) == 1
    skipped, refused = results(talk)
    assert isinstance(refused, ToolError)
    assert refused.outcome is ToolOutcome.DENIED
    assert "a rule of the server denies commands that begin with 'git push'" in refused.output
    assert isinstance(skipped, ToolError)
    assert skipped.outcome is not ToolOutcome.DENIED


def test_a_question_says_which_rules_would_answer_it() -> None:
    talk = Talk(under(ApprovalPolicy.ASK_WRITES))
    talk.say("go")
    respond(talk, (BASH, UPGRADE), (MAKE, CallSubject()))

    asked, upgrade = talk.notes(ApprovalRequested)
    assert [(each.command, each.command_prefix) for each in asked.suggestions] == [("make", ""), ("", "make")]
    assert upgrade.suggestions == ()
    assert isinstance(talk.state, AwaitingToolApproval)
    assert [each.tool_use_id for each in talk.state.suggestions] == [BASH.id]


@pytest.mark.parametrize(
    ("rules", "subject", "asked_by"),
    [
        ((prefix(ASK, "make"),), MAKE, "make"),
        ((prefix(DENY, "git push"),), UNSEEN, "git push"),
        ((prefix(DENY, "git push"), prefix(ASK, "make")), CallSubject("make; $x", MAKE.commands, opaque=True), "make"),
        ((prefix(ASK, "git push"),), MAKE, None),
        ((prefix(ALLOW, "git"),), MAKE, None),
    ],
)
def test_a_question_names_the_rule_that_asks(
    rules: tuple[ApprovalRule, ...], subject: CallSubject, asked_by: str | None
) -> None:
    """One that surely matches goes before one that might."""
    talk = Talk(under(ApprovalPolicy.ASK_WRITES, *rules))
    talk.say("go")
    respond(talk, (BASH, UPGRADE), (subject, CallSubject()))

    asked, upgrade = (note.asked_by for note in talk.notes(ApprovalRequested))
    assert (asked.command_prefix if asked else None) == asked_by
    assert upgrade is None, "it asks under every rule"
    kept = {each.tool_use_id: each.asked_by for each in talk.state.suggestions}  # type: ignore[union-attr]
    assert kept.get(BASH.id) == asked


def test_a_sub_agent_runs_what_a_rule_allows_and_gets_an_error_where_it_would_have_to_ask() -> None:
    rules = (prefix(ALLOW, "make"), prefix(ASK, "git push"))
    talk = Talk(under(ApprovalPolicy.ASK_WRITES, *rules, of=SUB_AGENT))
    talk.start()
    other = replace(BASH, id="t-other")
    respond(talk, (BASH, other), (MAKE, MAKE_PUSH))

    assert [effect.tool_use_id for effect in talk.acts(ExecuteTool)] == [BASH.id]
    assert isinstance(talk.state, ToolExecuting)
    assert talk.state.refused_ids == (other.id,)
    talk.result(ToolSuccess(BASH.id, "made"))
    assert talk.acts(ExecuteTool) == []
    assert isinstance(talk.state, LlmRequesting)
    assert isinstance(results(talk)[-1], ToolError)


def test_a_sub_agent_cannot_do_what_a_rule_denies() -> None:
    talk = Talk(under(ApprovalPolicy.AUTO, rule(DENY, tool="bash", operator=True), of=SUB_AGENT))
    talk.start()
    respond(talk, (BASH,), (MAKE,))

    assert talk.acts(ExecuteTool) == []
    assert isinstance(talk.state, LlmRequesting)


def test_two_calls_with_one_id_are_judged_each_by_what_it_is_about() -> None:
    talk = Talk(under(ApprovalPolicy.AUTO, prefix(DENY, "git push")))
    talk.say("go")
    respond(talk, (BASH, BASH), (MAKE_PUSH, MAKE))

    assert talk.acts(ExecuteTool) == []


def test_a_rule_made_while_a_question_is_open_leaves_it_open() -> None:
    talk = Talk(under(ApprovalPolicy.ASK_WRITES))
    talk.say("go")
    respond(talk, (BASH,), (MAKE,))
    talk.context = under(ApprovalPolicy.ASK_WRITES, rule(DENY, tool="bash"))
    talk.tell(ApprovalResponse(talk.at(), BASH.id, approve=True))

    assert [effect.tool_use_id for effect in talk.acts(ExecuteTool)] == [BASH.id]


@pytest.mark.parametrize(
    ("call", "subject", "suggested"),
    [
        (BASH, MAKE_PUSH, ["command=make && git push", "command_prefix=make", "command_prefix=git push"]),
        (BASH, PIPED_TO_SHELL, ["command=make | sh", "command_prefix=make"]),
        (BASH, UNSEEN, ["command=$x"]),
        (BASH, None, []),
        (BASH, command("git commit -m x"), ["command=git commit -m x", "command_prefix=git commit"]),
        (BASH, command("git push --exec=x"), ["command=git push --exec=x"]),
        (BASH, command("linux32 make"), ["command=linux32 make"]),
        (BASH, CallSubject("ls *", (ShellCommand(("ls",), open=True),)), ["command=ls *"]),
        (PATCH, CallSubject(paths=("/work/src/a.py",)), ["path=/work", "tool=patch"]),
        (PATCH, CallSubject(paths=("/etc/hosts",)), ["path=/etc", "tool=patch"]),
        (JIRA, CallSubject(), ["tool=mcp__jira__comment", "mcp_server=jira"]),
        (DEPLOY, CallSubject(), ["tool=deploy"]),
    ],
)
def test_suggestions_are_the_narrowest_first(call: ToolUse, subject: CallSubject | None, suggested: list[str]) -> None:
    found = suggestions(call, subject, "/work", max(Rules))

    assert [
        next(f"{name}={getattr(one, name)}" for name in SUBJECTS if getattr(one, name)) for one in found
    ] == suggested
    assert all(one.action is ALLOW and not one.id for one in found)


SUBJECTS = ("tool", "command", "command_prefix", "path", "mcp_server")


def results(talk: Talk) -> list[object]:
    """The results of calls that the last event stored."""
    return [
        block
        for message in messages(talk.last)
        for block in message.content
        if isinstance(block, (ToolError, ToolSuccess))
    ]


def respond(talk: Talk, calls: tuple[ToolUse, ...], subjects: tuple[CallSubject, ...]) -> None:
    state = talk.state
    assert isinstance(state, LlmRequesting)
    talk.tell(
        LlmResponse(
            talk.at(),
            state.request_id,
            state.attempt,
            (Text("so"), *calls),
            end_turn=False,
            usage=None,
            subjects=subjects,
        )
    )
