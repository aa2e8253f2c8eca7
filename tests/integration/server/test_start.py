"""What a server imports before it is ready: nothing that only some runs, or none, need; what it does to its process."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PR_GET_DUMPABLE = 3
NOT_AT_START = {
    "PIL", "rich", "prompt_toolkit", "markdown_it", "grpc_reflection.v1alpha", "grpc_tools.protoc", "unittest",
    "multiprocessing", "xml", "psycopg", "actors.adapters.sandbox.toolhost", "difflib", "email.utils", "certifi",
    "importlib.resources", "playhouse.cockroachdb", "actors.adapters.mcp.servers",
    "actors.adapters.tools.workers.patch", "actors.adapters.tools.workers.read_file",
    "actors.adapters.tools.workers.search",
    "actors.adapters.tools.workers.keyword_search",
}  # fmt: skip
OF_AGENTS = {"jsonschema_rs", "tree_sitter", "tree_sitter_bash", "requests", "urllib3"}
START = """
import sys, threading, time
from server.operating_system import collection_paused, tune_process
tune_process()
with collection_paused():
    from server import json_logs
    from server.app.serving import run
    from server.app.wiring import wire
from server.settings.config import load
from actors.messages import CreateConversationCommand
with wire(load({"data_dir": sys.argv[1], "listen": "none"})) as wired:
    wired.connect()
    print(*sorted(sys.modules))
    conversation = CreateConversationCommand("local", "/")
    wired.supervisor.create(conversation).result(30)
    while any(thread.name == "bedrock-load" for thread in threading.enumerate()):
        time.sleep(0.01)
    print(*sorted(sys.modules))
"""


def printed(program: str, *arguments: str) -> str:
    """What a program of its own process prints."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_start_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    at_start, with_an_agent = (set(line.split()) for line in printed(START, str(tmp_path / "data")).splitlines())
    found = (NOT_AT_START | OF_AGENTS) & at_start
    assert not found
    assert {"jsonschema_rs", "tree_sitter"} <= with_an_agent, "the first call of a tool must not import them"


def test_the_sandbox_is_probed_while_modules_are_imported_and_without_importing_any(tmp_path: Path) -> None:
    program = (
        "import sys; from server.settings.config import load; from server.app.sandbox_choice import probing\n"
        "config = load({'data_dir': sys.argv[1]})\n"
        "early = set(sys.modules); report = probing(config).result()\n"
        "print(report.tier, sorted(set(sys.modules) - early), 'grpc' in early, 'asyncio' in early)"
    )
    assert printed(program, str(tmp_path)).split(maxsplit=1)[1] == "[] False False\n", (
        "two threads that import wait for one another"
    )


def test_collection_is_paused_while_modules_are_imported_and_not_afterwards() -> None:
    program = (
        "import gc; from server.operating_system import collection_paused\n"
        "with collection_paused():\n"
        "    kept = [[] for _ in range(1000)]; paused = not gc.isenabled()\n"
        "print(paused, gc.isenabled(), gc.get_freeze_count() > 1000)"
    )
    assert printed(program) == "True True True\n"


def test_processes_of_the_same_user_cannot_look_into_the_server() -> None:
    program = (
        "import ctypes; from server.operating_system import tune_process; tune_process(); "
        f"print(ctypes.CDLL(None).prctl({PR_GET_DUMPABLE}, 0, 0, 0, 0))"
    )
    assert printed(program) == "0\n"


def test_what_stays_is_left_out_of_garbage_collection() -> None:
    program = (
        "import gc; from server.operating_system import spare_what_stays; kept = [[] for _ in range(1000)]; "
        "spare_what_stays(); print(len(gc.get_objects()) < 1000 <= gc.get_freeze_count())"
    )
    assert printed(program) == "True\n"


def test_garbage_is_collected_seldom_but_collected() -> None:
    program = (
        "import gc; from server.operating_system import NEW_OBJECTS, spare_what_stays; spare_what_stays(); "
        "began = []; gc.callbacks.append(lambda phase, info: began.append(phase)); "
        "kept = [[] for _ in range(NEW_OBJECTS // 2)]; seldom = not began; "
        "kept += [[] for _ in range(NEW_OBJECTS)]; print(seldom and bool(began))"
    )
    assert printed(program) == "True\n"
