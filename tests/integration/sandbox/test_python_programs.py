"""Python programs that the tool host's own interpreter runs: like executed ones, but nothing is executed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.tools import workers
from actors.ports import ProcessEnd
from tests.support.trees import launch

ROOT = Path(__file__).parents[3]
PROGRAMS = sorted(path.stem for path in Path(workers.__path__[0]).glob("*.py") if "def main" in path.read_text())

OWN = "BEDROCK_CALL", "LC_CTYPE"
"""Variables that differ: the number of the call, and what an interpreter without a locale sets for its children."""

LOOK = (
    f"OWN = {OWN}"
    + """
import json, os, resource, sys
umask = os.umask(0)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "arguments": sys.argv, "path": sys.path, "flags": str(sys.flags), "umask": umask, "directory": os.getcwd(),
    "environment": {name: value for name, value in os.environ.items() if name not in OWN},
    "files": sorted(os.listdir("/proc/self/fd")), "leader": os.getsid(0) == os.getpid() == os.getpgid(0),
    "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
    "encodings": [stream.encoding for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "limits": [resource.getrlimit(each) for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_DATA)],
    "badness": open("/proc/self/oom_score_adj").read(), "name": __name__, "owner": os.stat("/proc/self/fd").st_uid,
    "children": open(f"/proc/self/task/{os.getpid()}/children").read(), "stdin": sys.stdin.read(),
}))
"""
)


def run(sandbox: ToolHostSandbox, source: str, *arguments: str, **changes: Any) -> ProcessEnd:
    """Have the tool host run Python source."""
    return sandbox.start(launch("", argv=(source, *arguments), python=True, **changes), lambda data: None).wait()


def test_it_finds_the_same_around_it_as_an_interpreter_that_is_started(sandbox: ToolHostSandbox) -> None:
    changes: dict[str, Any] = {"env": {"ONE": "1"}, "cwd": "/usr", "stdin": "ä".encode()}
    argv = (sys.executable, "-I", "-S", "-c", LOOK, "a", "ö")
    executed = sandbox.start(launch("", argv=argv, **changes), lambda data: None).wait()
    forked = run(sandbox, LOOK, "a", "ö", **changes)
    assert (executed.exit_code, forked.exit_code) == (0, 0), forked.head
    assert json.loads(forked.head) == json.loads(executed.head)


@pytest.mark.parametrize(
    ("source", "code", "output"),
    [
        ("print('over')", 0, "over\n"),
        ("import sys; print('over'); sys.exit(3)", 3, "over\n"),
        ("raise SystemExit(None)", 0, ""),
        ("import os; os._exit(4)", 4, ""),
        ("print('begun'); 1 / 0", 1, "ZeroDivisionError"),
        ("no Python", 1, "SyntaxError"),
    ],
)
def test_it_ends_as_programs_of_an_interpreter_do(
    sandbox: ToolHostSandbox, source: str, code: int, output: str
) -> None:
    end = run(sandbox, source)
    assert end.exit_code == code
    assert output in end.head.decode()


def test_no_program_is_executed_and_none_of_its_doings_reach_the_next(sandbox: ToolHostSandbox) -> None:
    spoil = "import json, os, sys; sys.spoilt = json.loads = os.getcwd = None; print(open('/proc/self/cmdline').read())"
    assert run(sandbox, spoil).head.decode().split("\0")[5] == "forks", "it was executed"
    check = "import json, os, sys; print(hasattr(sys, 'spoilt'), json.loads('[1]'), os.getcwd())"
    assert run(sandbox, check).head == b"False [1] /\n"


def test_it_can_be_killed(sandbox: ToolHostSandbox) -> None:
    tree = sandbox.start(launch("", argv=("while True: pass",), python=True), lambda data: None)
    tree.kill()
    assert (tree.wait().killed, tree.wait().leaked) == (True, False)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_worker_needs_of_the_standard_library_is_loaded_already(sandbox: ToolHostSandbox, program: str) -> None:
    source = (
        f"import json, sys; before = set(sys.modules); sys.path.insert(0, {str(ROOT)!r}); "
        f"import {workers.__name__}.{program}; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    end = run(sandbox, source)
    assert end.exit_code == 0, end.head
    assert [name for name in json.loads(end.head) if name.partition(".")[0] in sys.stdlib_module_names] == []


def test_the_fork_server_loads_what_workers_need_with_the_first_of_them(sandbox: ToolHostSandbox) -> None:
    def loaded() -> bool:
        process = sandbox._fork_server._process
        assert process is not None
        return "/_json." in Path(f"/proc/{process.pid}/maps").read_text()

    sandbox.start(launch("true"), lambda data: None).wait()
    assert not loaded(), "a server that starts would wait for it"
    run(sandbox, "pass")
    assert loaded()


def test_source_of_any_size_is_run(sandbox: ToolHostSandbox) -> None:
    assert run(sandbox, f"text = {'x' * 300_000!r}; print(len(text))").head == b"300000\n"
