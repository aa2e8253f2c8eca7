"""`bash`: what a call may ask for, what it runs, and how that ends."""

import json
from typing import Any

import pytest

from actors.adapters.tools.bash.job import JobRegistry
from actors.adapters.tools.bash.output_text import display_command
from actors.adapters.tools.bash.tool import MAX_COMMAND_BYTES, BashTool, JobRequest, request
from actors.adapters.tools.program_launch import ToolRefusedError, tool_environment
from actors.core.context import Mode
from actors.ports import ProcessStartError, SandboxUnavailableError, ToolTransientError


def run(call: Any, **arguments: Any) -> Any:
    return BashTool(JobRegistry()).run({"cmd": "true"} | arguments, call.context)


def test_a_plain_bash_runs_in_the_working_directory_in_the_conversation_s_mode(call: Any) -> None:
    call.mode = Mode.RESTRICTED
    run(call, cmd="cd x && y")
    (launch,) = call.sandbox.launches
    assert launch.argv == ("bash", "-c", "cd x && y")
    assert launch.cwd == str(call.directory)
    assert (launch.mode, launch.stdin, launch.output_bytes) == (Mode.RESTRICTED, b"", 128 * 1024)
    assert launch.limits.wall_seconds == 0, "nothing is killed for taking long"


def test_every_process_is_tracked_and_its_pids_reported(call: Any) -> None:
    call.sandbox.ends(reaped=(5, 6))
    run(call)
    assert len(call.tracked) == 1
    assert call.receipts == [(5, 6)]


@pytest.mark.parametrize(
    ("end", "text"),
    [
        ({"head": b"hello\n"}, "hello\n[exit code 0]"),
        ({"head": b"no newline"}, "no newline\n[exit code 0]"),
        ({}, "[exit code 0]"),
        ({"exit_code": 3, "head": b"x\n"}, "x\n[exit code 3]"),
        ({"exit_code": 137}, "[exit code 137, as after signal 9 (SIGKILL)]"),
        ({"exit_code": 255}, "[exit code 255]"),
        ({"exit_code": None, "signal": 11}, "[killed by signal 11 (SIGSEGV)]"),
        ({"reaped": (7,)}, "[exit code 0]\n[killed 1 process that it left running]"),
        ({"reaped": (7, 8)}, "[exit code 0]\n[killed 2 processes that it left running]"),
        ({"head": b"\r10%\r\x1b[K99%\r\n\x1b[31mred\x1b[m\r\n"}, "99%\nred\n[exit code 0]"),
        ({"head": b"a\xff\xc3"}, "a��\n[exit code 0]"),
        ({"head": b"begin", "tail": b"end\n", "cut_bytes": 9}, "begin\n[9 bytes cut here]\nend\n[exit code 0]"),
        (
            {"head": "é".encode()[:1], "tail": "😀!".encode()[2:], "cut_bytes": 3},
            "\n[3 bytes cut here]\n!\n[exit code 0]",
        ),
    ],
)
def test_an_end_is_a_result_whatever_the_exit_code(call: Any, end: dict[str, Any], text: str) -> None:
    call.sandbox.ends(**end)
    output = run(call)
    assert (output.text, output.is_error) == (text, False)


def test_a_call_of_which_something_may_still_run_is_never_a_success(call: Any) -> None:
    call.sandbox.ends(leaked=True)
    output = run(call)
    said = "[exit code 0]\n[leaked: not all of its processes could be confirmed dead; some might still be running]"
    assert (output.text, output.is_error) == (said, True)
    assert json.loads(output.display)["leaked"] is True


@pytest.mark.parametrize(("limit", "what"), [("processes", "limit of processes"), ("memory", "memory limit")])
def test_a_call_that_exceeded_a_limit_names_it(call: Any, limit: str, what: str) -> None:
    call.sandbox.ends(exit_code=None, signal=9, killed=True, limit=limit)
    assert f"it exceeded the {what} per call" in run(call).text


