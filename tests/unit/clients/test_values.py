"""Values of the client: what they keep of the contract's messages, and what they refuse."""

import copy
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

import pytest
from bedrock import (
    Answer,
    AsyncClient,
    AsyncConversation,
    AsyncRun,
    Budget,
    Client,
    Conversation,
    Event,
    Run,
    Stop,
    Task,
    Usage,
    v1,
)
from bedrock._shared.wrapper import Value, Wrapper, message_type
from bedrock.catalog import ServerInfo
from bedrock.conversations import ConversationInfo
from bedrock.events import RunStopped, TextDelta
from bedrock.messages import ToolCall, ToolResult
from bedrock.request_cycles import RequestCycle
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

WRAPPERS: list[type[Wrapper[Any]]] = []


def _collect(base: type[Wrapper[Any]]) -> None:
    for wrapper in base.__subclasses__():
        if {"__slots__", "__dataclass_fields__"} <= vars(wrapper).keys() and wrapper is not Value:
            WRAPPERS.append(wrapper)
        _collect(wrapper)


_collect(Wrapper)
BY_MESSAGE = {message_type(wrapper).DESCRIPTOR.full_name: wrapper for wrapper in WRAPPERS}
each_wrapper = pytest.mark.parametrize("wrapper", BY_MESSAGE.values(), ids=lambda wrapper: wrapper.__name__)


def filled(kind: type[Message], depth: int = 4) -> Any:
    """A message in which every field is set to what is easily lost, of a oneof the last one."""
    message, fields = kind(), cast("list[Any]", kind.DESCRIPTOR.fields)
    for field in fields:
        value, inner = getattr(message, field.name), field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            if inner.fields_by_name["value"].message_type is None:
                value["a_Key"] = "value"
            else:
                value["a_Key"].CopyFrom(filled(type(value["a_Key"]), depth - 1))
        elif inner is not None and not field.is_repeated:
            fill_single(inner.name, value, depth)
        elif inner is not None and depth:
            fill_single(inner.name, value.add(), depth)
        elif inner is None and field.is_repeated:
            value.append(scalar(field))
        elif inner is None:
            setattr(message, field.name, scalar(field))
    return message


def fill_single(kind: str, message: Any, depth: int) -> None:
    message.SetInParent()
    match kind:
        case "Struct":
            message.update({"count": 1, "half": 0.5, "list": [True, None, {"key": "ä"}]})
        case "Timestamp" | "Duration":
            message.seconds, message.nanos = 1_700_000_000, 5_000
        case "FieldMask":
            message.paths.extend(["title", "labels.a_Key", "budget.run_tokens", "labels.`a,b`"])
        case _:
            message.CopyFrom(filled(type(message), depth - 1) if depth else type(message)())


def scalar(field: Any) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return b"\x00\xff\xfe" if field.type == FieldDescriptor.TYPE_BYTES else "ä&=b%2F\n"
        case FieldDescriptor.CPPTYPE_ENUM:
            return field.enum_type.values[-1].number
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_INT64:
            return 2**53 + 1
        case _:
            return 7


def words_of(hint: Any) -> set[Any]:
    """The words of an annotation, but for the empty one, which says that nothing need be set."""
    if get_origin(hint) is Literal:
        return set(get_args(hint)) - {""}
    return {word for each in get_args(hint) for word in words_of(each)}


@each_wrapper
def test_nothing_is_lost_between_a_message_and_json(wrapper: type[Wrapper[Any]]) -> None:
    message: Any = filled(message_type(wrapper))
    wrapped = wrapper.from_proto(message)
    assert wrapped == wrapper.from_proto(message)
    values = json.loads(json.dumps(wrapped.to_dict()))
    if wrapper is Event:
        assert values.pop("kind")
    assert json_format.ParseDict(values, message_type(wrapper)()) == message


@each_wrapper
def test_every_value_that_is_set_is_converted(wrapper: type[Wrapper[Any]]) -> None:
    message = filled(message_type(wrapper))
    set_fields = {field.name for field, _ in message.ListFields()}
    for name, hint in get_type_hints(wrapper).items():
        if name in set_fields:
            value = getattr(wrapper.from_proto(message), name)
            assert value not in (None, "", (), {}), name
            assert not isinstance(value, Message), name
            if words := words_of(hint):
                assert words.issuperset(value if isinstance(value, tuple) else (value,)), name


@each_wrapper
def test_an_empty_message_can_be_read(wrapper: type[Wrapper[Any]]) -> None:
    wrapped = wrapper.from_proto(message_type(wrapper)())
    assert wrapped == wrapper.from_proto(message_type(wrapper)())
    with pytest.raises(AttributeError):
        wrapped.proto = None  # type: ignore[misc]


