"""Questions to people and the rules that answer them (REQ-BED-015; C15, C16; A1 to A5)."""

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
    Mode,
    Origin,
    Rules,
    ShellCommand,
    ToolGroup,
    ToolTraits,
)
from actors.core.effects import ExecuteTool, PersistMode, RequestLlm
from actors.core.errors import Reason, Rejected
from actors.core.events import ApprovalResponse, LlmResponse, Restart, UserCancel
from actors.core.notifications import ApprovalDecision, ApprovalRequested, ApprovalResolved, ModeChanged
from actors.core.states import ApprovalKind, AwaitingToolApproval, Idle, LlmRequesting, ToolExecuting
from actors.core.steps import texts
from actors.core.steps.approvals import evaluate
from tests.machine.columns import PARENT, SUB_AGENT
from tests.machine.talk import Talk, bash, messages

# Approval rules (A1 to A5): a denial before a question before a permission, whatever is not seen is asked for.


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
    ("text", "verdict"), [("./x rm y", "deny"), ("./x rm y z", "run"), ("./x rm all y", "run"), ("watch 'rm y'", "ask")]
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


# Questions to people (REQ-BED-015; C15, C16): who is asked, and that every question ends once.


FEW_TOOLS = (
    ToolTraits("read_file", ToolGroup.READ, retry_safe=True),
    ToolTraits("bash", ToolGroup.BASH, writes=True),
    ToolTraits("request_mode_upgrade", ToolGroup.OTHER, always_asks=True),
)
BASE = replace(PARENT, tools=FEW_TOOLS)
UNKNOWN = ToolUse("t-no_such_tool", "no_such_tool", "{}")


def policy(name: ApprovalPolicy, *always: str) -> ConvContext:
    return replace(BASE, approval_policy=name, always_approved=always)


@pytest.mark.parametrize(
    ("context", "asked"),
    [
        (policy(ApprovalPolicy.AUTO), [UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_WRITES), [BASH.id, UNKNOWN.id, UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_WRITES, "bash"), [UNKNOWN.id, UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_WRITES, "bash", "request_mode_upgrade"), [UNKNOWN.id, UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_ALL), [READ.id, BASH.id, UNKNOWN.id, UPGRADE.id]),
        (policy(ApprovalPolicy.ASK_ALL, "read_file"), [BASH.id, UNKNOWN.id, UPGRADE.id]),
    ],
)
def test_the_policy_decides_who_is_asked_and_a_mode_upgrade_always_asks(context: ConvContext, asked: list[str]) -> None:
    talk = Talk(context)
    talk.say("go")

    talk.call(READ, BASH, UNKNOWN, UPGRADE)

    assert [note.call.id for note in talk.notes(ApprovalRequested)] == asked
    assert isinstance(talk.state, AwaitingToolApproval)
    assert talk.state.undecided == tuple(asked)
    assert talk.state.calls == (READ, BASH, UNKNOWN, UPGRADE)
    assert talk.acts(ExecuteTool) == []


def test_the_notice_of_restricted_mode_names_what_is_offered() -> None:
    for tools, text in ((FEW_TOOLS, texts.MODES[Mode.RESTRICTED]), (FEW_TOOLS[:1], texts.RESTRICTED_FOR_GOOD)):
        talk = Talk(replace(BASE, tools=tools, mode=Mode.UNRESTRICTED))
        talk.set_mode(Mode.RESTRICTED)
        assert talk.said == [("system", text)]


@pytest.mark.parametrize("policy_name", ApprovalPolicy)
def test_a_mode_upgrade_that_is_not_offered_neither_asks_nor_runs(policy_name: ApprovalPolicy) -> None:
    talk = Talk(replace(BASE, tools=FEW_TOOLS[:1], approval_policy=policy_name))
    talk.say("go")

    talk.call(UPGRADE)

    assert talk.notes(ApprovalRequested) == []
    assert talk.acts(ExecuteTool) == []
    (result,) = (block for message in messages(talk.last) for block in message.content if isinstance(block, ToolError))
    assert result.output == texts.NOT_OFFERED