def test_a_call_that_ended_with_the_servers_lease_says_why(call: Any) -> None:
    call.sandbox.ends(exit_code=None, signal=9, killed=True, limit="lease", head=b"so far\n")
    output = run(call)
    assert output.is_error
    said = "[killed, with everything it started: the cluster's database did not respond]"
    assert output.text == f"so far\n{said}"


def test_a_killed_command_is_an_error_that_keeps_the_output(call: Any) -> None:
    call.sandbox.ends(exit_code=None, signal=9, killed=True, head=b"so far\n", reaped=(1, 2))
    output = run(call)
    assert output.is_error
    assert output.text == "so far\n[killed, with everything it started]"


def test_the_display_tells_people_the_figures(call: Any) -> None:
    call.sandbox.ends(exit_code=2, cut_bytes=5, head=b"a", tail=b"b", reaped=(4,))
    assert json.loads(run(call, cmd=f"cd {call.directory} && false").display) == {
        "status": "exited",
        "handle": "b-1",
        "command": "false",
        "exit_code": 2,
        "signal": None,
        "duration_ms": 12,
        "cut_bytes": 5,
        "killed_processes": 1,
    }


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("cd /w && make", "make"),
        (" cd /w ; make", "make"),
        ("cd /w/; make", "make"),
        ("cd '/w' && make", "make"),
        ('cd "/w" && make', "make"),
        ("cd -- /w && make", "make"),
        ("cd /w &&\n  make || cry", "make || cry"),
        ("cd /w || make", None),
        ("cd /w & make", None),
        ("cd /w | make", None),
        ("cd /w ;; make", None),
        ("cd /other && make", None),
        ("cd /w/sub && make", None),
        ("cd $X && make", None),
        ("cd /w && ", None),
        ("cd /w", None),
        ("make && cd /w && x", None),
    ],
)
def test_people_are_not_shown_a_cd_that_leads_nowhere(command: str, shown: str | None) -> None:
    assert display_command(command, "/w") == (command if shown is None else shown)


def test_live_output_never_splits_a_character(call: Any) -> None:
    raw = "naïve 😀 \n".encode()
    call.sandbox.pieces = (*(bytes([byte]) for byte in raw), b"\xe2\x82")
    run(call)
    shown = [call.shown.get() for _ in range(call.shown.qsize())]
    assert "".join(shown) == "naïve 😀 \n�"
    assert "" not in shown


@pytest.mark.parametrize(("cmd", "why"), [("a\0b", "NUL"), ("ä" * MAX_COMMAND_BYTES, "longer than")])
def test_a_command_that_cannot_be_passed_on_is_refused(call: Any, cmd: str, why: str) -> None:
    output = run(call, cmd=cmd)
    assert output.is_error
    assert why in output.text
    assert not call.sandbox.launches


def test_a_command_that_destroys_work_is_not_run(call: Any) -> None:
    output = run(call, cmd="make && sudo rm -rf ~")
    assert output.is_error
    assert output.text.startswith("command_refused: ")
    assert json.loads(output.display)["status"] == "refused"
    assert not call.sandbox.launches


def test_a_working_directory_that_vanishes_at_the_start_is_one_too(call: Any) -> None:
    def start(launch: Any, on_output: Any) -> None:
        call.directory.rmdir()
        raise ProcessStartError("no such directory")

    call.sandbox.start = start
    assert "no longer exists" in run(call).text


def test_a_start_that_fails_has_not_begun(call: Any) -> None:
    call.sandbox.failure = ProcessStartError("no process could be created")
    with pytest.raises(ToolTransientError, match="no process could be created") as failed:
        run(call)
    assert failed.value.begun is False


def test_a_refused_restriction_is_passed_on(call: Any) -> None:
    call.sandbox.failure = SandboxUnavailableError("no")
    with pytest.raises(SandboxUnavailableError):
        run(call)


