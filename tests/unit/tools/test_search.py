"""search: what is launched, and the worker: which lines are shown, and what is said of the rest."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.tools import search as tool
from actors.adapters.tools.search import SearchTool
from actors.adapters.tools.workers import search
from actors.adapters.tools.workers.search import Search, UnsearchableError
from actors.adapters.tools.workers.searching import prefilter as candidates
from actors.adapters.tools.workers.searching import text_files as texts
from actors.adapters.tools.workers.searching import walk as walking


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def find(pattern: str, path: str = ".", *, max_entries: int = 1000, **options: Any) -> str:
    asked = {"path": path, "include": "", "exclude": "", "max_results": 50, "ripgrep": ""} | options
    return Search({"pattern": pattern} | asked, max_entries).text()


def write(content: str | bytes, name: str = "file") -> Path:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


# --- the lines --------------------------------------------------------------------------------------------------------


def test_lines_come_with_their_path_and_number(here: Path) -> None:
    write("one\ntwo\nthree\n", "b/c")
    write("two\n", "a")
    assert find("t[wh]") == "a:1: two\nb/c:2: two\nb/c:3: three"


@pytest.mark.parametrize(
    ("content", "pattern", "numbers"),
    [
        ("a\nb\n", "$", [1, 2]),
        ("a\n\n", "^$", [2]),
        ("a\n\nb", "^$", [2]),
        ("\n", "^$", [1]),
        ("a", "^a$", [1]),
        ("a\r\nb\r\n\r\n", "^.?$", [1, 2, 3]),
        ("a\rb\n", "a.b", [1]),
        ("a\nb\n", r"a\sb", []),
        ("a\nb\n", r"(?<=\n)b", []),
        ("a\x0bb\x85c\u2028d\n", "^a.b.c.d$", [1]),
        ("\ufeffa\n", "^a$", [1]),
        (b"w\xe4re\n\xff\xfex\n", "^w.re$", [1]),
        ("größe\n", r"^gr\wße$", [1]),
        ("Task\n", "task", []),
        ("Task\n", "(?i)task", [1]),
        ("a\nb\n", "a|", [1, 2]),
    ],
)
def test_a_line_is_what_is_between_line_ends(
    here: Path, content: str | bytes, pattern: str, numbers: list[int]
) -> None:
    write(content)
    assert [int(each) for each in re.findall(r"(?m)^file:(\d+): ", find(pattern))] == numbers


def test_no_match_is_said(here: Path) -> None:
    write("x\n")
    assert find("y") == "No matches found."


def test_a_pattern_with_a_line_break_is_explained(here: Path) -> None:
    write("x\n")
    for pattern in (r"x\n", "x\n", r"\\\n"):
        assert "one by one" in find(pattern)
    assert find(r"\\n") == "No matches found."


def test_binary_files_are_skipped_as_read_file_refuses_them(here: Path) -> None:
    write(b"needle\n" + b"\0", "binary")
    write(b"needle\n" + b"x" * 8192 + b"\0", "text")
    assert find("needle") == "text:1: needle"


@pytest.mark.parametrize("letter", ["x", "ä", "😀"])
def test_a_long_line_is_cut_around_the_match(here: Path, letter: str) -> None:
    write(letter * 1000 + "needle" + letter * 1000)
    assert find("needle") == f"file:1: …{letter * 100}needle{letter * 394}…"
    assert find("needle.*") == f"file:1: …{letter * 100}needle{letter * 394}…"
    assert find(f"^{letter}") == f"file:1: {letter * 500}…"
    write("y" * (texts.MAX_LINE - 6) + "needle")
    assert find("needle") == f"file:1: {'y' * 494}needle"


def test_a_name_with_line_breaks_stays_on_its_line(here: Path) -> None:
    write("x\n", "a\nb\r")
    write("x\n", os.fsdecode(b"\xff"))
    assert find("x").encode(errors="replace") == b"a\\nb\\r:1: x\n?:1: x"


# --- where ------------------------------------------------------------------------------------------------------------


def test_paths_are_what_read_file_takes(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    write("x\n", "a/b/c")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "d").write_text("x\n")
    Path("link").symlink_to("a")
    assert find("x") == "a/b/c:1: x"
    for path in ("a", "./a/", "a/b/..", str(here / "a"), "link"):
        assert find("x", path) == "a/b/c:1: x"
    assert find("x", "a/b/c") == "a/b/c:1: x"
    assert find("x", str(elsewhere)) == f"{elsewhere.resolve()}/d:1: x"


def test_a_file_that_is_named_is_searched_whatever_it_is_called(here: Path) -> None:
    write("x\n", "build/ignored.log")
    write("*.log\n", ".gitignore")
    assert find("x", "build/ignored.log", include="*.py") == "build/ignored.log:1: x"


def test_what_cannot_be_searched_is_refused(here: Path) -> None:
    os.mkfifo("fifo")
    with pytest.raises(UnsearchableError, match="neither a directory nor a regular file"):
        find("x", "fifo")
    with pytest.raises(UnsearchableError, match="neither"):
        find("x", "/dev/zero")
    with pytest.raises(FileNotFoundError):
        find("x", "missing")
    with Path("large").open("wb") as large:
        large.truncate(walking.MAX_FILE_BYTES + 1)
    with pytest.raises(UnsearchableError, match="10 MiB"):
        find("x", "large")
    with pytest.raises(UnsearchableError, match="too many"):
        find("x", include="{a,b}" * 30)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("a(b", "unterminated subpattern at position 1"),
        ("a[b", "unterminated character set at position 1"),
        (r"\p{L}", r"bad escape \p at position 0"),
        ("*a", "nothing to repeat at position 0"),
        ("a{99999999999}", "too large"),
        ("(" * 5000 + ")" * 5000, "recursion"),
    ],
)
def test_a_bad_pattern_is_reported_with_its_position(here: Path, pattern: str, told: str) -> None:
    with pytest.raises(UnsearchableError, match="not valid") as refused:
        find(pattern)
    assert told in str(refused.value)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_limit_is_reported_only_if_there_is_more(here: Path) -> None:
    write("x\n" * 3)
    assert find("x", max_results=3).count("\n") == 2
    notice = "[there are more than these 2 matches; narrow the pattern or the path, or raise max_results]"
    assert find("x", max_results=2) == f"file:1: x\nfile:2: x\n{notice}"


def test_all_lines_together_are_capped(here: Path) -> None:
    write(("ä" * 400 + "\n") * 1000)
    text = find("ä", max_results=1000)
    assert search.MAX_TEXT - 1000 < len(text.encode()) < search.MAX_TEXT + 200
    assert "more than these" in text.splitlines()[-1]


def test_what_was_left_out_is_reported(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("large").open("wb") as large:
        large.truncate(walking.MAX_FILE_BYTES + 1)
    write("x\n", "a")
    write("x\n", "closed")
    content = texts.content
    monkeypatch.setattr(texts, "content", lambda file: None if file.name == "closed" else content(file))
    assert find("x") == (
        "a:1: x\n[files larger than 10 MiB, which were skipped: 1]\n[files and directories that could not be read: 1]"
    )


def test_it_stops_after_so_many_entries(here: Path) -> None:
    for number in range(1201):
        write("x\n" if number == 0 else "y\n", f"d{number % 7}/{number}")
    notice = "[stopped after 1,200 entries: not all was searched; name a narrower path]"
    assert find("x", max_entries=1200).endswith(notice)
    assert find("x", max_entries=1300) == "d0/0:1: x"


def test_files_that_change_under_it_are_never_waited_for(here: Path) -> None:
    os.mkfifo("fifo")
    write(b"x" * (walking.MAX_FILE_BYTES + 1), "grown")
    Path("link").symlink_to("grown")
    found = {name: texts.content(walking.File(os.fsencode(here / name), name)) for name in ("fifo", "grown", "link")}
    assert found == {"fifo": b"", "grown": b"", "link": None}


# --- ripgrep ----------------------------------------------------------------------------------------------------------


def test_a_ripgrep_that_fails_or_is_not_there_changes_nothing(here: Path) -> None:
    write("needle\n")
    for program in ("/nonexistent", "/bin/false-is-2", str(here)):
        assert find("needle", ripgrep=program) == "file:1: needle"
    broken = write("#!/bin/sh\nexit 2\n", "bin/rg")
    broken.chmod(0o755)
    assert find("needle", ripgrep=str(broken.resolve()), exclude="bin") == "file:1: needle"


def test_batches_keep_the_order_and_fit_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "MAX_BATCH_BYTES", 100)
    files = [walking.File(b"x" * (number % 50), str(number)) for number in range(1000)]
    found = list(candidates.batches(files))
    assert [file for batch in found for file in batch] == files
    assert all(sum(len(file.path) + 1 for file in batch) <= 100 for batch in found)


# --- the program and the tool -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, "ok\nfile:1: x\n"),
        ({"path": "missing"}, "error\nCannot search missing: No such file or directory.\n"),
        ({"path": "a\0b"}, "error\nCannot search a\0b: "),
        ({"pattern": "["}, "error\nThe pattern is not valid: unterminated character set at position 0. "),
        ({"pattern": "[[a]x"}, "ok\nNo matches found.\n"),
    ],
)
def test_the_verdict_comes_first(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    changes: dict[str, Any],
    answer: str,
) -> None:
    write("x\n")
    asked = {"pattern": "x", "path": ".", "include": "", "exclude": "", "max_results": 50, "ripgrep": ""} | changes
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(asked).encode())))
    search.main([])
    sys.stdout.flush()
    out = capfdbinary.readouterr()
    assert out.out.decode().startswith(answer)
    assert not out.err


def test_the_worker_gets_what_was_asked(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "ripgrep", lambda: "/bin/rg")
    call.sandbox.ends(head=b"ok\nNo matches found.\n")
    SearchTool().run({"pattern": "ä", "max_results": 7.0}, call.context)
    (launch,) = call.sandbox.launches
    assert json.loads(launch.stdin) == {
        "pattern": "ä",
        "path": ".",
        "include": "",
        "exclude": "",
        "max_results": 7,
        "ripgrep": "/bin/rg",
    }


def test_out_of_time_says_what_to_change(call: Any) -> None:
    call.sandbox.ends(exit_code=None, signal=9, killed=True, limit="wall")
    output = SearchTool().run({"pattern": "x"}, call.context)
    assert output.is_error
    assert output.text == f"The search took longer than 60 s and was ended. {tool.HINT}"


def test_ripgrep_is_taken_from_the_path_of_tools_if_it_is_absolute(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("#!/bin/sh\n", "bin/rg").chmod(0o755)
    monkeypatch.setenv("PATH", "bin")
    assert tool.ripgrep() == ""
    monkeypatch.setenv("PATH", f"bin:{here}/none")
    assert tool.ripgrep() == ""
    monkeypatch.setenv("PATH", f"{here}/bin")
    assert tool.ripgrep() == f"{here}/bin/rg"
