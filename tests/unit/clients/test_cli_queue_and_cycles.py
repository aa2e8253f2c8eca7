"""The commands about what waits and how runs went: what they print."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime

import pytest
from bedrock import v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.app import bedrock
from click.testing import CliRunner, Result

from tests.support.fake_server import NAME, SLUG, FakeBedrock, stopped, stored

Program = Callable[..., Result]


@pytest.fixture
def program(address: str) -> Program:
    def run(*arguments: str, stdin: str | None = None) -> Result:
        environment = {"BEDROCK_ADDRESS": address, "BEDROCK_TOKEN": "secret"}
        return CliRunner(env=environment).invoke(bedrock, arguments, input=stdin, catch_exceptions=False)

    return run


# --- the queue --------------------------------------------------------------------------------------------------------


def queued(number: int, fate: v1.QueuedMessage.Fate.ValueType, text: str = "later") -> v1.QueuedMessage:
    message = v1.Message(name=f"{NAME}/messages/q{number}", delivery=v1.DELIVERY_FOLLOW_UP)
    message.content.add(text=text)
    message.create_time.GetCurrentTime()
    return v1.QueuedMessage(message=message, fate=fate)


@pytest.fixture
def waiting(fake: FakeBedrock) -> FakeBedrock:
    wire = v1.QueuedMessage
    fake.queued += [queued(1, wire.FATE_DISCARDED), queued(2, wire.FATE_QUEUED), queued(3, wire.FATE_QUEUED, "a\nb")]
    return fake


def test_the_queue_is_listed_oldest_first(program: Program, waiting: FakeBedrock) -> None:
    rows = [line.split("\t") for line in program("queue", SLUG).stdout.splitlines()]
    assert [(row[0], row[1], row[3], row[4]) for row in rows] == [
        ("q2", "follow-up", "waiting", "later"),
        ("q3", "follow-up", "waiting", "a b"),
    ]
    assert [line.split("\t")[3] for line in program("queue", SLUG, "--all").stdout.splitlines()] == [
        "discarded before it began",
        "waiting",
        "waiting",
    ]
    latest = json.loads(program("queue", SLUG, "--all", "-n", "1", "--output", "json").stdout)
    assert [(each["message"]["name"], each["fate"]) for each in latest] == [(f"{NAME}/messages/q3", "FATE_QUEUED")]


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [((), ["q3"]), (("q2",), ["q2"]), (("q3", f"{NAME}/messages/q2"), ["q3", "q2"]), (("--all",), ["q3", "q2"])],
)
def test_messages_are_taken_back_by_name_or_the_last_or_all(
    program: Program, waiting: FakeBedrock, arguments: tuple[str, ...], taken: list[str]
) -> None:
    done = program("withdraw", SLUG, *arguments)
    assert (done.exit_code, done.stdout.count("withdrawn: ")) == (0, len(taken))
    assert [each.name.rpartition("/")[2] for each in waiting.asked(v1.WithdrawMessageRequest)] == taken


def test_a_withdrawn_text_is_printed_whole(program: Program, waiting: FakeBedrock) -> None:
    text = "\n".join(f"line {number} of a long paste" for number in range(60))
    waiting.queued.append(queued(4, v1.QueuedMessage.FATE_QUEUED, text))
    assert program("withdraw", SLUG).stdout == f"withdrawn: {text}\n"


def test_where_nothing_waits_nothing_is_taken_back(program: Program, fake: FakeBedrock) -> None:
    done = program("withdraw", SLUG)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "the queue is empty\n")
    assert program("withdraw", SLUG, "q1", "--all").exit_code == exits.USAGE


def test_messages_that_were_never_delivered_are_shown_where_they_were_dropped(
    program: Program, fake: FakeBedrock
) -> None:
    """By `show` and by `watch`, in the words of the queue."""
    wire = v1.QueuedMessage
    fake.happen(stored("user", v1.ContentBlock(text="Go.")), stored("agent", v1.ContentBlock(text="I go.")))
    fake.happen(stored("user", v1.ContentBlock(text="Then this.")), stored("user", v1.ContentBlock(text="Again.")))
    fake.settle()
    messages = [event.message_added for event in fake.durable]
    for second, message in zip((1, 5, 5, 9), messages, strict=True):
        message.create_time.FromSeconds(second)
    messages[0].request_cycle = messages[1].request_cycle = f"{NAME}/requestCycles/1"
    fates = [
        (queued(8, wire.FATE_WITHDRAWN, "long ago"), 0),
        (queued(7, wire.FATE_RETURNED, "gently"), 5),
        (queued(6, wire.FATE_DISCARDED), 5),
        (queued(5, wire.FATE_WITHDRAWN, "no"), 7),
        (queued(4, wire.FATE_DELIVERED), 9),
    ]
    for entry, second in fates:
        entry.settle_time.FromSeconds(second)
    fates[1][0].message.request_cycle = messages[0].request_cycle
    fates[2][0].message.name = messages[2].name
    messages[2].request_cycle = f"{NAME}/requestCycles/2"
    fake.cycles = [
        v1.RequestCycle(name=message.request_cycle, stop_reason=v1.STOP_REASON_INTERRUPTED, stop_detail=detail)
        for message, detail in ((messages[0], ""), (messages[2], "not_run"))
    ]
    for cycle in fake.cycles:
        cycle.end_time.FromSeconds(5)
    fake.queued = [entry for entry, _ in fates] + [queued(3, wire.FATE_QUEUED, "soon")]
    fake.conversation.update_time.FromSeconds(9)
    told = [
        *("", "> Go.", "I go.", "⋯ “gently” was not delivered; send it again if it still matters", "■ cancelled"),
        *("", "> Then this.", "■ discarded before it began", "", "> Again."),
    ]
    later = ["⋯ “soon” waits (follow-up)"]
    assert program("show", SLUG).stdout.splitlines()[-len(told + later) :] == told + later
    assert program("show", SLUG, "-n", "1").stdout.splitlines()[-3:] == [*told[-2:], *later]
    assert "■ cancelled" not in program("show", SLUG, "-n", "1").stdout
    fake.deleted = True
    assert program("watch", SLUG).stdout.splitlines() == [*told, *later, "■ the conversation was deleted"]


def test_a_run_that_ended_since_a_snapshot_is_reported_by_its_event_alone(program: Program, fake: FakeBedrock) -> None:
    fake.answers.append(lambda run: [stored("agent", v1.ContentBlock(text="I go.")), stopped(run, "interrupted")])
    program("ask", "Go.")
    fake.settle()
    run = v1.RequestCycle(name=f"{NAME}/requestCycles/1", stop_reason=v1.STOP_REASON_INTERRUPTED)
    fake.deleted, fake.cycles = True, [run]
    for second, times in ((8, 0), (7, 1)):
        run.end_time.FromSeconds(second)
        fake.conversation.update_time.FromSeconds(7)
        assert program("watch", SLUG).stdout.count("■ cancelled") == times
    assert program("show", SLUG).stdout.count("■ cancelled") == 1


# --- cycles -----------------------------------------------------------------------------------------------------------


def test_wait_prints_how_the_run_ended(program: Program, fake: FakeBedrock) -> None:
    fake.conversation.state.run = f"{NAME}/requestCycles/c1:3"
    fake.waits = 1
    done = program("wait", SLUG)
    assert (done.exit_code, done.stdout) == (exits.OK, "c1:3\t\t0\tcompleted\n")
    late = program("wait", SLUG, "--run", "c1:4", "--timeout", "0")
    assert (late.exit_code, late.stdout) == (exits.OK, "c1:4\t\t0\tcompleted\n")
    fake.waits = 1_000
    late = program("wait", SLUG, "--timeout", "0")
    assert (late.exit_code, late.stdout) == (exits.FAILED, "c1:3\t\t0\trunning\n")


def test_wait_says_for_whom_the_run_waits(program: Program, fake: FakeBedrock) -> None:
    state = fake.conversation.state
    state.run, state.kind, fake.waits = f"{NAME}/requestCycles/c1:3", v1.STATE_KIND_AWAITING_TOOL_APPROVAL, 1_000
    asked = program("wait", SLUG, "--timeout", "0")
    assert (asked.exit_code, asked.stdout) == (exits.NEEDS_APPROVAL, "c1:3\t\t0\twaiting for approval\n")
    assert asked.stderr == f"{SLUG} waiting for approval; see `bedrock show {SLUG}`\n"
    assert program("wait", SLUG, "--run", "c1:2", "--timeout", "0").stderr == "", "it is another run that waits"

    state.kind = v1.STATE_KIND_TOOL_EXECUTING
    state.tool_executing.current.tool = "find_order"
    state.tool_executing.deadline.seconds = 1
    served = program("wait", SLUG, "--timeout", "0")
    assert (served.exit_code, served.stdout) == (exits.FAILED, "c1:3\t\t0\twaiting for a client (find_order)\n")
    fake.waits = len(fake.asked(v1.WaitRequestCycleRequest)) + 3
    done = program("wait", SLUG)
    told = f"{SLUG} waiting for a client (find_order); see `bedrock show {SLUG}`\n"
    assert (done.exit_code, done.stderr) == (exits.OK, told), "once"

    fake.waits = 1_000
    state.tool_executing.questions.add(name=f"{NAME}/questions/1")
    asked = program("wait", SLUG, "--timeout", "0")
    assert (asked.exit_code, asked.stdout) == (exits.FAILED, "c1:3\t\t0\twaiting for an answer (find_order)\n")
    assert asked.stderr == f"{SLUG} waiting for an answer (find_order); see `bedrock show {SLUG}`\n"


def test_wait_takes_the_last_run_if_none_is_in_progress(program: Program, fake: FakeBedrock) -> None:
    none = program("wait", SLUG)
    assert (none.exit_code, none.stderr) == (exits.FAILED, "error: the conversation has no runs yet\n")
    names = [f"{NAME}/requestCycles/c1:{number}" for number in (1, 3)]
    fake.cycles = [v1.RequestCycle(name=name, stop_reason=v1.STOP_REASON_ERROR) for name in names]
    done = program("wait", SLUG, "--output", "json")
    assert done.exit_code == exits.FAILED
    assert [each["name"][-4:] for each in json.loads(done.stdout)] == ["c1:3"]


def test_cycles_are_listed_oldest_first_and_whole_in_a_pipe(program: Program, fake: FakeBedrock) -> None:
    asked = "word " * 100
    fake.cycles = [
        v1.RequestCycle(name=f"{NAME}/requestCycles/c:{number}", stop_reason=v1.STOP_REASON_COMPLETED)
        for number in (1, 2)
    ]
    fake.cycles[0].steps.add().root.content.add(text=asked)
    fake.cycles[0].rounds.add()
    assert program("cycles", SLUG).stdout == f"c:1\t{asked}\t1\tcompleted\nc:2\t\t0\tcompleted\n"
    assert program("cycles", SLUG, "-n", "1").stdout.startswith("c:2\t")
    shown = json.loads(program("cycles", SLUG, "--output", "json").stdout)
    assert [len(each.get("rounds", [])) for each in shown] == [1, 0]


# --- approvals --------------------------------------------------------------------------------------------------------


def test_approvals_are_listed_with_their_conversations(program: Program, fake: FakeBedrock) -> None:
    assert program("approvals").stdout == ""
    call = v1.ToolCall(tool_use_id="t1", tool="bash")
    call.input.update({"command": "rm x"})
    fake.conversation.state.awaiting_approval.pending.add(name=f"{NAME}/approvals/t1", tool_call=call)
    for arguments in (("approvals",), ("approvals", SLUG)):
        assert program(*arguments).stdout == f'{SLUG}\tt1\tbash\t\t{{"command": "rm x"}}\n'
    asked = [each.parent for each in fake.asked(v1.ListApprovalsRequest)]
    assert asked == ["conversations/-", "conversations/-", f"conversations/{SLUG}"]
    fake.unreadable = ["conversations/damaged"]
    said = "damaged cannot be read and may have open questions: see `bedrock verify damaged`\n"
    assert program("approvals").stderr == said
    shown = json.loads(program("approvals", "--output", "json").stdout)
    assert [each["name"] for each in shown] == [f"{NAME}/approvals/t1"]


def test_what_tools_ask_is_listed_with_its_deadline_and_approvals_tell_of_it(
    program: Program, fake: FakeBedrock
) -> None:
    assert program("questions").stdout == ""
    asked = fake.conversation.state.tool_executing.questions.add(
        name=f"{NAME}/questions/3", mcp_server="files", message="Which\x1b[2J one?\nSay it."
    )
    asked.deadline.FromDatetime(datetime(2026, 11, 23, 12, 30, 5).astimezone())
    line = f"{SLUG}\t3\tfiles\t12:30:05\t"
    for arguments in (("questions",), ("questions", SLUG)):
        assert program(*arguments).stdout.startswith(line)
    assert "\x1b" not in program("questions").stdout
    assert [each.parent for each in fake.asked(v1.ListQuestionsRequest)][-2:] == [
        f"conversations/{SLUG}",
        "conversations/-",
    ]
    shown = json.loads(program("questions", "--output", "json").stdout)
    assert [each["name"] for each in shown] == [f"{NAME}/questions/3"]


def test_the_audit_trail_is_printed_as_lines_of_json(program: Program, fake: FakeBedrock) -> None:
    printed = program("audit", "--since", "2026-11-23T10:00:00Z", "--principal", "bob", "--refused").stdout
    entry = {"time": "2026-11-23T10:00:00Z", "outcome": "OUTCOME_REFUSED", "principal": "bob"}
    assert [json.loads(line) for line in printed.splitlines()] == [entry] * 2
    assert program("audit", "--since", "12h").exit_code == exits.OK
    asked = fake.asked(v1.ListAuditEntriesRequest)[-1]
    assert asked.start_time.seconds == pytest.approx(time.time() - 12 * 3600, abs=600)
    refused = program("audit", "--since", "soon")
    assert refused.exit_code == exits.USAGE
    assert "is not a time" in refused.stderr


def test_that_nothing_was_found_is_said(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedrock.Client.audit", lambda *_, **__: iter(()))
    monkeypatch.setattr("bedrock.cli.commands.audit._listed", lambda *_, **__: iter(()))
    none = program("audit", "--refused")
    assert (none.exit_code, none.stdout, none.stderr) == (exits.OK, "", "No matching entries.\n")
    unchecked = program("verify", "--all")
    assert (unchecked.exit_code, unchecked.stdout) == (exits.OK, "")
    assert "those of other principals are not checked" in unchecked.stderr


def test_audit_goes_on_with_new_entries_and_repeats_none(
    program: Program, fake: FakeBedrock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(2))

    def pause(_seconds: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr("bedrock.cli.commands.audit.time.sleep", pause)
    printed = program("audit", "--follow", "--since", "2026-11-23T10:00:00Z").stdout
    assert len(printed.splitlines()) == 3
    starts = [each.start_time.seconds for each in fake.asked(v1.ListAuditEntriesRequest)]
    assert starts[0] - starts[2] == 30
