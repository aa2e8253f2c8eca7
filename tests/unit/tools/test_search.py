"""search: what is found, what is left out, and how it is shown."""

import ast
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.tools import search as tool
from actors.adapters.tools import workers
from actors.adapters.tools.search import KeywordSearchTool, SearchTool
from actors.adapters.tools.workers import search
from actors.adapters.tools.workers.search import LineSearch, UnsearchableError

RIPGREP = tool.ripgrep()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def find(pattern: str, path: str = ".", **options: Any) -> str:
    asked = {"path": path, "include": "", "exclude": "", "max_results": 50, "ripgrep": RIPGREP} | options
    return LineSearch({"pattern": pattern} | asked).text()


def files(**options: Any) -> list[str]:
    """The files that are searched for anything."""
    found = find(r"\A", max_results=1000, **options)
    return list(dict.fromkeys(re.findall(r"(?m)^(.*):[0-9]+: ", found)))


def write(content: str | bytes, name: str = "file") -> Path:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


# --- the lines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "pattern", "numbers"),
    [
        ("a\nb\n", "$", [1, 2]),
        ("a\n\n", "^$", [2]),
        ("a\n\nb", "^$", [2]),
        ("\n", "^$", [1]),
        ("a", "^a$", [1]),
        ("a\r\nb\r\n\r\n", "^.?$", [1, 2, 3]),
        ("a\nb\n", r"a\sb", []),
        ("a\x0bb\x85c\u2028d\n", "^a.b.c.d$", [1]),
        ("\ufeffa\n", "^a$", [1]),
        (b"w\xe4re\n\xff\xfex\n", "re$", [1]),
        ("wäre\n".encode("utf-16"), "^w.re$", [1]),
        ("a" * 5000 + "!\n", "(a+)+$", []),
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


@pytest.mark.parametrize("letter", ["x", "ä", "😀"])
def test_a_long_line_is_cut_around_the_match(here: Path, letter: str) -> None:
    write(letter * 1000 + "needle" + letter * 1000)
    assert find("needle") == f"file:1: …{letter * 100}needle{letter * 394}…"
    assert find("needle.*") == f"file:1: …{letter * 100}needle{letter * 394}…"
    assert find(f"^{letter}") == f"file:1: {letter * 500}…"
    write("y" * (search.MAX_LINE - 6) + "needle")
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
        large.truncate(search.MAX_FILE_BYTES + 1)
    with pytest.raises(UnsearchableError, match="10 MiB"):
        find("x", "large")
    for glob in ({"include": "{a"}, {"include": "a/{b"}, {"exclude": "{a"}):
        with pytest.raises(UnsearchableError, match="unclosed alternate group"):
            find("x", **glob)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("a(b", "unclosed group"),
        ("a[b", "unclosed character class"),
        ("*a", "repetition operator missing expression"),
        ("a(?=b)", "look-around, including look-ahead and look-behind, is not supported"),
        (r"(a)\1", "backreferences are not supported"),
        (r"a\nb", r'the literal "\n" is not allowed in a regex'),
        ("a{9999}{9999}", "size limit"),
        ("(" * 5000 + ")" * 5000, "maximum number of nested parentheses"),
    ],
)
def test_a_bad_pattern_is_refused_with_the_reason(here: Path, pattern: str, told: str) -> None:
    (here / "closed").mkdir()
    with pytest.raises(UnsearchableError, match="not valid") as refused:
        find(pattern)
    assert told in str(refused.value)


# --- which files ------------------------------------------------------------------------------------------------------


def grow(*names: str) -> None:
    for name in names:
        write("x\n", name)


def test_links_devices_pipes_and_large_files_are_left_out(here: Path) -> None:
    grow("real/file")
    Path("to-file").symlink_to("real/file")
    Path("to-directory").symlink_to("real")
    Path("loop").symlink_to(".")
    os.mkfifo("fifo")
    write(b"x" * search.MAX_FILE_BYTES, "fits")
    write(b"x" * (search.MAX_FILE_BYTES + 1), "large")
    assert files() == ["fits", "real/file"]