def test_a_value_of_a_newer_server_is_shown_by_its_number() -> None:
    newer = v1.Conversation()
    newer.ParseFromString(b"\x38\x63")  # field 7, mode: 99
    assert str(ConversationInfo.from_proto(newer).mode) == "99"
    assert ConversationInfo.from_proto(newer).to_dict() == {"mode": 99}


def test_a_field_of_a_newer_server_does_no_harm() -> None:
    newer = v1.Event.TextDelta.FromString(v1.Event.TextDelta(text="Hi").SerializeToString() + b"\xf8\x3f\x01")
    assert TextDelta.from_proto(newer).text == "Hi"


@pytest.mark.parametrize("value", [Budget, Usage])
def test_a_number_of_a_newer_server_stays_in_the_message(value: Any) -> None:
    newer = message_type(value).FromString(b"\xf8\x3f\x01")
    assert value.from_proto(newer).proto.SerializeToString() == b"\xf8\x3f\x01"


def test_times_are_aware_and_durations_exact() -> None:
    message = v1.RequestCycle(start_time=Timestamp(seconds=10, nanos=5_000))
    cycle = RequestCycle.from_proto(message)
    assert cycle.start_time == datetime.fromisoformat("1970-01-01T00:00:10.000005+00:00")
    assert cycle.end_time is None
    info = v1.GetServerInfoResponse()
    info.limits.heartbeat_interval.FromMilliseconds(1_500)
    assert ServerInfo.from_proto(info).limits.heartbeat_interval == timedelta(seconds=1.5)


def test_a_decided_question_need_not_say_since_when_it_was_open() -> None:
    decided = v1.Event(approval_changed=v1.Event.ApprovalChanged(approval=v1.PendingApproval(name="c/approvals/a")))
    changed = Event.from_proto(decided).approval_changed
    assert changed is not None
    assert changed.approval.create_time is None


@pytest.mark.parametrize(
    ("seconds", "nearest"), [(2**62, datetime.max), (253_402_300_800, datetime.max), (-(2**62), datetime.min)]
)
def test_a_time_that_python_cannot_represent_does_not_end_a_loop(seconds: int, nearest: datetime) -> None:
    event = Event.from_proto(v1.Event(time=Timestamp(seconds=seconds), revision=1))
    assert event.time == nearest.replace(tzinfo=UTC)
    assert event.revision == 1


@pytest.mark.parametrize(("seconds", "nearest"), [(2**62, timedelta.max), (-(2**62), timedelta.min)])
def test_so_it_is_with_durations(seconds: int, nearest: timedelta) -> None:
    assert ToolResult.from_proto(v1.ToolResult(duration=Duration(seconds=seconds))).duration == nearest


@pytest.mark.parametrize(("far", "last", "longest"), [(1, "9999-12-31T23:59:59", "315"), (-1, "0001-01-01T00", "-315")])
def test_json_has_the_nearest_value_that_it_knows(far: int, last: str, longest: str) -> None:
    result = v1.ToolResult(tool_use_id="t", duration=Duration(seconds=far * 2**62))
    result.display.update({"text": "kept", "rates": [1.5, {"none": float("nan"), "most": far * float("inf")}]})
    message = v1.Message(create_time=Timestamp(seconds=far * 2**62), content=[v1.ContentBlock(tool_result=result)])
    event = Event.from_proto(v1.Event(time=Timestamp(seconds=1), message_added=message))
    before = event.proto.SerializeToString(deterministic=True)
    shown = event.to_dict()["message_added"]
    ((_, block),) = shown["content"][0].items()
    assert shown["create_time"].startswith(last)
    assert block["duration"].startswith(longest)
    limit = "Infinity" if far > 0 else "-Infinity"
    assert block["display"] == {"text": "kept", "rates": [1.5, {"none": "NaN", "most": limit}]}
    assert event.proto.SerializeToString(deterministic=True) == before
    json.dumps(event.to_dict(), allow_nan=False)


def test_the_end_of_a_run_and_its_answer_become_json() -> None:
    stop = Stop.of(
        RunStopped.from_proto(v1.Event.RunStopped(reason=v1.STOP_REASON_ERROR, error=v1.RunError(message="Why")))
    )
    assert json.loads(json.dumps(stop.to_dict())) == {
        "reason": "error",
        "detail": "",
        "error_kind": "",
        "error_message": "Why",
        "output": None,
    }
    answer = Answer.of("Hello.", run="conversations/c/requestCycles/1", usage=Usage(output_tokens=5))
    assert json.loads(json.dumps(answer.to_dict())) == {
        "text": "Hello.",
        "run": "conversations/c/requestCycles/1",
        "conversation": "conversations/c",
        "usage": {"output_tokens": "5"},
        "output": None,
        "stop_detail": "",
        "truncated": False,
    }