def test_a_log_of_earlier_rules_is_replayed_with_a_question_about_every_mode_upgrade() -> None:
    talk = Talk(replace(BASE, tools=(), rules=Rules.INTERRUPTIONS))
    talk.say("go")

    talk.call(UPGRADE)

    (request,) = talk.notes(ApprovalRequested)
    assert request.kind is ApprovalKind.MODE_UPGRADE


def asking(*calls: ToolUse) -> Talk:
    talk = Talk(policy(ApprovalPolicy.ASK_ALL))
    talk.say("go")
    talk.call(*calls)
    return talk


def test_nothing_runs_before_the_last_approval_then_all_run_in_request_order() -> None:
    talk = asking(READ, BASH)

    talk.tell(ApprovalResponse(talk.at(), BASH.id, True))
    assert talk.acts(ExecuteTool) == []
    talk.tell(ApprovalResponse(talk.at(), READ.id, True))
    assert [one.tool_use_id for one in talk.acts(ExecuteTool)] == [READ.id]
    talk.result(ToolSuccess(READ.id, "ok"))

    assert [one.tool_use_id for one in talk.acts(ExecuteTool)] == [BASH.id]
    assert [(note.tool_use_id, note.decision) for note in talk.every(ApprovalResolved)] == [
        (BASH.id, ApprovalDecision.APPROVE),
        (READ.id, ApprovalDecision.APPROVE),
    ]


def test_the_first_denial_decides_for_the_whole_response_and_the_run_goes_on() -> None:
    talk = asking(READ, BASH, UNKNOWN)
    talk.tell(ApprovalResponse(talk.at(), READ.id, True))

    talk.tell(ApprovalResponse(talk.at(), BASH.id, False, "too risky"))

    other = "Not executed: another tool call in the same response was denied"
    results = [message.content[0] for message in messages(talk.last)]
    assert results == [
        ToolError(READ.id, other, ToolOutcome.SKIPPED),
        ToolError(BASH.id, "Denied by user: too risky", ToolOutcome.DENIED),
        ToolError(UNKNOWN.id, other, ToolOutcome.SKIPPED),
    ]
    assert [(note.tool_use_id, note.decision) for note in talk.notes(ApprovalResolved)] == [
        (BASH.id, ApprovalDecision.DENY),
        (UNKNOWN.id, ApprovalDecision.WITHDRAWN),
    ]
    assert isinstance(talk.state, LlmRequesting)
    assert talk.walk == ["GeneratingResponse", "AwaitingLLMResponse"]


@pytest.mark.parametrize("answered", [BASH.id, "t-never-asked"])
def test_a_question_is_answered_once(answered: str) -> None:
    talk = asking(READ, BASH)
    talk.tell(ApprovalResponse(talk.at(), BASH.id, True))
    before = talk.state

    with pytest.raises(Rejected) as refused:
        talk.tell(ApprovalResponse(talk.at(), answered, False))

    assert refused.value.reason is Reason.UNKNOWN_OR_DECIDED
    assert talk.state is before


@pytest.mark.parametrize("event", [UserCancel(9_000), Restart(9_000)], ids=["cancel", "restart"])
def test_open_questions_are_withdrawn_and_answered_ones_are_not_resolved_again(event: UserCancel | Restart) -> None:
    talk = asking(READ, BASH)
    talk.tell(ApprovalResponse(talk.at(), READ.id, True))

    talk.tell(event)

    assert [(note.tool_use_id, note.decision) for note in talk.notes(ApprovalResolved)] == [
        (BASH.id, ApprovalDecision.WITHDRAWN)
    ]
    assert isinstance(talk.state, Idle)
    assert [message.content[0].tool_use_id for message in messages(talk.last)] == [READ.id, BASH.id]  # type: ignore[union-attr]


def upgrading() -> Talk:
    talk = Talk(BASE)
    talk.say("go")
    talk.call(UPGRADE, READ)
    assert isinstance(talk.state, AwaitingToolApproval)
    assert talk.state.kind is ApprovalKind.MODE_UPGRADE
    talk.tell(ApprovalResponse(talk.at(), UPGRADE.id, True))
    return talk


