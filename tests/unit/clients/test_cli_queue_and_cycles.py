"""The commands about what waits and how runs went: what they print, of a server and of a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from bedrock import RequestCycle, v1
from bedrock.cli import exit_codes as exits
from bedrock.cli.app import bedrock
from bedrock.cli.commands import cycles as command
from bedrock.cli.commands.cycles import WIDTH, timeline_of
from bedrock.cli.text.style import Paint, Width
from click.testing import CliRunner, Result
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from server.wire.offline_cycles import fold
from tests.support.fake_server import NAME, SLUG, FakeBedrock, stopped, stored

if TYPE_CHECKING:
    from pathlib import Path

    from bedrock.cli.text.safe_text import SafeText

Program = Callable[..., Result]

LINES = """
{"type":"user-message","id":"m1","text":"Look.","at":1750000000000}
{"type":"agent-output","kind":"reasoning","text":"plan","round":"r1","at":1750000000800}
{"type":"agent-output","kind":"assistant","text":"Let me look.","round":"r1","at":1750000000800}
{"type":"agent-output","kind":"tool_call","tool":"read","tool_call_id":"t1","round":"r1","at":1750000000800}
{"type":"agent-output","kind":"tool_call","tool":"grep","tool_call_id":"t2","round":"r1","at":1750000000800}
{"type":"agent-output","kind":"tool_call","tool":"bash","tool_call_id":"t3","round":"r1","at":1750000000800}
{"type":"user-message","id":"m2","delivery":"followUp","text":"Then this."}
{"type":"tool-result","tool_call_id":"t1","status":"ok","duration_ms":100}
{"type":"tool-result","tool_call_id":"t2","status":"ok","duration_ms":250}
{"type":"tool-result","tool_call_id":"t3","status":"cancelled"}
{"type":"user-message","id":"m3","delivery":"steer","text":"Gently."}
{"type":"agent-output","kind":"tool_call","tool":"bash","tool_call_id":"t4","round":"r2","at":1750000012500}
{"type":"agent-output","kind":"tool_call","tool":"bash","tool_call_id":"t5","round":"r2","at":1750000012500}
{"type":"tool-result","tool_call_id":"t4","status":"error","duration_ms":31000}
{"type":"run-stop","reason":"interrupted","detail":"round_cap","run":"c:1","at":1750000060000}
{"type":"user-message","id":"m4","delivery":"steer","text":"Never read."}
"""


@pytest.fixture
def program(address: str) -> Program:
    def run(*arguments: str, stdin: str | None = None) -> Result:
        environment = {"BEDROCK_ADDRESS": address, "BEDROCK_TOKEN": "secret"}
        return CliRunner(env=environment).invoke(bedrock, arguments, input=stdin, catch_exceptions=False)

    return run


def shown_timeline(cycles: list[v1.RequestCycle], paint: Paint, width: Width | None = None) -> list[SafeText]:
    return list(timeline_of(map(RequestCycle.from_proto, cycles), paint, width))


def folded() -> list[v1.RequestCycle]:
    found, skipped = fold(LINES.encode().splitlines())
    assert skipped == 0
    return found


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
        ("q2", "follow-up", "waits", "later"),
        ("q3", "follow-up", "waits", "a b"),
    ]
    assert [line.split("\t")[3] for line in program("queue", SLUG, "--all").stdout.splitlines()] == [
        "discarded before it began",
        "waits",
        "waits",
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
    asked = waiting.asked(v1.WithdrawMessageRequest)
    assert [str(each.name).rpartition("/")[2] for each in asked if isinstance(each, v1.WithdrawMessageRequest)] == taken


def test_a_withdrawn_text_is_printed_whole(program: Program, waiting: FakeBedrock) -> None:
    text = "\n".join(f"line {number} of a long paste" for number in range(60))
    waiting.queued.append(queued(4, v1.QueuedMessage.FATE_QUEUED, text))
    assert program("withdraw", SLUG).stdout == f"withdrawn: {text}\n"


def test_where_nothing_waits_nothing_is_taken_back(program: Program, fake: FakeBedrock) -> None:
    done = program("withdraw", SLUG)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "nothing waits\n")
    assert program("withdraw", SLUG, "q1", "--all").exit_code == exits.USAGE


def test_messages_that_were_never_delivered_are_shown_where_they_were_dropped(
    program: Program, fake: FakeBedrock
) -> None:
    """By `show` and by `watch`, in the words of the timeline and of the queue."""
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
        (queued(2, wire.FATE_RETURNED, "since then"), 12),
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
        *("", "> Then this.", "■ discarded before it began"),
        *("⋯ “no” was taken back", "", "> Again."),
    ]
    later = ["⋯ “since then” was not delivered; send it again if it still matters", "⋯ “soon” waits (follow-up)"]
    assert program("show", SLUG).stdout.splitlines()[-len(told + later) :] == told + later
    assert program("show", SLUG, "-n", "1").stdout.splitlines()[-4:] == [*told[-2:], *later]
    assert "“no”" not in program("show", SLUG, "-n", "1").stdout
    assert "■ cancelled" not in program("show", SLUG, "-n", "1").stdout
    fake.deleted = True
    assert program("watch", SLUG).stdout.splitlines() == [*told, later[1], "■ the conversation was deleted"]
    dropped = v1.RequestCycle(stop_reason=v1.STOP_REASON_INTERRUPTED, stop_detail="not_run")
    (*_, end) = shown_timeline([dropped], Paint(enabled=False))
    assert end == "   =           discarded before it began, 0 requests"


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
    assert (asked.exit_code, asked.stdout) == (exits.NEEDS_APPROVAL, "c1:3\t\t0\twaits for approval\n")
    assert asked.stderr == f"{SLUG} waits for approval: `bedrock approve {SLUG}` or `bedrock deny {SLUG}`\n"
    assert program("wait", SLUG, "--run", "c1:2", "--timeout", "0").stderr == "", "it is another run that waits"

    state.kind = v1.STATE_KIND_TOOL_EXECUTING
    state.tool_executing.current.tool = "find_order"
    state.tool_executing.deadline.seconds = 1
    served = program("wait", SLUG, "--timeout", "0")
    assert (served.exit_code, served.stdout) == (exits.FAILED, "c1:3\t\t0\twaits for a client (find_order)\n")
    fake.waits = len(fake.asked(v1.WaitRequestCycleRequest)) + 3
    done = program("wait", SLUG)
    assert (done.exit_code, done.stderr) == (exits.OK, f"{SLUG} waits for a client (find_order)\n"), "told once"

    fake.waits = 1_000
    state.tool_executing.questions.add(name=f"{NAME}/questions/1")
    asked = program("wait", SLUG, "--timeout", "0")
    assert (asked.exit_code, asked.stdout) == (exits.FAILED, "c1:3\t\t0\twaits for an answer (find_order)\n")
    assert asked.stderr == f"{SLUG} waits for an answer (find_order): `bedrock answer {SLUG}`\n"


def test_wait_takes_the_last_run_if_none_is_in_progress(program: Program, fake: FakeBedrock) -> None:
    none = program("wait", SLUG)
    assert (none.exit_code, none.stderr) == (exits.FAILED, "error: the conversation has no runs yet\n")
    names = [f"{NAME}/requestCycles/c1:{number}" for number in (1, 3)]
    fake.cycles = [v1.RequestCycle(name=name, stop_reason=v1.STOP_REASON_ERROR) for name in names]
    done = program("wait", SLUG, "--output", "json")
    assert done.exit_code == exits.FAILED
    assert [each["name"][-4:] for each in json.loads(done.stdout)] == ["c1:3"]


def test_cycles_of_a_file_need_no_server(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(LINES)
    for arguments, stdin in ((("cycles", str(file)), None), (("cycles", "-"), LINES)):
        done = CliRunner(env={"BEDROCK_ADDRESS": "127.0.0.1:1"}).invoke(bedrock, arguments, input=stdin)
        ended = "stopped: the run has reached its limit of model requests"
        assert done.stdout == f"c:1\tLook.\t2\t{ended}\n2\tThen this.\t0\trunning\n"
        assert (done.exit_code, done.stderr) == (0, "")


def test_a_pipe_gets_all_that_was_asked(program: Program) -> None:
    asked = "word " * 100
    lines = LINES.replace("Look.", asked)
    assert program("cycles", "-", stdin=lines).stdout.splitlines()[0].split("\t")[1] == asked


def test_the_events_of_a_server_make_the_same_cycles_in_a_file(program: Program, fake: FakeBedrock) -> None:
    fake.cycles = folded()
    lines = program("cycles", SLUG, "--events").stdout
    order = [json.loads(line)["type"] for line in lines.splitlines()][-4:]
    assert order == ["tool-result", "user-message", "run-stop", "user-message"], (
        "the follow-up was there before the end"
    )
    again, skipped = fold(lines.encode().splitlines(), strict=True)
    assert (again, skipped) == (folded(), 0)
    assert program("cycles", "-", "--timeline", stdin=lines).stdout == program("cycles", SLUG, "--timeline").stdout
    assert json.loads(program("cycles", "-", "-n", "1", "--output", "json", stdin=lines).stdout) == json.loads(
        program("cycles", SLUG, "-n", "1", "--output", "json").stdout
    )


def test_what_cannot_come_is_skipped_and_counted_or_refused(program: Program) -> None:
    lines = '{"type":"run-stop","reason":"completed"}\n\n{"type":"tool-result","tool_call_id":"t"}\n' + LINES
    lenient = program("cycles", "-", stdin=lines)
    assert (lenient.exit_code, len(lenient.stdout.splitlines())) == (0, 2)
    assert lenient.stderr.startswith("2 events were skipped")
    strict = program("cycles", "-", "--strict", stdin=lines)
    assert (strict.exit_code, strict.stdout) == (exits.FAILED, "")
    assert "line 1: run-stop while no cycle is open" in strict.stderr
    assert "line 4: run-stop while" in program("cycles", "-", "--strict", stdin="\n\n\n" + lines).stderr


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"type":"nonsense"}',
        '{"type":"user-message"}',
        '"x"',
        "\x80",
        '{"type":"user-message","id":"m","x":' + "[" * 100_000,
        '{"type":"user-message","id":"m","at":-1}',
        '{"type":"run-stop","reason":"completed","at":253402300800000}',
        '{"type":"tool-result","tool_call_id":"t1","duration_ms":253402300800000}',
    ],
    ids=lambda line: line[:80].encode("unicode_escape").decode(),
)
def test_a_line_that_is_no_event_is_named(program: Program, tmp_path: Path, line: str) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(LINES.encode() + line.encode("latin-1"))
    done = program("cycles", str(file))
    assert (done.exit_code, done.stdout) == (exits.FAILED, "")
    assert f"line {len(LINES.splitlines()) + 1} is no event" in done.stderr


def test_a_file_that_is_not_there_is_said(program: Program) -> None:
    done = program("cycles", "nowhere.jsonl")
    assert done.exit_code == exits.FAILED
    assert "nowhere.jsonl: No such file or directory" in done.stderr


def test_without_the_servers_program_a_file_cannot_be_read(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "entry_points", lambda **_: [])
    done = program("cycles", "-", stdin=LINES)
    assert done.exit_code == exits.USAGE
    assert "from a checkout with `pip install ./clients .`" in done.stderr


# --- the timeline -----------------------------------------------------------------------------------------------------


def test_a_timeline_shows_requests_tools_times_and_ends_in_order() -> None:
    lines = shown_timeline(folded(), Paint(enabled=False))
    assert lines[2:10] == [
        "   >           Look.",
        "   1   +0.80 s Let me look.",
        "               - read: read, grep  0.35 s",
        "               - bash: bash  cancelled",
        "   >           Gently. (steer)",
        "   2     +12 s no text",
        "               - bash: bash x2  31 s, error, open",
        "   =           stopped: the run has reached its limit of model requests, 60 s, 2",
    ]
    assert lines[10:] == [
        "               requests",
        "",
        "2 follow-up",
        "   >           Then this.",
        "   >           Never read. (steer)",
        "   =           running, 0 requests",
    ]
    assert lines[1].startswith("c:1 2025-06-15 ")


@pytest.mark.parametrize(("seconds", "zone", "year"), [(2**62, "UTC-9", "9999"), (-(2**62), "UTC+5", "1")])
def test_a_timeline_shows_a_time_that_its_zone_cannot_have(
    monkeypatch: pytest.MonkeyPatch, seconds: int, zone: str, year: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        cycle = v1.RequestCycle(name="c:1", start_time=Timestamp(seconds=seconds))
        assert shown_timeline([cycle], Paint(enabled=False))[1].startswith(f"c:1 {year}-")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_timeline_says_what_was_used() -> None:
    (cycle, _) = folded()
    cycle.rounds[0].usage.CopyFrom(v1.Usage(input_tokens=1_000, cache_read_tokens=200, output_tokens=34))
    ended = " ".join(line.strip() for line in shown_timeline([cycle], Paint(enabled=False))[-2:])
    assert ended.endswith(", 2 requests, 1,200 tokens in, 34 out")


def test_a_timeline_is_as_wide_as_the_terminal_and_cut_at_words() -> None:
    (cycle, _) = folded()
    cycle.steps[0].root.content[0].text = "Look around here, " * 20
    shown = {width: shown_timeline([cycle], Paint(enabled=False), lambda: width)[2] for width in (60, 200)}  # noqa: B023
    assert shown[60] == "   >           Look around here, Look around here, Look…"
    assert 180 < len(shown[200]) <= 200


def test_a_timeline_fits_into_80_columns_and_controls_no_terminal() -> None:
    evil = "\x1b]0;title\x07 word" * 100
    cycle = v1.RequestCycle(
        name=f"{NAME}/requestCycles/{'x' * 200}", stop_reason=v1.STOP_REASON_ERROR, stop_detail=evil
    )
    cycle.steps.add().root.content.add(text=evil)
    block = v1.AiBlock(assistant=evil, message="m")
    for number in range(30):
        group = block.tool_call_groups.add(group=v1.TOOL_GROUP_OTHER)
        group.calls.add(tool_use_id=f"t{number}", tool=f"{evil}{number}")
        group.results[f"t{number}"].CopyFrom(
            v1.ToolResult(outcome=v1.TOOL_OUTCOME_DENIED, duration=Duration(seconds=7_000))
        )
    cycle.steps.add(ai_block=block)
    cycle.rounds.add(output="m", tool_use_ids=[f"t{number}" for number in range(30)], output_time=Timestamp(seconds=9))
    lines = shown_timeline([cycle], Paint(enabled=False))
    assert len(lines) >= 5
    assert all(len(line) <= WIDTH for line in lines)
    assert not any(ord(character) < 32 for line in lines for character in line)


def test_a_timeline_is_shown_with_the_facts(program: Program, fake: FakeBedrock) -> None:
    fake.cycles = folded()
    shown = program("show", SLUG, "--timeline").stdout
    assert shown.index("slug") < shown.index("   >           Look.") < shown.index("Then this.")
    assert "\x1b" not in shown
    assert "Look." not in program("show", SLUG, "--timeline", "-n", "1").stdout
    plain = json.loads(program("show", SLUG, "--timeline", "--output", "json").stdout)
    assert len(plain["request_cycles"]) == 2
    assert plain["slug"] == SLUG


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
    said = "damaged cannot be read, and may have questions: `bedrock verify damaged` says what is wrong\n"
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
    assert program("approvals").stderr.splitlines()[-1] == "tools ask, too: `bedrock questions` lists 1"
    fake.before_questions = True
    older = program("approvals")
    assert (older.exit_code, older.stderr) == (exits.OK, "Nothing waits for approval.\n")


def test_the_audit_trail_is_printed_as_lines_of_json(program: Program, fake: FakeBedrock) -> None:
    printed = program("audit", "--since", "2026-11-23T10:00:00Z", "--principal", "bob", "--refused").stdout
    entry = {"time": "2026-11-23T10:00:00Z", "outcome": "OUTCOME_REFUSED", "principal": "bob"}
    assert [json.loads(line) for line in printed.splitlines()] == [entry] * 2
    assert program("audit", "--since", "12h", "--conversation", SLUG).exit_code == exits.OK
    (asked, *_) = [each for each in fake.asked(v1.ListAuditEntriesRequest) if each.conversation]
    assert asked.conversation == "conversations/c1", "the trail names conversations by their ids"
    assert asked.start_time.seconds == pytest.approx(time.time() - 12 * 3600, abs=600)
    refused = program("audit", "--since", "soon")
    assert refused.exit_code == exits.USAGE
    assert "must be a time" in refused.stderr


def test_that_nothing_was_found_is_said(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedrock.Client.audit", lambda *_, **__: iter(()))
    monkeypatch.setattr("bedrock.cli.commands.audit._listed", lambda *_, **__: iter(()))
    none = program("audit", "--refused")
    assert (none.exit_code, none.stdout, none.stderr) == (exits.OK, "", "There are no such entries.\n")
    assert "by its id" in program("audit", "--conversation", SLUG).stderr
    unchecked = program("verify", "--all")
    assert (unchecked.exit_code, unchecked.stdout) == (exits.OK, "")
    assert "those of other principals are not looked at" in unchecked.stderr


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
