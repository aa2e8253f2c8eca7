"""How an agent asks for more, and how other tools tell it that it can."""

from types import SimpleNamespace
from typing import Any

import pytest

from actors.adapters.tools import request_mode_upgrade
from actors.adapters.tools.registry import StandardToolbox
from actors.core.context import Mode
from actors.core.steps.approvals import REQUEST_MODE_UPGRADE
from actors.ports import InvalidToolInputError, ProcessEnd


def end(output: str, exit_code: int | None = 1, tail: str = "") -> ProcessEnd:
    return ProcessEnd(exit_code, None, output.encode(), tail.encode(), 9 if tail else 0, 5, ())


@pytest.mark.parametrize(
    ("mode", "asked", "said"),
    [
        (Mode.RESTRICTED, {}, request_mode_upgrade.GRANTED),
        (Mode.RESTRICTED, {"mode": "unrestricted"}, request_mode_upgrade.GRANTED),
        (Mode.RESTRICTED, {"mode": "workspace"}, request_mode_upgrade.GRANTED_WORKSPACE),
        (Mode.WORKSPACE, {}, request_mode_upgrade.GRANTED),
        (Mode.WORKSPACE, {"mode": "workspace"}, request_mode_upgrade.NOT_NEEDED_WORKSPACE),
        (Mode.UNRESTRICTED, {"mode": "workspace"}, request_mode_upgrade.NOT_NEEDED),
        (Mode.UNRESTRICTED, {}, request_mode_upgrade.NOT_NEEDED),
    ],
)
def test_what_an_approval_leads_to(mode: Mode, asked: dict[str, str], said: str) -> None:
    sandbox = SimpleNamespace(mode_refusal=lambda mode, directory: "")
    context: Any = SimpleNamespace(mode=mode, sandbox=sandbox, working_directory="/work")
    output = request_mode_upgrade.ModeUpgradeTool().run({"reason": "r", **asked}, context)
    assert (output.text, output.is_error) == (said, False)


def test_a_workspace_that_cannot_be_kept_is_not_granted() -> None:
    sandbox = SimpleNamespace(mode_refusal=lambda mode, directory: f"{directory} is the home directory")
    context: Any = SimpleNamespace(mode=Mode.RESTRICTED, sandbox=sandbox, working_directory="/home/me")
    output = request_mode_upgrade.ModeUpgradeTool().run({"reason": "r", "mode": "workspace"}, context)
    assert output.is_error
    assert "/home/me is the home directory" in output.text


def test_an_error_of_a_tool_that_the_workspace_mode_caused_says_how_to_ask() -> None:
    said = "Nothing was changed in .git/config: Permission denied."
    assert request_mode_upgrade.hint_for_error(Mode.WORKSPACE, said) == request_mode_upgrade.HOW_TO_ASK_FOR_MORE
    assert request_mode_upgrade.hint_for_error(Mode.UNRESTRICTED, said) == ""
    assert request_mode_upgrade.hint_for_error(Mode.WORKSPACE, "Nothing was changed in a: oldText was not found.") == ""


def test_it_is_the_tool_that_the_machine_knows_and_always_asks() -> None:
    assert request_mode_upgrade.SPEC.name == request_mode_upgrade.SPEC.traits.name == REQUEST_MODE_UPGRADE
    assert request_mode_upgrade.SPEC.traits.always_asks
    assert not request_mode_upgrade.SPEC.traits.retry_safe
    assert request_mode_upgrade.SPEC.name in request_mode_upgrade.HOW_TO_ASK


def test_people_s_conversations_are_offered_it_as_the_last_and_sub_agents_are_not() -> None:
    toolbox = StandardToolbox()
    assert [spec.name for spec in toolbox.specs(sub_agent=False)][-1] == request_mode_upgrade.SPEC.name
    assert request_mode_upgrade.SPEC.name not in [spec.name for spec in toolbox.specs(sub_agent=True)]


@pytest.mark.parametrize("raw", ["{}", '{"reason": ""}', '{"reason": 1}', '{"reason": "x", "mode": "y"}'])
def test_a_reason_is_needed(raw: str) -> None:
    with pytest.raises(InvalidToolInputError):
        StandardToolbox().parse(request_mode_upgrade.SPEC.name, raw)


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
    assert request_mode_upgrade.hint(Mode.RESTRICTED, end(output)) == request_mode_upgrade.HOW_TO_ASK
    assert request_mode_upgrade.hint(Mode.RESTRICTED, end("", tail=output)) == request_mode_upgrade.HOW_TO_ASK
    assert request_mode_upgrade.hint(Mode.RESTRICTED, end(output, exit_code=None)) == request_mode_upgrade.HOW_TO_ASK
    assert (
        request_mode_upgrade.hint(Mode.RESTRICTED, end(f"building\n{output}\ndone\n", exit_code=0))
        == request_mode_upgrade.HOW_TO_ASK
    ), "`…; echo done`"
    assert request_mode_upgrade.hint(Mode.WORKSPACE, end(output)) == request_mode_upgrade.HOW_TO_ASK_FOR_MORE
    assert request_mode_upgrade.hint(Mode.UNRESTRICTED, end(output)) == ""
    assert request_mode_upgrade.hint(Mode.UNRESTRICTED, end(output, exit_code=0)) == ""


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
    assert request_mode_upgrade.hint(Mode.RESTRICTED, ended) == ""