# --- bash: which arguments go together, and what the model reads when they do not ---


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({"cmd": "ls"}, JobRequest("cmd", "ls", wait_seconds=30)),
        ({"cmd": "ls", "wait_seconds": 0}, JobRequest("cmd", "ls", wait_seconds=0)),
        ({"cmd": "ls", "wait_seconds": 900.0}, JobRequest("cmd", "ls", wait_seconds=900)),
        ({"peek": "b-1"}, JobRequest("peek", "b-1", lines=200)),
        ({"peek": "b-1", "lines": 5}, JobRequest("peek", "b-1", lines=5)),
        ({"peek": "b-1", "since": 0}, JobRequest("peek", "b-1", since=0)),
        ({"wait": "b-1"}, JobRequest("wait", "b-1", wait_seconds=30)),
        ({"wait": "b-1", "wait_seconds": 7}, JobRequest("wait", "b-1", wait_seconds=7)),
        ({"kill": "b-1"}, JobRequest("kill", "b-1", signal=15)),
        ({"kill": "b-1", "signal": "KILL"}, JobRequest("kill", "b-1", signal=9)),
    ],
)
def test_one_call_asks_for_one_thing(arguments: dict[str, Any], asked: JobRequest) -> None:
    assert request(arguments) == asked


@pytest.mark.parametrize(
    ("arguments", "conflicting"),
    [
        ({}, []),
        ({"wait_seconds": 3}, []),
        ({"cmd": "ls", "wait": "b-1"}, ["cmd", "wait"]),
        ({"kill": "b-1", "wait": "b-1", "peek": "b-1"}, ["peek", "wait", "kill"]),
        ({"cmd": "ls", "signal": "KILL"}, ["cmd", "signal"]),
        ({"peek": "b-1", "wait_seconds": 3}, ["peek", "wait_seconds"]),
        ({"wait": "b-1", "lines": 3}, ["wait", "lines"]),
        ({"kill": "b-1", "since": 3}, ["kill", "since"]),
    ],
)
def test_arguments_that_contradict_each_other_are_named(arguments: dict[str, Any], conflicting: list[str]) -> None:
    with pytest.raises(ToolRefusedError) as refused:
        request(arguments)
    assert str(refused.value).startswith("mutually_exclusive_modes: ")
    assert refused.value.details["conflicting_args"] == conflicting
    assert all(f"`{name}`" in str(refused.value) for name in conflicting)
    assert json.loads(refused.value.output().display)["error"] == "mutually_exclusive_modes"


@pytest.mark.parametrize("seconds", [-1, 901, 10**30])
@pytest.mark.parametrize("what", ["cmd", "wait"])
def test_a_wait_has_bounds(what: str, seconds: int) -> None:
    with pytest.raises(ToolRefusedError, match=r"wait_seconds_out_of_range: .* between 0 and 900"):
        request({what: "b-1", "wait_seconds": seconds})


def test_lines_and_since_exclude_each_other() -> None:
    with pytest.raises(ToolRefusedError, match="peek_args_mutually_exclusive: "):
        request({"peek": "b-1", "lines": 3, "since": 3})


# The allowlist of a tool's environment.


def test_only_listed_names_pass() -> None:
    server = {"PATH": "/p", "HOME": "/h", "LC_ALL": "C", "TERM": "xterm", "AWS_SECRET_ACCESS_KEY": "s", "PATHS": "x"}
    plain = {"NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb"}
    assert tool_environment(server) == {"PATH": "/p", "HOME": "/h", "LC_ALL": "C"} | plain


def test_a_path_and_a_home_are_always_there() -> None:
    env = tool_environment({})
    assert set(env) == {"PATH", "HOME", "TERM", "NO_COLOR", "PAGER", "GIT_PAGER"}
    assert "/bin" in env["PATH"]


def test_what_the_server_s_user_has_set_of_pagers_and_colours_is_kept() -> None:
    chosen = {"NO_COLOR": "", "PAGER": "less", "GIT_PAGER": "delta"}
    assert tool_environment(chosen).items() >= chosen.items()
