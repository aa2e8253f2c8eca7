"""Somebody swaps a directory on the way for a link that leads out, again and again, while patch works beneath it."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from actors.adapters.tools.workers import patch_files
from actors.adapters.tools.workers.patch_files import PatchRefusedError

RACES = int(os.environ.get("BEDROCK_RACES", "5000"))
"""Attempts by openat2, and as many without."""

EXPECTED = ("leads out", "another program", "not a regular file")
"""What a program that is not led astray says."""

ATTACKER = """
import ctypes, os, sys
os.chdir(sys.argv[1])
swap = ctypes.CDLL(None, use_errno=True).renameat2
def exchange(one, other):
    if swap(-100, one, -100, other, 2):
        raise OSError(ctypes.get_errno(), "renameat2")
exchange(b"door", b"link"), exchange(b"door", b"link")
print("ready", flush=True)
while True:
    exchange(b"door", b"link")
    exchange(b"name", b"alias")
"""


@dataclass
class Field:
    """The working directory under attack, and what is outside of it."""

    work: Path
    outside: Path
    seen: Counter[str]

    def escaped(self) -> bool:
        """Whether anything outside is not as it was."""
        names = sorted(path.name for path in self.outside.rglob("*"))
        return names != ["deep", "file", "file"] or any(
            (self.outside / file).read_bytes() != b"outside" for file in ("file", "deep/file")
        )


@pytest.fixture
def field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Field]:
    work, outside = tmp_path / "work", tmp_path / "outside"
    for top, content in ((work / "door", b"inside"), (outside, b"outside")):
        (top / "deep").mkdir(parents=True)
        (top / "file").write_bytes(content)
        (top / "deep/file").write_bytes(content)
    (work / "link").symlink_to("../outside")
    (work / "name").write_bytes(b"inside")
    (work / "alias").symlink_to("../outside/file")
    monkeypatch.chdir(work)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    attacker = subprocess.Popen([sys.executable, "-I", "-c", ATTACKER, str(work)], stdout=subprocess.PIPE)
    try:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"ready\n"
        yield Field(work, outside, Counter())
        assert attacker.poll() is None, "it attacked to the end"
    finally:
        attacker.kill()
        attacker.communicate()


def attempt(field: Field, work: Callable[[], str]) -> None:
    """Note what came of it."""
    try:
        field.seen[work()] += 1
    except patch_files.PathEscapesError:
        field.seen["refused"] += 1
    except PatchRefusedError as refused:
        known = any(part in str(refused) for part in EXPECTED)
        field.seen["refused" if known else str(refused)] += 1
    except OSError:
        field.seen["failed"] += 1


def which(field: Field, opened: int) -> str:
    """Where an opened directory is."""
    outside = {os.stat(path).st_ino for path in (field.outside, field.outside / "deep")}
    try:
        return "outside" if os.fstat(opened).st_ino in outside else "inside"
    finally:
        os.close(opened)


def test_the_attack_gets_a_program_that_does_not_look(field: Field) -> None:
    for _ in range(RACES):
        attempt(field, lambda: which(field, os.open("door/deep", patch_files.DIRECTORY)))
        if field.seen["outside"] and field.seen["inside"]:
            return
    pytest.fail(f"the attack is none: {field.seen}")


def test_opening_is_never_led_out(field: Field) -> None:
    root = os.open(".", patch_files.DIRECTORY)
    paths = ("door", "door/deep", "door/deep/../deep", "./door/../door/deep")
    for number in range(RACES):
        path = paths[number % len(paths)]
        attempt(field, lambda path=path: which(field, patch_files.open_directory(root, path)))  # type: ignore[misc]
    os.close(root)
    assert field.seen["outside"] == 0
    assert field.seen["inside"] > 0
    assert field.seen["refused"] > 0


class Looked(Exception):
    """It is not to be written."""


def test_patching_is_never_led_out(field: Field) -> None:
    def write(path: str) -> str:
        def rewrite(content: bytes | None) -> bytes:
            assert content is None or content == b"inside"
            return b"inside"

        patch_files.change(path, [], rewrite)
        return "written"

    def look(path: str) -> str:
        def rewrite(content: bytes | None) -> bytes:
            assert content == b"inside"
            raise Looked

        with pytest.raises(Looked):
            patch_files.change(path, [], rewrite)
        return "read"

    outcomes = ("written", "read", "refused")
    for number in range(RACES):
        if number > RACES // 20 and all(field.seen[outcome] for outcome in outcomes):
            break  # later only on a machine so busy that the attack has hardly run
        attempt(field, lambda number=number: write(f"door/{number % 7}/new-{number}"))  # type: ignore[misc]
        attempt(field, lambda: look("door/deep/file"))
        attempt(field, lambda: look("name"))
    assert not field.escaped()
    assert all(field.seen[outcome] for outcome in outcomes)
    assert field.seen.keys() <= {"written", "read", "refused", "failed"}
