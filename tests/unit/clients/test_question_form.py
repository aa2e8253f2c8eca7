"""What an MCP server asks, at the terminal: one field after the other, in a chat and by `bedrock answer`."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from bedrock import v1
from bedrock.cli.app import bedrock
from bedrock.cli.display.questions import NO_SECRETS, QuestionForm, value_of
from bedrock.cli.text.style import Paint
from bedrock.states import Question
from click.testing import CliRunner, Result
from google.protobuf.struct_pb2 import Struct

from tests.support.fake_server import NAME, SLUG, FakeBedrock, Step, call, result, state, stopped, stored, text

FIELDS: dict[str, Any] = {
    "branch": {"type": "string", "title": "Which branch", "minLength": 1},
    "times": {"type": "integer", "minimum": 1},
    "share": {"type": "number"},
    "sure": {"type": "boolean", "default": False},
    "size": {"type": "string", "enum": ["s", "l"], "enumNames": ["Small", "Large"]},
    "parts": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "First"}, {"const": "b"}]}},
}


def asked(fields: dict[str, Any] | None = None, *required: str, url: str = "", number: int = 1) -> v1.Question:
    question = v1.Question(
        name=f"{NAME}/questions/{number}",
        tool_use_id="t1",
        tool="tools/mcp__files__move",
        mcp_server="files",
        message="Which\x1b[2J one?",
        status=v1.Question.STATUS_PENDING,
    )
    question.deadline.FromDatetime(datetime(2026, 11, 23, 12, 30, 5).astimezone())
    if url:
        question.url = url
    else:
        schema = Struct()
        names = {"required": list(required), "propertyOrder": list(fields or {})}
        schema.update({"type": "object", "properties": fields or {}, **names})
        question.requested_schema.CopyFrom(schema)
    return question


def form(fields: dict[str, Any] | None = None, *required: str, url: str = "") -> QuestionForm:
    return QuestionForm(Question.from_proto(asked(fields, *required, url=url)))


def fill(filled: QuestionForm, *typed: str) -> list[str]:
    """Type these texts; return what is wrong with each."""
    return [filled.enter(each) for each in typed]


def test_fields_are_filled_in_one_after_the_other() -> None:
    filled = form(FIELDS, "branch")
    assert fill(filled, "", "main", "x", "3", "much", "0.5", "maybe", "y", "9", "Large", "1, b") == [
        "this field is required", "", "type a whole number", "", "type a number", "", "type y or n", "",
        "type one of the numbers 1 to 2, or a name", "", "",
    ]  # fmt: skip
    assert filled.complete
    assert filled.content == {
        "branch": "main", "times": 3, "share": 0.5, "sure": True, "size": "l", "parts": ["a", "b"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "typed", "wrong"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 9}, "0", "type at least 1"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "10", "type at most 9"),
        ({"type": "number", "maximum": 0.5}, "0.6", "type at most 0.5"),
        ({"type": "number"}, "nan", "type a number"),
        ({"type": "number"}, "1e999", "type a number"),
        ({"type": "integer"}, "9" * 400, "type a whole number"),
        ({"type": "string", "minLength": 2}, "a", "type at least 2 characters"),
        ({"type": "string", "maxLength": 1}, "ab", "type at most 1 character"),
    ],
)
def test_what_is_beyond_a_bound_is_asked_again_before_the_next_field(
    field: dict[str, Any], typed: str, wrong: str
) -> None:
    filled = form({"first": field, "second": {"type": "string"}}, "first")
    assert (filled.enter(typed), filled.name, filled.content) == (wrong, "first", {})


@pytest.mark.parametrize(
    ("name", "about", "told"),
    [
        ("branch_name", {"title": "Branch Name", "description": "What to deploy"}, "What to deploy"),
        ("force", {"title": "Force it", "description": "Even if tests fail"}, "Force it: Even if tests fail"),
        ("force", {"title": "Force it", "description": "Force it"}, "Force it"),
    ],
)
def test_what_a_field_is_about_is_said_once(name: str, about: dict[str, Any], told: str) -> None:
    assert form({name: {"type": "boolean", **about}}, name).prompt() == f"{name} \N{EN DASH} {told} (y or n)"


def test_an_empty_line_takes_the_default_or_leaves_a_field_out() -> None:
    filled = form(FIELDS, "branch")
    fill(filled, "main", "", "", "", "", "")
    assert (filled.complete, filled.content) == (True, {"branch": "main", "sure": False})
    filled.begin_again()
    assert (filled.complete, filled.content) == (False, {})


@pytest.mark.parametrize(("kind", "typed"), [("number", "nan"), ("number", "1e999"), ("integer", "9" * 400)])
def test_a_number_that_cannot_be_sent_is_not_taken(kind: str, typed: str) -> None:
    with pytest.raises(ValueError, match="type a"):
        value_of({"type": kind}, typed)


def test_what_can_be_typed_is_said() -> None:
    filled, prompts = form(FIELDS, "branch"), []
    while not filled.complete:
        prompts.append(str(filled.prompt()))
        filled.enter("main" if filled.name == "branch" else "")
    assert prompts == [
        "branch \N{EN DASH} Which branch (text, at least 1 character)",
        "times (a whole number, at least 1, Enter skips this field)",
        "share (a number, Enter skips this field)",
        "sure (y or n, Enter: n)",
        "size (1 Small · 2 Large, Enter skips this field)",
        "parts (some of 1 First · 2 b, Enter skips this field)",
    ]


def test_the_words_of_the_server_are_shown_as_its_own_and_cannot_act() -> None:
    filled = form(FIELDS)
    shown = "\n".join(filled.lines(Paint(False)))
    assert "? MCP server files needs your input for mcp__files__move (answer by 12:30:05)\n" in shown
    assert filled.prompt_line(Paint(False)).endswith("  /decline; answer by 12:30:05")
    assert "\x1b" not in shown
    assert NO_SECRETS in shown
    visit = form(url="https://example.com/login")
    assert "open https://example.com/login" in "\n".join(visit.lines(Paint(False)))
    assert (visit.prompt(), visit.enter(""), visit.complete) == ("Enter: I have opened it", "", True)
    assert form().prompt() == "Enter: yes"


@pytest.mark.parametrize("url", ["", "https://example.com/login"])
def test_only_a_yes_accepts_what_has_no_fields(url: str) -> None:
    for typed in ("no", "n", "What is this?"):
        asked_again = form(url=url)
        assert ("not sent" in asked_again.enter(typed), asked_again.complete) == (True, False)
    for typed in ("", " ", "Y", "yes"):
        accepted = form(url=url)
        assert (accepted.enter(typed), accepted.complete) == ("", True)


def asks(*questions: v1.Question) -> Callable[[str], list[Step]]:
    """A run whose tool asks; it goes on only when the test lets it."""

    def steps(run: str) -> list[Step]:
        executing = v1.ConversationState.ToolExecuting(
            current=v1.ToolCall(tool_use_id="t1", tool="mcp__files__move"), questions=questions
        )
        told = [v1.Event(question_changed=v1.Event.QuestionChanged(question=each)) for each in questions]
        over = [v1.Question(name=each.name, status=v1.Question.STATUS_ANSWERED) for each in questions]
        ended = [v1.Event(question_changed=v1.Event.QuestionChanged(question=each)) for each in over]
        return [
            stored("agent", call("mcp__files__move", {})),
            state("tool_executing", run, tool_executing=executing),
            *told,
            *([] if questions else ended),
            *([] if questions else [stored("tool", result("moved")), *text("Done."), state("idle"), stopped(run)]),
        ]

    return steps


# --- by command -----------------------------------------------------------------------------------------------------


def program(address: str, *arguments: str, typed: str = "") -> Result:
    return CliRunner(env={"BEDROCK_ADDRESS": address, "BEDROCK_TOKEN": "secret"}).invoke(bedrock, arguments, typed)


def test_a_question_is_answered_by_command(address: str, fake: FakeBedrock) -> None:
    assert "has no pending question" in program(address, "answer", SLUG).stderr
    fake.conversation.state.tool_executing.questions.append(asked(FIELDS, "branch"))
    shown = program(address, "show", SLUG).stdout
    assert "MCP server files needs your input for" in shown
    assert f"bedrock answer {SLUG}" in shown
    ended = program(address, "answer", SLUG, typed="a\n")
    assert (ended.exit_code, ended.stderr) == (1, "error: aborted\n")
    filled_in = program(address, "answer", SLUG, typed="a=b\nx\n2\n\n\n\n\n")
    assert "type a whole number" in filled_in.stdout
    assert filled_in.stdout.endswith("\nanswered\n")
    assert program(address, "answer", SLUG, typed="a\n/decline\n").stdout.endswith("\ndeclined\n")
    assert program(address, "answer", SLUG, "1", "--decline").stdout == "declined\n"
    first, second, third = fake.asked(v1.AnswerQuestionRequest)
    assert dict(first.content) == {"branch": "a=b", "times": 2, "sure": False}
    assert (second.decline, third.decline) == (True, True)


def test_of_several_questions_one_is_named_and_an_address_is_said_to_be_visited(
    address: str, fake: FakeBedrock
) -> None:
    pending = [asked(FIELDS), asked(url="https://example.com/", number=2)]
    fake.conversation.state.tool_executing.questions.extend(pending)
    assert "Name one: 1, 2." in program(address, "answer", SLUG, "--decline").stderr
    assert program(address, "answer", SLUG, "2", typed="\n").stdout.endswith(
        "Enter: I have opened it  /decline; answer by 12:30:05\nanswered\n"
    )
    (request,) = fake.asked(v1.AnswerQuestionRequest)
    assert (request.name.endswith("/questions/2"), request.HasField("content")) == (True, False)
