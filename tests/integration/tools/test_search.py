"""search and keyword_search in real trees: any tree, as git ignores, killed when cancelled."""

import os
import random
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.adapters.sandbox.host import process_walk
from actors.adapters.sandbox.toolhost_sandbox import ToolHostSandbox
from actors.adapters.tools import program_launch as launching
from actors.adapters.tools.search import ripgrep
from actors.adapters.tools.workers import keyword_search
from actors.adapters.tools.workers.search import LineSearch
from actors.core.context import Mode
from actors.ports import RunningProcess, ToolOutput
from tests import leftovers
from tests.property.profiles import profile
from tests.support.sandbox_reports import sandbox_report
from tests.support.tool_harness import ToolHarness

BOUND = 30.0


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ToolHarness]:
    sandbox = ToolHostSandbox(sandbox_report())
    yield ToolHarness(sandbox, tmp_path.resolve())
    sandbox.close()


def git(*arguments: str, cwd: Path) -> bytes:
    env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(["git", *arguments], cwd=cwd, env=env, capture_output=True, check=True).stdout


# --- any tree ---------------------------------------------------------------------------------------------------------


def searched(pattern: str) -> str:
    asked = {"path": ".", "include": "", "exclude": "", "max_results": 1000, "ripgrep": ripgrep()}
    return LineSearch({"pattern": pattern} | asked).text()


def read_one_by_one(pattern: str) -> str:
    """What a search is to find here, in the simplest way."""
    expression = re.compile(pattern)
    found = []
    for file in sorted(Path().rglob("*"), key=lambda path: [os.fsencode(part) for part in path.parts]):
        data = file.read_bytes() if file.is_file() else b""
        if b"\0" in data:
            continue
        text = data.decode(errors="replace").removeprefix("\ufeff")
        for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
            if expression.search(line.removesuffix("\r")):
                found.append(f"{file}:{number}: {line.removesuffix(chr(13))}")
    return "\n".join(found or ["No matches found."])