def test_a_dict_belongs_to_its_wrapper() -> None:
    one, other = (ToolCall.from_proto(v1.ToolCall()) for _ in range(2))
    one.input["key"] = "value"
    assert other.input == {}


def test_what_callers_make_themselves_has_its_message() -> None:
    assert Budget(run_tokens=5).proto == v1.Budget(run_tokens=5)
    assert Budget(run_tokens=5) == Budget.from_proto(v1.Budget(run_tokens=5))
    assert Budget(run_tokens=5).to_dict() == {"run_tokens": "5"}
    assert Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50) == Usage(11, 22, 33, 44, 55)
    assert (Usage(1, 2, 3, 4, 5) + Usage()).total_tokens == 10


@pytest.mark.parametrize("cls", [Client, Conversation, Run, AsyncClient, AsyncConversation, AsyncRun, Event])
def test_no_method_returns_a_message_of_the_contract(cls: type) -> None:
    for name, member in inspect.getmembers(cls):
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        function = member.fget if isinstance(member, property) else member
        assert function is not None
        annotations = inspect.get_annotations(function)
        assert not re.search(r"\bv1\.", str(annotations.get("return"))), f"{cls.__name__}.{name}"


def test_a_value_can_be_copied_replaced_and_pickled() -> None:
    info = ConversationInfo.from_proto(v1.Conversation(name="conversations/c", state=v1.ConversationState(run="r")))
    assert replace(info, title="Other").title == "Other"
    assert replace(Budget(run_tokens=5), run_tokens=6).proto == v1.Budget(run_tokens=6)
    assert pickle.loads(pickle.dumps(info)) == copy.deepcopy(info) == info
    assert hash(info.state) == hash(copy.deepcopy(info.state))


@each_wrapper
def test_every_wrapper_is_hashable_and_equal_ones_alike(wrapper: type[Wrapper[Any]]) -> None:
    one, other = (wrapper.from_proto(filled(message_type(wrapper))) for _ in range(2))
    assert hash(one) == hash(other)
    assert len({one, other}) == 1


def test_what_callers_make_themselves_is_hashable() -> None:
    assert len({Task("look", read_first=["a.py"]), Task("look", read_first=["a.py"])}) == 1
    assert len({Budget(run_tokens=1), Budget(run_tokens=1)}) == 1