@pytest.mark.parametrize(
    ("glob", "fitting"),
    [
        ("*.py", "a.py src/b.py src/deep/c.py test/d.py"),
        ("./*.py", "a.py"),
        ("/a.py", "a.py"),
        ("src/*.py", "src/b.py"),
        ("src/**/*.py", "src/b.py src/deep/c.py"),
        ("**/*.py", "a.py src/b.py src/deep/c.py test/d.py"),
        ("*.{py,md}", "a.py readme.md src/b.py src/deep/c.py test/d.py"),
        ("{src,test}/*.{py,md}", "src/b.py test/d.py"),
        ("src/", "src/b.py src/deep/c.py src/deep/e.txt"),
        ("[a-b].py", "a.py src/b.py"),
        ("[!a-b].py", "src/deep/c.py test/d.py"),
        ("?.txt", "src/deep/e.txt"),
        ("b.PY", ""),
        ("**", "a.py readme.md src/b.py src/deep/c.py src/deep/e.txt test/d.py"),
    ],
)
def test_a_glob_without_a_slash_is_for_names_and_with_one_for_paths(here: Path, glob: str, fitting: str) -> None:
    every = ["a.py", "readme.md", "src/b.py", "src/deep/c.py", "src/deep/e.txt", "test/d.py"]
    grow(*every)
    assert files(include=glob) == fitting.split()
    assert files(exclude=glob) == [name for name in every if name not in fitting.split()]


def test_globs_of_a_search_elsewhere_begin_there(here: Path) -> None:
    grow("src/a/x.py", "src/b/y.py")
    assert files(path="src", include="a/*.py") == ["src/a/x.py"]
    assert files(path="src", exclude="a") == ["src/b/y.py"]


def test_a_glob_that_begins_like_an_option_or_a_negation_is_one_all_the_same(here: Path) -> None:
    grow("!a", "-e", "a")
    assert files(include="!a") == files(exclude="[a-]*") == ["!a"]
    assert files(exclude="!a") == ["-e", "a"]
    assert files(include="-e") == ["-e"]


def test_ignored_files_are_searched_only_if_they_are_named_by_a_path(here: Path) -> None:
    grow(".git/HEAD", "logs/x", "a.log", "b/c.log", "excluded", "kept")
    write("logs/\n*.log\n", ".gitignore")
    write("excluded\n", ".git/info/exclude")
    assert files() == files(include="*") == [".gitignore", "kept"]
    assert files(path="logs") == ["logs/x"]
    assert files(path="a.log") == ["a.log"]
    assert files(include="b/*.log") == ["b/c.log"]


