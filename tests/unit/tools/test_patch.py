"""patch as a tool: what its worker is told, and what becomes of the answer."""

import json
from typing import Any

import pytest

from actors.adapters.tools.patch import MAX_INPUT, MAX_PATCHES, Clipboards, PatchTool
from actors.adapters.tools.registry import StandardToolbox
from actors.ports import InvalidToolInputError, ToolTransientError

PATCHES = [{"operation": "overwrite", "newText": "ä"}]


@pytest.fixture
def clipboards() -> Clipboards:
    return Clipboards()


def run(call: Any, clipboards: Clipboards, **arguments: Any) -> Any:
    return PatchTool(clipboards).run({"path": "a file", "patches": PATCHES} | arguments, call.context)


def answers(call: Any, **answer: Any) -> None:
    call.sandbox.ends(head=b"ok\n" + json.dumps({"clipboards": {}, "notes": [], "diff": ""} | answer).encode())


def kept(clipboards: Clipboards) -> dict[str, str]:
    return dict(clipboards.of("c-1"))


def test_the_worker_gets_everything_by_stdin(call: Any, clipboards: Clipboards) -> None:
    call.sandbox.protected = ("/data",)
    clipboards.store("c-1", clipboards.of("c-1"), {"c": "text"})
    answers(call)
    run(call, clipboards, path="-ä")
    (launch,) = call.sandbox.launches
    assert launch.argv[1:] == ()
    assert json.loads(launch.stdin) == {
        "path": "-ä",
        "patches": PATCHES,
        "clipboards": {"c": "text"},
        "protected": ["/data"],
    }


def test_the_answer_has_notes_for_the_model_and_a_diff_for_people(call: Any, clipboards: Clipboards) -> None:
    answers(call, notes=["<note>n</note>"], diff="--- ä\n")
    output = run(call, clipboards)
    assert output.text == "<patches_applied>all</patches_applied>\n<note>n</note>"
    assert json.loads(output.display) == {"path": "a file", "diff": "--- ä\n"}
    assert not output.is_error


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"path": "a\0b"}, "NUL"),
        ({"path": "~/a"}, "~ has no meaning"),
        ({"patches": [{"operation": "append_eof", "newText": "x" * MAX_INPUT}]}, "longer than 240 KiB"),
        ({"patches": [{"operation": "append_eof", "newText": "ä" * (MAX_INPUT // 2)}]}, "longer than 240 KiB"),
    ],
)
def test_what_cannot_be_done_is_not_started(call: Any, clipboards: Clipboards, arguments: Any, why: str) -> None:
    output = run(call, clipboards, **arguments)
    assert output.is_error
    assert why in output.text
    assert not call.sandbox.launches


def test_clipboards_are_kept_by_conversation_and_only_if_the_worker_succeeded(
    call: Any, clipboards: Clipboards
) -> None:
    answers(call, clipboards={"c": "1"})
    run(call, clipboards)
    answers(call, clipboards={"d": "2"})
    run(call, clipboards)
    assert kept(clipboards) == {"c": "1", "d": "2"}
    call.sandbox.ends(head=b"error\nno")
    assert run(call, clipboards).is_error
    call.sandbox.ends(killed=True)
    assert run(call, clipboards).is_error
    call.sandbox.ends(killed=False, exit_code=1)
    with pytest.raises(ToolTransientError):
        run(call, clipboards)
    assert kept(clipboards) == {"c": "1", "d": "2"}
    assert clipboards.of("c-2") == {}


def test_a_forgotten_conversation_keeps_nothing_not_even_from_a_running_call(clipboards: Clipboards) -> None:
    before = clipboards.of("c-1")
    clipboards.store("c-1", before, {"c": "1"})
    under_way = clipboards.of("c-1")
    clipboards.forget("c-1")
    clipboards.store("c-1", under_way, {"d": "2"})
    assert kept(clipboards) == {}
    clipboards.forget("c-3")


def test_the_toolbox_forgets_the_clipboards_of_a_deleted_conversation(call: Any) -> None:
    toolbox = StandardToolbox()
    tool = toolbox.get("patch")
    assert tool is not None
    arguments = {"path": "f", "patches": PATCHES}
    answers(call, clipboards={"c": "1"})
    tool.run(arguments, call.context)
    toolbox.forget("c-1")
    tool.run(arguments, call.context)
    told = [json.loads(launch.stdin)["clipboards"] for launch in call.sandbox.launches]
    assert told == [{}, {}]
    tool.run(arguments, call.context)
    assert json.loads(call.sandbox.launches[-1].stdin)["clipboards"] == {"c": "1"}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"path": "f"}, '"patches" is a required property'),
        ({"path": "f", "patches": []}, "`patches`"),
        ({"path": "", "patches": PATCHES}, "`path`"),
        ({"path": "f", "patches": PATCHES * (MAX_PATCHES + 1)}, "`patches`"),
        ({"path": "f", "patches": [{"operation": "delete"}]}, '"delete" is not one of'),
        ({"path": "f", "patches": [{"operation": "replace", "old_text": "x"}]}, "'old_text' was unexpected"),
        ({"path": "f", "patches": [{"operation": "replace", "reindent": {"by": 1}}]}, "'by' was unexpected"),
    ],
)
def test_unfitting_input_is_refused(arguments: Any, hint: str) -> None:
    with pytest.raises(InvalidToolInputError) as refused:
        StandardToolbox().parse("patch", json.dumps(arguments))
    assert hint in str(refused.value)


def test_every_field_of_the_specification_is_taken() -> None:
    patch = {
        "operation": "replace",
        "oldText": "a",
        "newText": "b",
        "toClipboard": "c",
        "fromClipboard": "d",
        "reindent": {"strip": " ", "add": "\t"},
    }
    arguments = {"path": "f", "patches": [patch]}
    assert StandardToolbox().parse("patch", json.dumps(arguments)) == arguments
