"""What a server imports before it is ready: nothing that only some runs, or none, need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NOT_AT_START = {
    "PIL", "rich", "prompt_toolkit", "markdown_it", "jsonschema_rs", "grpc_reflection.v1alpha", "grpc_tools.protoc",
    "unittest", "multiprocessing", "xml", "psycopg", "actors.adapters.sandbox.toolhost",
}  # fmt: skip
START = """
import sys
from server.process.process_settings import collection_paused, tune_process
tune_process()
with collection_paused():
    from server import json_logs
    from server.app.serving import run
    from server.app.wiring import wire
from server.settings.loading import load
with wire(load({"data_dir": sys.argv[1], "listen": "none"})) as wired:
    print(*sorted(sys.modules))
    wired.load_later()
    print("jsonschema_rs" in sys.modules)
"""


def test_a_start_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, str(tmp_path / "data")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    modules, loaded_later = run.stdout.splitlines()
    found = NOT_AT_START.intersection(modules.split())
    assert not found
    assert loaded_later == "True", "the first call of a tool must not import it"


def test_the_sandbox_is_probed_while_modules_are_imported_and_without_importing_any(tmp_path: Path) -> None:
    program = (
        "import sys; from server.settings.loading import load; from server.app.sandbox_choice import probing\n"
        "config = load({'data_dir': sys.argv[1]})\n"
        "early = set(sys.modules); report = probing(config).result()\n"
        "print(report.tier, sorted(set(sys.modules) - early), 'grpc' in early, 'asyncio' in early)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split(maxsplit=1)[1] == "[] False False\n", "two threads that import wait for one another"


def test_collection_is_paused_while_modules_are_imported_and_not_afterwards() -> None:
    program = (
        "import gc; from server.process.process_settings import collection_paused\n"
        "with collection_paused():\n"
        "    kept = [[] for _ in range(1000)]; paused = not gc.isenabled()\n"
        "print(paused, gc.isenabled(), gc.get_freeze_count() > 1000)"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "True True True\n"