def test_the_rules_of_directories_above_hold_up_to_the_repository(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow("repo/.git/HEAD", "repo/a/b/x.log", "repo/a/b/x.txt", "repo/a/b/y")
    write("y\n", ".gitignore")
    write("*.log\n/a/b/x.txt\n", "repo/.gitignore")
    assert files(path="repo/a/b") == ["repo/a/b/y"]
    write("!x.log\n", "repo/a/.gitignore")
    assert files(path="repo/a/b") == ["repo/a/b/x.log", "repo/a/b/y"]


def test_without_a_repository_the_rules_beneath_hold(here: Path) -> None:
    grow("above/a/x", "above/a/y", "above/x")
    write("a/\n", ".gitignore")
    write("/x\n", "above/.gitignore")
    write("y\n", "above/a/.gitignore")
    assert files(path="above") == ["above/.gitignore", "above/a/.gitignore", "above/a/x"]


def test_a_repository_is_known_by_its_directory_or_file(here: Path) -> None:
    inner = here / "a/b"
    inner.mkdir(parents=True)
    assert search.enclosing_repository(str(inner)) is None
    Path(".git").mkdir()
    assert search.enclosing_repository(str(inner)) is None, "an empty .git is none"
    Path(".git/HEAD").touch()
    assert search.enclosing_repository(str(inner)) == str(here)
    Path("a/.git").write_text("gitdir: /elsewhere\n")
    assert search.enclosing_repository(str(inner)) == str(here / "a")


def test_a_repository_of_another_user_is_ignored(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(".git/HEAD", "ours/file")
    stat, foreign = os.stat, os.geteuid() + 1

    def owned(path: str) -> os.stat_result:
        found = stat(path)
        return found if str(path) == str(here / "ours") else os.stat_result((*found[:4], foreign, *found[5:]))

    monkeypatch.setattr(os, "stat", owned)
    assert search.enclosing_repository(str(here / "ours")) is None
    monkeypatch.setattr(os, "stat", lambda path: os.stat_result((*stat(path)[:4], foreign, *stat(path)[5:])))
    assert search.enclosing_repository(str(here / "ours")) == str(here)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_limit_is_reported_only_if_there_is_more(here: Path) -> None:
    write("x\n" * 3)
    assert find("x", max_results=3).count("\n") == 2
    notice = "[only the first 2 matches are shown; narrow the pattern or the path, or raise max_results]"
    assert find("x", max_results=2) == f"file:1: x\nfile:2: x\n{notice}"


def test_all_lines_together_are_capped(here: Path) -> None:
    write(("ä" * 400 + "\n") * 1000)
    text = find("ä", max_results=1000)
    assert search.MAX_TEXT - 1000 < len(text.encode()) < search.MAX_TEXT + 200
    assert "only the first" in text.splitlines()[-1]


def test_what_cannot_be_read_is_counted(here: Path) -> None:
    grow("a", *("d" * 250 + f"/{number}" for number in range(3)))
    deep = here / "/".join(["d" * 250] * 1)
    assert deep.is_dir()
    descriptor = os.open(deep, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("e" * 250, dir_fd=descriptor)
        inner = os.open("e" * 250, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    assert find("x", max_results=1).endswith("raise max_results]")
    assert find("x").endswith("[files and directories that could not be read: 1]")


def test_a_search_that_has_enough_ends_ripgrep(here: Path) -> None:
    write(f"#!/bin/sh\nwhile cat {here}/found; do :; done\n", "rg").chmod(0o755)
    write("".join(f"{json.dumps(message)}\n" for message in (BEGIN, MATCH, END)), "found")
    assert find("x", ripgrep=str(here / "rg"), max_results=2) == "a:1: x\na:1: x\n" + search.limit_notice(2)


BEGIN = {"type": "begin", "data": {"path": {"text": "./a"}}}
MATCH = {"type": "match", "data": {"lines": {"text": "x\n"}, "line_number": 1, "submatches": []}}
END = {"type": "end", "data": {"binary_offset": None}}


# --- the program and the tool -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({}, "ok\nfile:1: x\n"),
        ({"path": "missing"}, "error\nCannot search missing: No such file or directory.\n"),
        ({"path": "a\0b"}, "error\nCannot search a\0b: "),
        ({"pattern": "["}, "error\nThe pattern or a glob is not valid: unclosed character class. "),
        ({"ripgrep": "/nonexistent"}, "error\nCannot search .: No such file or directory.\n"),
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
    asked = (
        {"pattern": "x", "path": ".", "include": "", "exclude": "", "max_results": 50}
        | {"ripgrep": tool.ripgrep()}
        | changes
    )
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
    assert output.text == f"The search took longer than 60 s and was killed. {tool.SEARCH_HINT}"


def test_ripgrep_is_that_of_the_server_or_of_an_absolute_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool.ripgrep() == str(Path(sys.executable).with_name("rg"))
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: f"{here}/none")
    write("#!/bin/sh\n", "bin/rg").chmod(0o755)
    monkeypatch.setenv("PATH", "bin")
    assert tool.ripgrep() == ""
    monkeypatch.setenv("PATH", f"{here}/bin")
    assert tool.ripgrep() == f"{here}/bin/rg"


@pytest.mark.parametrize("use", [SearchTool, KeywordSearchTool])
def test_without_ripgrep_the_answer_says_what_to_install(
    use: type[SearchTool | KeywordSearchTool], call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "ripgrep", lambda: "")
    output = use().run({"pattern": "x", "query": "x", "search_terms": ["x"]}, call.context)
    assert output.is_error
    assert "ripgrep is not installed" in output.text
    assert not call.sandbox.launches


# --- Workers are programs of their own: they start fast, and need nothing that is installed ---


PACKAGE = "actors.adapters.tools.workers"

MODULES = sorted(Path(workers.__path__[0]).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_worker_imports_the_standard_library_and_its_neighbours(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
            assert not node.level
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert {name for name in foreign if name != PACKAGE and not name.startswith(f"{PACKAGE}.")} == set()


@pytest.mark.parametrize("name", ["search", "keyword_search", "read_file", "patch"])
def test_a_program_starts_without_what_is_installed(name: str) -> None:
    loaded = python(f"from {PACKAGE} import {name}")
    assert {each for each in loaded if each.partition(".")[0] not in sys.stdlib_module_names} <= {
        *("actors", "actors.adapters", "actors.adapters.tools"),
        *map(module_name, MODULES),
    }


def module_name(path: Path) -> str:
    """Return the dotted name of a worker's module."""
    parts = path.relative_to(workers.__path__[0]).with_suffix("").parts
    return ".".join((PACKAGE, *(part for part in parts if part != "__init__")))


def python(program: str) -> set[str]:
    """What is loaded when a process of its own has run it as a worker is."""
    root = str(Path(__file__).parents[3])
    text = f"import sys; sys.path.insert(0, {root!r}); {program}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.split()) - {"__main__"}
