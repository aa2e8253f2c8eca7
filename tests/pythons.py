"""Run tests on every other Python that this machine has: `python -m tests.pythons [--one] [tests …]`.

Each Python gets an environment of its own, `.venv-3.12` and so on, made as `make setup` makes `.venv`.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14))
PLACES = (
    "/usr/bin",
    "/usr/local/bin",
    "~/.pyenv/versions/{version}*/bin",
    "~/.local/share/uv/python/cpython-{version}*/bin",
    "/opt/hostedtoolcache/Python/{version}*/x64/bin",
)
# The worked tasks run linters and type checkers, which are the same on each Python.
TESTS = ("tests/unit", "--ignore=tests/unit/test_worked_tasks.py", "tests/integration/store/test_store_contract.py")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make test-pythons")
    parser.add_argument("--one", action="store_true", help="the newest of them only")
    parser.add_argument("tests", nargs="*", default=TESTS)
    options = parser.parse_args(arguments)
    pythons = {version: found for version in VERSIONS if version != sys.version_info[:2] and (found := find(version))}
    missing = [".".join(map(str, version)) for version in VERSIONS if version not in {*pythons, sys.version_info[:2]}]
    print(f"not found on this machine: Python {', '.join(missing)}" if missing else "every Python is there", flush=True)
    chosen = sorted(pythons.items(), reverse=True)[: 1 if options.one else None]
    if not chosen:
        print("nothing was tested: there is no other Python here")
    failed = [version for version, python in chosen if not tested(version, python, options.tests)]
    return 1 if failed else 0


def find(version: tuple[int, int]) -> Path | None:
    """Return an interpreter of this version: on PATH, or in a usual place."""
    text = ".".join(map(str, version))
    folders = [Path(folder) for folder in os.get_exec_path()]
    for place in PLACES:
        pattern = Path(place.format(version=text)).expanduser()
        folders += sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))), reverse=True)
    candidates = (folder / f"python{text}" for folder in folders)
    return next((each for each in candidates if each.is_file() and runs(each, version)), None)


def runs(python: Path, version: tuple[int, int]) -> bool:
    """Whether it starts, which not every stand-in on PATH does, and can make environments."""
    program = f"import ensurepip, sqlite3, ssl, sys, venv; sys.exit(sys.version_info[:2] != {version})"
    try:
        return subprocess.run([python, "-c", program], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def tested(version: tuple[int, int], python: Path, tests: list[str]) -> bool:
    """Set an environment up and run the tests in it; whether all of them pass."""
    text = ".".join(map(str, version))
    environment = f".venv-{text}"
    print(f"Python {text}: {python}", flush=True)
    setup = ["make", "--no-print-directory", "setup", f"PYTHON={python}", f"VENV={environment}"]
    if subprocess.run(setup, cwd=ROOT, check=False).returncode:
        return False
    pytest = [f"{environment}/bin/python", "-m", "pytest", "-q", "-n", "3", "--dist", "loadscope", *tests]
    path = f"{ROOT / environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(pytest, cwd=ROOT, env=os.environ | {"PATH": path}, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