def test_the_result_of_an_approved_upgrade_changes_the_mode_and_the_agent_hears_of_it_after_the_round() -> None:
    talk = upgrading()
    assert talk.acts(PersistMode) == []

    talk.result(ToolSuccess(UPGRADE.id, "granted"))
    assert talk.acts(PersistMode) == [PersistMode(Mode.UNRESTRICTED)]
    assert talk.notes(ModeChanged) == [ModeChanged(Mode.UNRESTRICTED)]
    assert [kind for kind, _ in talk.said] == ["tool"]
    talk.result(ToolSuccess(READ.id, "contents"))

    assert [kind for kind, _ in talk.said] == ["tool", "system"]
    assert "unrestricted" in talk.said[1][1]
    assert talk.context.mode is Mode.UNRESTRICTED


@pytest.mark.parametrize(
    ("mode", "given", "granted"),
    [
        (Mode.RESTRICTED, '{"mode": "workspace"}', Mode.WORKSPACE),
        (Mode.RESTRICTED, '{"mode": "unrestricted"}', Mode.UNRESTRICTED),
        (Mode.WORKSPACE, '{"mode": "unrestricted"}', Mode.UNRESTRICTED),
        (Mode.WORKSPACE, "{}", Mode.UNRESTRICTED),
        (Mode.WORKSPACE, '{"mode": "workspace"}', None),
        (Mode.UNRESTRICTED, '{"mode": "workspace"}', None),
        (Mode.WORKSPACE, '{"mode": "restricted"}', None),
    ],
)
def test_an_approved_upgrade_grants_the_mode_that_was_asked_for_and_takes_none_away(
    mode: Mode, given: str, granted: Mode | None
) -> None:
    talk = Talk(replace(BASE, mode=mode))
    talk.say("go")
    talk.call(replace(UPGRADE, input=given))
    talk.tell(ApprovalResponse(talk.at(), UPGRADE.id, True))

    talk.result(ToolSuccess(UPGRADE.id, "granted"))

    assert [effect.mode for effect in talk.acts(PersistMode)] == ([granted] if granted else [])
    assert talk.context.mode is (granted or mode)


def test_a_workspace_that_this_server_cannot_keep_is_not_granted() -> None:
    talk = Talk(replace(BASE, workspace_available=False))
    talk.say("go")
    talk.call(replace(UPGRADE, input='{"mode": "workspace"}'))
    talk.tell(ApprovalResponse(talk.at(), UPGRADE.id, True))

    talk.result(ToolSuccess(UPGRADE.id, "granted"))

    assert talk.acts(PersistMode) == []


def test_an_upgrade_that_failed_changes_nothing() -> None:
    talk = upgrading()

    talk.result(ToolError(UPGRADE.id, "no"))

    assert talk.acts(PersistMode) == []
    assert talk.context.mode is Mode.RESTRICTED


def test_sub_agents_never_ask_what_would_ask_is_refused_in_passing() -> None:
    talk = Talk(replace(SUB_AGENT, tools=FEW_TOOLS, approval_policy=ApprovalPolicy.ASK_WRITES))
    talk.start()

    talk.call(BASH, READ, UNKNOWN)
    assert isinstance(talk.state, ToolExecuting)
    assert talk.state.current_tool_id == READ.id
    talk.result(ToolSuccess(READ.id, "contents"))

    refusal = "Not executed: it needs approval, and sub-agents cannot ask"
    results = [message.content[0] for message in talk.messages if message.type == "tool"]
    assert [(one.tool_use_id, one.output) for one in results] == [  # type: ignore[union-attr]
        (BASH.id, refusal),
        (READ.id, "contents"),
        (UNKNOWN.id, refusal),
    ]
    assert isinstance(talk.state, LlmRequesting)


def test_a_sub_agent_whose_calls_would_all_need_approval_is_informed_and_continues() -> None:
    talk = Talk(replace(SUB_AGENT, approval_policy=ApprovalPolicy.ASK_ALL))
    talk.start()

    talk.call(bash("t1"), bash("t2"))

    assert isinstance(talk.state, LlmRequesting)
    assert talk.walk == [
        "ProcessingLLMResponse",
        "ExecutingTools",
        "ProcessingToolResults",
        "GeneratingResponse",
        "AwaitingLLMResponse",
    ]