HIGHEST = {32: 2**31 - 1, 64: 2**63 - 1}


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Budget(run_tokens=cast("Any", None)), TypeError, r"run_tokens: must be a whole number, not None"),
        (lambda: Budget(run_tokens=cast("Any", "5")), TypeError, r"run_tokens: must be a whole number, not '5'"),
        (lambda: Budget(conversation_tokens=True), TypeError, r"conversation_tokens: must be a whole number, not True"),
        (lambda: Budget(run_tokens=2**63), ValueError, rf"run_tokens: must be between .* and {HIGHEST[64]}, not"),
        (lambda: Task("x", max_turns=2**40), ValueError, rf"max_turns: must be between .* and {HIGHEST[32]}, not"),
        (lambda: Task("x", max_turns=cast("Any", None)), TypeError, r"max_turns: must be a whole number"),
        (lambda: Task("x", timeout=float("nan")), ValueError, r"timeout: must be zero seconds or more, not nan"),
        (lambda: Task("x", timeout=cast("Any", "1")), TypeError, r"timeout: must be a number of seconds"),
        (lambda: Task("x", read_first="a.py"), TypeError, r"read_first: must be a list, not 'a.py'"),
        (lambda: Task("x", read_first=cast("Any", [1])), TypeError, r"read_first: must be a list of strings, not 1"),
        (lambda: Task(cast("Any", 5)), TypeError, r"task: must be a string, not 5"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_written(
    make: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("budget", [{"run_tokens": 1}, 5, v1.Budget(run_tokens=1)])
def test_a_budget_of_another_type_is_refused(budget: Any) -> None:
    with Client(address="127.0.0.1:1") as client, pytest.raises(TypeError, match=r"budget: must be a bedrock\.Budget"):
        client.create(budget=budget)
    with Client(address="127.0.0.1:1") as client, pytest.raises(TypeError, match=r"budget: must be a bedrock\.Budget"):
        client.conversation("c").update(budget=budget)


@pytest.mark.parametrize("images", [5, [5], None])
def test_images_of_another_type_are_refused(images: Any) -> None:
    with Client(address="127.0.0.1:1") as client, pytest.raises(TypeError, match="images: must be"):
        client.conversation("c").send("Hi", images=images)


def test_a_string_is_no_list_of_tasks() -> None:
    with Client(address="127.0.0.1:1") as client, pytest.raises(TypeError, match="tasks: must be a list"):
        client.conversation("c").spawn("look around")


async def test_the_same_is_refused_with_asyncio() -> None:
    async with AsyncClient(address="127.0.0.1:1") as client:
        with pytest.raises(TypeError, match=r"budget: must be a bedrock\.Budget"):
            await client.conversation("c").update(budget=cast("Any", 5))
        with pytest.raises(TypeError, match="images: must be"):
            client.conversation("c").send("Hi", images=cast("Any", 5))


# --- A misspelt word is an error of both type checkers ---


ROOT = Path(__file__).parents[3]

RIGHT = """
def right(client: Client) -> None:
    conversation = client.create(mode="restricted", approval_policy="ask_writes", follow_up_policy="always")
    for event in conversation.send("Hi", delivery="steer", on_approval="deny"):
        assert event.kind != "text_delta" or event.role == "" or event.fate == "queued"
    client.ask("Hi", on_approval=lambda approval: approval.tool == "bash")
    info = conversation.get()
    assert info.mode == "restricted" and info.state.kind == "idle" and info.create_time.tzinfo
    assert info.archive_time is None or info.archive_time > info.create_time
    assert [model.name for model in client.models() if model.protocol == "demo"]
    assert client.server_info().limits.heartbeat_interval.total_seconds() > 1
    for cycle in conversation.cycles():
        if cycle.stop_reason == "completed" and cycle.end_time and cycle.steps[0].root:
            print(cycle.end_time - cycle.start_time, cycle.steps[0].root.text)
    print([queued.message.text for queued in conversation.queue() if queued.fate == "queued"])
    assert conversation.cancel().state.kind == "idle" or conversation.set_mode("restricted").surviving_jobs == ()
"""
WRONG = """
def wrong(
    client: Client, event: Event, message: Message, stop: Stop, agent: SubAgentStatus, info: ConversationInfo
) -> None:
    client.create(approval_policy="ask_write")
    client.create(mode="restrict")
    client.create(follow_up_policy="alway")
    client.ask("Hi", on_approval="all")
    client.conversation("c").send("Hi", delivery="followup")
    client.conversation("c").send("Hi", wait_for_other=True)
    client.conversation("c").set_mode("wide open")
    client.conversation("c").update(approval_policy="ask")
    client.conversation("c").cycles(view="step")
    print(event.kind == "text_detla")
    print(event.role == "agnet")
    print(event.fate == "deliverd")
    print(event.decision == "denied")
    print(message.role == "assistant")
    print(message.tool_results[0].outcome == "okay")
    print(stop.reason == "complete")
    print(stop.error_kind == "ratelimit")
    print(agent.outcome == "done")
    print(info.mode == "wide open")
    print(info.state.kind == "busy")
    print(info.state.tool_executing.current)
    info.title = "New"
    print(client.models()[0].protocol == "openai")
    print(client.server_info().sandbox.tier == "c")
    print([cycle.stop_reason for cycle in client.conversation("c").cycles() if cycle.end_time > info.create_time])
    print(event.conversation.name)
    client.create(budget={"run_tokens": 5})


async def wrong_too(client: AsyncClient) -> None:
    await client.create(approval_policy="ask_write")
    await client.conversation("c").set_mode("wide open")
    async for event in client.conversation("c").events():
        print(event.kind == "text_detla")
"""
HEAD = "from bedrock import AsyncClient, Client, ConversationInfo, Event, Message, Stop, SubAgentStatus\n\n"


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_misspelt_word_is_an_error_of_the_type_checker(checker: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(HEAD + RIGHT + "\n" + WRONG, encoding="utf-8")
    if checker == "mypy":
        command = ["mypy", "--strict", "--no-error-summary", f"--cache-dir={ROOT / '.mypy_cache'}", program]
    else:
        settings = f'{{"typeCheckingMode": "strict", "extraPaths": ["{ROOT / "clients"}"], "include": ["program.py"]}}'
        (tmp_path / "pyrightconfig.json").write_text(settings)
        command = ["pyright", "--project", tmp_path]
    env = {**os.environ, "MYPYPATH": str(ROOT / "clients")}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    found = {int(line) for line in re.findall(r"program\.py:(\d+).*error", done.stdout)}
    lines = program.read_text().splitlines()
    expected = {
        number
        for number, line in enumerate(lines, 1)
        if number > lines.index('    client.create(approval_policy="ask_write")') - 1
        and line.startswith("    ")
        and "async for" not in line
    }
    assert found == expected, done.stdout + done.stderr


def test_the_examples_of_the_readme_are_typed(tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "clients" / "README.md").read_text(), re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        (tmp_path / f"example_{number}.py").write_text(example)
    command = ["mypy", "--strict", f"--cache-dir={ROOT / '.mypy_cache'}", *sorted(tmp_path.glob("*.py"))]
    env = {**os.environ, "MYPYPATH": str(ROOT / "clients")}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
