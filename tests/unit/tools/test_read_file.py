"""read_file: what is launched, and how the worker's answer is taken."""

from typing import Any

import pytest

from actors.adapters.tools.read_file import ReadFileTool
from actors.ports import ProcessStartError, ToolTransientError


def run(call: Any, **arguments: Any) -> Any:
    return ReadFileTool().run({"path": "a file"} | arguments, call.context)


def test_the_worker_gets_the_path_and_the_window(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    call.sandbox.ends(head=b"ok\n     1\tx\n")
    assert run(call, path="-v", offset=3.0, limit=4).text == "     1\tx\n"
    (launch,) = call.sandbox.launches
    assert launch.python
    assert launch.argv[1:] == ("-v", "3", "4")
    assert launch.cwd == str(call.directory)
    assert "secret" not in launch.env.values()
    assert call.receipts == [()]
    assert len(call.tracked) == 1


def test_the_whole_file_is_asked_for_by_default(call: Any) -> None:
    call.sandbox.ends(head=b"ok\n")
    run(call)
    assert call.sandbox.launches[0].argv[1:] == ("a file", "1", "2000")


def test_what_the_worker_refuses_is_an_error(call: Any) -> None:
    call.sandbox.ends(head=b"error\nCannot read it.")
    output = run(call)
    assert (output.text, output.is_error) == ("Cannot read it.", True)


@pytest.mark.parametrize(
    "end",
    [
        {"exit_code": None, "signal": 9},
        {"exit_code": 1, "head": b"Traceback"},
        {"head": b"nonsense"},
        {"exit_code": None, "signal": 9, "killed": True, "limit": "lease"},
    ],
)
def test_a_lost_worker_is_transient(call: Any, end: dict[str, Any]) -> None:
    call.sandbox.ends(**end)
    with pytest.raises(ToolTransientError) as lost:
        run(call)
    assert lost.value.begun is True


def test_a_killed_worker_is_not_tried_again(call: Any) -> None:
    call.sandbox.ends(exit_code=None, signal=9, killed=True)
    assert run(call).is_error
    call.sandbox.ends(limit="wall")
    assert "longer than 60 s" in run(call).text


def test_a_start_that_fails_has_not_begun(call: Any) -> None:
    call.sandbox.failure = ProcessStartError("no")
    with pytest.raises(ToolTransientError) as failed:
        run(call)
    assert failed.value.begun is False


def test_a_path_with_nul_is_refused(call: Any) -> None:
    assert run(call, path="a\0b").is_error
    assert not call.sandbox.launches
