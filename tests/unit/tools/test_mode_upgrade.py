"""How an agent asks for more, and how other tools tell it that it can."""

from types import SimpleNamespace
from typing import Any

import pytest

from actors.adapters.tools.registry import StandardToolbox
from actors.adapters.tools.request_mode_upgrade import (
    GRANTED,
    GRANTED_WORKSPACE,
    HOW_TO_ASK,
    HOW_TO_ASK_FOR_MORE,
    NOT_NEEDED,
    NOT_NEEDED_WORKSPACE,
    SPEC,
    ModeUpgradeTool,
    hint,
    hint_for_error,
)
from actors.core.context import Mode
from actors.core.steps.approvals import REQUEST_MODE_UPGRADE
from actors.ports import InvalidToolInputError, ProcessEnd


def end(output: str, exit_code: int | None = 1, tail: str = "") -> ProcessEnd:
    return ProcessEnd(exit_code, None, output.encode(), tail.encode(), 9 if tail else 0, 5, ())


@pytest.mark.parametrize(
    ("mode", "asked", "said"),
    [
        (Mode.RESTRICTED, {}, GRANTED),
        (Mode.RESTRICTED, {"mode": "unrestricted"}, GRANTED),
        (Mode.RESTRICTED, {"mode": "workspace"}, GRANTED_WORKSPACE),
        (Mode.WORKSPACE, {}, GRANTED),
        (Mode.WORKSPACE, {"mode": "workspace"}, NOT_NEEDED_WORKSPACE),
        (Mode.UNRESTRICTED, {"mode": "workspace"}, NOT_NEEDED),
        (Mode.UNRESTRICTED, {}, NOT_NEEDED),
    ],
)
def test_what_an_approval_leads_to(mode: Mode, asked: dict[str, str], said: str) -> None:
    sandbox = SimpleNamespace(mode_refusal=lambda mode, directory: "")
    context: Any = SimpleNamespace(mode=mode, sandbox=sandbox, working_directory="/work")
    output = ModeUpgradeTool().run({"reason": "r", **asked}, context)
    assert (output.text, output.is_error) == (said, False)


def test_a_workspace_that_cannot_be_kept_is_not_granted() -> None:
    sandbox = SimpleNamespace(mode_refusal=lambda mode, directory: f"{directory} is the home directory")
    context: Any = SimpleNamespace(mode=Mode.RESTRICTED, sandbox=sandbox, working_directory="/home/me")
    output = ModeUpgradeTool().run({"reason": "r", "mode": "workspace"}, context)
    assert output.is_error
    assert "/home/me is the home directory" in output.text


def test_an_error_of_a_tool_that_the_workspace_mode_caused_says_how_to_ask() -> None:
    said = "Nothing was changed in .git/config: Permission denied."
    assert hint_for_error(Mode.WORKSPACE, said) == HOW_TO_ASK_FOR_MORE
    assert hint_for_error(Mode.UNRESTRICTED, said) == ""
    assert hint_for_error(Mode.WORKSPACE, "Nothing was changed in a: oldText was not found.") == ""


def test_it_is_the_tool_that_the_machine_knows_and_always_asks() -> None:
    assert SPEC.name == SPEC.traits.name == REQUEST_MODE_UPGRADE
    assert SPEC.traits.always_asks
    assert not SPEC.traits.retry_safe
    assert SPEC.name in HOW_TO_ASK


def test_people_s_conversations_are_offered_it_as_the_last_and_sub_agents_are_not() -> None:
    toolbox = StandardToolbox()
    assert [spec.name for spec in toolbox.specs(sub_agent=False)][-1] == SPEC.name
    assert SPEC.name not in [spec.name for spec in toolbox.specs(sub_agent=True)]


@pytest.mark.parametrize("raw", ["{}", '{"reason": ""}', '{"reason": 1}', '{"reason": "x", "mode": "y"}'])
def test_a_reason_is_needed(raw: str) -> None:
    with pytest.raises(InvalidToolInputError):
        StandardToolbox().parse(SPEC.name, raw)


@pytest.mark.parametrize(
    "output",
    [
        "touch: cannot touch 'x': Read-only file system\n",
        "bash: x: Permission denied",
        "cp: setting attributes: Operation not permitted",
        "curl: (6) Could not resolve host: example.org",
        "OSError: [Errno 101] Network is unreachable",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "Error: EROFS: read-only file system, open 'x'",
    ],
)
def test_output_of_a_command_that_the_mode_stopped_says_how_to_ask(output: str) -> None:
    assert hint(Mode.RESTRICTED, end(output)) == HOW_TO_ASK
    assert hint(Mode.RESTRICTED, end("", tail=output)) == HOW_TO_ASK
    assert hint(Mode.RESTRICTED, end(output, exit_code=None)) == HOW_TO_ASK
    assert hint(Mode.RESTRICTED, end(f"building\n{output}\ndone\n", exit_code=0)) == HOW_TO_ASK, "`…; echo done`"
    assert hint(Mode.WORKSPACE, end(output)) == HOW_TO_ASK_FOR_MORE
    assert hint(Mode.UNRESTRICTED, end(output)) == ""
    assert hint(Mode.UNRESTRICTED, end(output, exit_code=0)) == ""


@pytest.mark.parametrize(
    "ended",
    [
        end("cat: x: No such file or directory"),
        end("1 failed, 2 passed"),
        end("Permission denied, but it went well", exit_code=0),
        end("src/errors.py:12:    raise Error('Permission denied')\n", exit_code=0),
        end("| EACCES | Permission denied |\n", exit_code=0),
        end("Permission denied " + "x" * 50_000),
    ],
)
def test_other_failures_are_left_alone(ended: ProcessEnd) -> None:
    assert hint(Mode.RESTRICTED, ended) == ""