NAMES = st.sampled_from(["a", "b.py", "-e", "--help", ".hidden", "ä ö", "c d", "*", "foo.txt", "-"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
WORDS = st.sampled_from(
    ["foo", "Foo", "FOO", "bar", "ba", "r", " ", "\n", "\n", "\r\n", "ä", "Ä", "\u212a", "k", "\u017f", "(", ".", "fo"]
)
CONTENTS = st.lists(WORDS, max_size=12).map(lambda words: "".join(words).encode()) | st.sampled_from(
    [b"\0foo\n", b"foo\n" + (b"x" * 400 + b"\n") * 21 + b"\0bar\n", b"\xef\xbb\xbffoo\n", b"b\xe4r foo"]
)
TREES = st.dictionaries(PATHS, CONTENTS, max_size=8)
PATTERNS = st.sampled_from(
    r"""foo (?i)foo ^foo foo$ fo+ foo|bar \bbar\b ba?r [fF]oo . ^$ ä (?i)ä \w+r k (?i)k foo\sbar \( (?i)BA|fo fo{2}
    foo.*bar $^ [^\W]oo (?:ba|fo)[ro] \x66oo o\b|(?:^b)""".split()
)


def grow(tree: dict[str, bytes]) -> None:
    """Here; what cannot be there because a file is above it is left out."""
    for name, content in tree.items():
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue


@profile(50)
@given(TREES, PATTERNS)
def test_any_tree_gives_what_reading_its_files_gives(tree: dict[str, bytes], pattern: str) -> None:
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        grow(tree)
        assert searched(pattern) == read_one_by_one(pattern)


@pytest.mark.parametrize("term", ["foo", "bar", "needle"])
def test_context_is_what_ripgrep_prints(term: str, tmp_path: Path) -> None:
    draw = random.Random(term)
    with chdir(tmp_path):
        for name in ("a/x", "a.txt", "b", "c/d/e", "c-"):
            lines = (draw.choice(["foo", "BAR", "Needle"]) if draw.random() < 0.02 else "other" for _ in range(200))
            grow({name: "".join(f"{line} {number}\n" for number, line in enumerate(lines)).encode()})
        command = [ripgrep(), "--no-config", "-n", "-i", "-C", "10", "--sort", "path", "--", term]
        printed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout.decode()
        found = keyword_search.found({"search_terms": [term], "ripgrep": ripgrep()})
    assert "--\n" in printed
    assert found["text"] == printed


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 files in many directories, a few of each kind that is left out."""
    root = tmp_path_factory.mktemp("large").resolve()
    draw = random.Random(7)
    words = "alpha beta gamma delta Task kiss größe {x} (y) needle".split()
    for number in range(1200):
        directory = root.joinpath(*(draw.choice("a .b node_modules c-d ä".split()) for _ in range(number % 4)))
        directory.mkdir(parents=True, exist_ok=True)
        lines = (" ".join(draw.choices(words[: 9 + (number % 50 == 0)], k=6)) for _ in range(number % 40))
        content = "\r\n".join(lines) if number % 7 else "\n".join(lines) + "\n"
        (directory / f"{number}.{draw.choice(['py', 'txt', 'log'])}").write_bytes(
            (b"\0" if number % 31 == 0 else b"") + content.encode("latin-1" if number % 29 == 0 else "utf-8")
        )
    (root / "a/.gitignore").write_text("*.log\n!1*.log\n")
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "a/fifo")
    return root


# --- as git ignores ---------------------------------------------------------------------------------------------------

PARTS = st.sampled_from([*"aab*?/!#-.", "**/", "/**", "[ab]", "[!a]", "[^a-b]", "\\*", "ab", "a.b", "*.b", "*/", "/*"])
LINES = [
    *[
        "a/**/b",
        "!b",
        "!*.b",
        "b/",
        "/a",
        "a b ",
        "a\\ ",
        "\\!a",
        "\\#a",
        "",
        "*",
        "/*",
        "*/",
        "!*/",
        "**",
        "[]a]",
        "[]-a]",
    ],
    *["a\r", "a\\", "[a", "a[", "!/a", "!/a/", "a/*", "!a/b", "a/**", "!a/b/", "#", "ä", "à", "*à"],
]


def agreed(line: str) -> bool:
    """Whether ripgrep and git read it alike."""
    return line.strip("\r !/") != ""


RULES = (st.lists(PARTS, min_size=1, max_size=5).map("".join) | st.sampled_from(LINES)).filter(agreed)
FILES = st.lists(
    st.lists(
        st.sampled_from(["a", "b", "ab", "a.b", "a b", "!a", "#a", "*", "a ", "\\", "[", "-"]), min_size=1, max_size=4
    ),
    min_size=1,
    max_size=10,
).map(lambda files: ["/".join(file) for file in files])
IGNORES = st.lists(RULES, min_size=1, max_size=4).map("\n".join)


@profile(30)
@example(["a/b.c", "a/b.txt", "b.c"], [("", "*\n!*/\n!*.c")])
@example(["a/b", "a/c"], [("", "*\n!/a")])
@example(["a/b", "a/c"], [("", "a/**\n!a/b")])
@example(["à", "b/à", "ä"], [("", "à\nä")])
@example(["a/a/b", "b/a/b", "b/c"], [("", "a/\n!b/"), ("b", "!a")])
@given(FILES, st.lists(st.tuples(st.sampled_from(["", "", "a", "b", "a/b", "ab"]), IGNORES), min_size=1, max_size=3))
def test_nested_rules_ignore_what_git_ignores(files: list[str], rules: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        git("init", "-q", "--template=", cwd=Path(directory))
        grow(dict.fromkeys(files, b"x"))
        for place, text in rules:
            if Path(place).is_dir():
                (Path(place) / ".gitignore").write_text(text or "\n")
        listed = git("ls-files", "-z", "-c", "-o", "--exclude-standard", cwd=Path(directory))
        found = re.findall(r"(?m)^(.*):1: ", searched(r"^"))
        assert sorted(map(os.fsencode, found)) == sorted(listed.split(b"\0")[:-1])


def test_a_hostile_repository_runs_nothing(harness: ToolHarness) -> None:
    git("init", "-q", cwd=harness.directory)
    (harness.directory / "needle").write_text("needle\n")
    ran = harness.directory / "ran"
    for name in ("core.fsmonitor", "core.hooksPath", "core.pager", "diff.external"):
        git("config", name, f"touch {ran} #", cwd=harness.directory)
    (harness.directory / ".ripgreprc").write_text(f"--pre=touch {ran}\n")
    assert harness.use("keyword_search", query="?", search_terms=["needle"]).text == "needle:1:needle\n"
    assert harness.use("search", pattern="needle").text == "needle:1: needle\n"
    assert not ran.exists()


# --- never for ever ---------------------------------------------------------------------------------------------------


def in_thread(harness: ToolHarness, name: str, **arguments: Any) -> tuple[threading.Thread, list[ToolOutput]]:
    outputs: list[ToolOutput] = []
    thread = threading.Thread(target=lambda: outputs.append(harness.use(name, **arguments)))
    thread.start()
    return thread, outputs


@pytest.mark.parametrize(
    ("name", "arguments"), [("search", {"pattern": "x"}), ("keyword_search", {"query": "?", "search_terms": ["x"]})]
)
class TestEndless:
    """A file that never ends."""

    @pytest.fixture(autouse=True)
    def bait(self, harness: ToolHarness) -> None:
        os.mkfifo(harness.directory / ".gitignore")

    def test_a_cancel_ends_it(self, harness: ToolHarness, name: str, arguments: dict[str, Any]) -> None:
        started = threading.Event()
        track = harness.track

        def tracked(process: RunningProcess) -> Callable[[], bool]:
            release = track(process)
            started.set()
            return release

        harness.track = tracked  # type: ignore[method-assign]
        thread, outputs = in_thread(harness, name, **arguments)
        assert started.wait(BOUND)
        harness.cancel.cancel()
        thread.join(BOUND)
        assert outputs == [ToolOutput("The search was cancelled.", is_error=True)]
        assert not any(process_walk.alive(pid) for pid in harness.reaped)

    def test_it_runs_out_of_time(
        self, harness: ToolHarness, name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(launching, "WORKER_SECONDS", 1)
        output = harness.use(name, **arguments)
        assert output.is_error
        assert output.text.startswith("The search took longer than 1 s and was killed. ")


def test_restricted_calls_find_the_same_or_are_refused(harness: ToolHarness, large: Path) -> None:
    harness.directory = large
    free = harness.use("search", pattern="needle")
    harness.mode = Mode.RESTRICTED
    if harness.sandbox.report.restriction_available:
        assert harness.use("search", pattern="needle") == free
    else:
        with pytest.raises(Exception, match="restricted mode is not available"):
            harness.use("search", pattern="needle")


def test_a_search_that_is_too_deep_or_too_wide_ends(harness: ToolHarness, request: pytest.FixtureRequest) -> None:
    deep = harness.directory / "d"
    request.addfinalizer(lambda: leftovers.clear(deep))
    deep.mkdir()
    descriptor = os.open(deep, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("dddd", dir_fd=descriptor)
        inner = os.open("dddd", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    (harness.directory / "x").write_text("needle\n")
    output = harness.use("search", pattern="needle")
    assert output.text == "x:1: needle\n[files and directories that could not be read: 1]\n"
