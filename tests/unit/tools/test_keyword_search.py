"""keyword_search: what is around its terms, and what is left out when that is too much."""

import io
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.adapters.tools import search as tool
from actors.adapters.tools.search import Findings, KeywordSearchTool, rendered, ripgrep
from actors.adapters.tools.workers import keyword_search as worker
from actors.adapters.tools.workers.keyword_search import OutputTooLargeError
from actors.ports import Purpose, SideQuery, SideQueryError, ToolTransientError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def find(*terms: str) -> str:
    return rendered(Findings(**worker.found({"search_terms": list(terms), "ripgrep": ripgrep()})))


def numbered(count: int, **special: str) -> str:
    return "".join(special.get(f"l{number}", f"line {number}") + "\n" for number in range(1, count + 1))


def test_ten_lines_around_every_match_are_shown(here: Path) -> None:
    (here / "file").write_text(numbered(60, l20="Needle", l40="other", l55="NEEDLE"))
    lines = find("needle", "other").splitlines()
    assert [line.split("-")[1] for line in lines if line[4] == "-"] == [
        str(number) for number in range(10, 61) if number not in {20, 40, 55}
    ]
    assert [line for line in lines if line[4] == ":"] == ["file:20:Needle", "file:40:other", "file:55:NEEDLE"]
    assert (lines[0], lines[10], lines[-1]) == ("file-10-line 10", "file:20:Needle", "file-60-line 60")


def test_blocks_that_do_not_touch_are_parted(here: Path) -> None:
    (here / "a").write_text(numbered(60, l1="x!", l40="x!"))
    (here / "b").write_text("x!\n")
    lines = find("x!").splitlines()
    assert lines.count("--") == 2
    assert lines[10:13] == ["a-11-line 11", "--", "a-30-line 30"]
    assert lines[-2:] == ["--", "b:1:x!"]


def test_a_term_is_a_regular_expression_or_else_itself(here: Path) -> None:
    (here / "file").write_text("call(me)\n")
    assert find(r"c\w+l\(") == "file:1:call(me)\n"
    assert find("CALL(") == "file:1:call(me)\n"
    assert find("nothing") == "No matches found.\n"


def test_the_repository_around_is_searched(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / ".git").mkdir()
    (here / ".git/HEAD").write_text("term\n")
    (here / "sub").mkdir()
    (here / "top").write_text("term\n")
    (here / "sub/file").write_text("term\n")
    monkeypatch.chdir(here / "sub")
    assert find("term") == f"[paths are relative to {here.resolve()}]\nsub/file:1:term\n--\ntop:1:term\n"
    (here / ".git/HEAD").unlink()
    assert find("term") == "file:1:term\n"


def test_a_term_that_finds_too_much_is_skipped(here: Path) -> None:
    (here / "many").write_text("common word\n" * 20_000)
    (here / "one").write_text("rare\n")
    assert find("common", "rare", "word") == "one:1:rare\n" + "".join(
        f"[skipped because it finds more than 64 KiB: {term}]\n" for term in ("common", "word")
    )
    with pytest.raises(OutputTooLargeError):
        find("common", "word")


@pytest.mark.parametrize(("extra", "kept"), [(0, True), (1, False)])
def test_a_term_may_find_just_as_much(here: Path, monkeypatch: pytest.MonkeyPatch, extra: int, kept: bool) -> None:
    monkeypatch.setattr(worker, "MAX_TERM_BYTES", 40)
    (here / "a").write_text("x" + "y" * (40 - len("a:1:x\n--\n") + extra) + "\n")
    with nullcontext() if kept else pytest.raises(OutputTooLargeError):
        find("x")


def test_the_least_important_terms_are_dropped(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("alpha", "beta", "gamma"):
        (here / name).write_text(f"{name} {'z' * 8}\n")
    both = "alpha:1:alpha zzzzzzzz\n--\nbeta:1:beta zzzzzzzz\n"
    dropped = "[omitted because the terms together find too much: {}]\n".format
    monkeypatch.setattr(worker, "MAX_ALL_BYTES", len(both))
    assert find("beta", "alpha", "gamma") == both + dropped("gamma")
    monkeypatch.setattr(worker, "MAX_ALL_BYTES", len(both) - 1)
    assert find("beta", "alpha", "gamma") == "beta:1:beta zzzzzzzz\n" + dropped("alpha") + dropped("gamma")


def test_what_is_found_is_cut_at_a_line(here: Path) -> None:
    (here / "file").write_text("term and more\n" * 1000)
    lines = find("term").splitlines()
    assert lines[-1].startswith("[cut: ")
    assert {line.partition(":")[2].partition(":")[2] for line in lines[:-1]} == {"term and more"}
    assert 7_900 < sum(len(line) + 1 for line in lines[:-1]) <= 8_000


def test_the_verdict_comes_first(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (here / "file").write_text("x\n")
    nothing = b'"remarks": [], "root": ""}'
    for term, answer in (("x", b'ok\n{"text": "file:1:x\\n", ' + nothing), ("[[x]y(", b'ok\n{"text": "", ' + nothing)):
        asked = json.dumps({"search_terms": [term], "ripgrep": ripgrep()}).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(asked)))
        worker.main([])
        sys.stdout.flush()
        assert capfdbinary.readouterr() == (answer, b"")


def test_the_worker_gets_the_terms(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "ripgrep", lambda: "/bin/rg")
    call.sandbox.ends(head=found(""))
    assert not KeywordSearchTool().run({"query": "q", "search_terms": ["a", "b"]}, call.context).is_error
    (launch,) = call.sandbox.launches
    assert json.loads(launch.stdin) == {"search_terms": ["a", "b"], "ripgrep": "/bin/rg"}


# --- what a small model picks -----------------------------------------------------------------------------------------

MUCH = "".join(f"file:{number}:a term\n" for number in range(1, 1001))


def found(text: str, *remarks: str) -> bytes:
    """What the worker prints."""
    return b"ok\n" + json.dumps({"text": text, "remarks": remarks, "root": ""}).encode()


def search(call: Any, answer: str | Exception, text: str = MUCH, *remarks: str) -> tuple[str, list[SideQuery]]:
    """What the model reads, and what the small model was asked."""
    asked: list[SideQuery] = []

    def ask(aside: SideQuery) -> str:
        asked.append(aside)
        if isinstance(answer, Exception):
            raise answer
        return answer

    call.sandbox.ends(head=found(text, *remarks))
    context = replace(call.context, make_side_query=ask)
    output = KeywordSearchTool().run({"query": "Where is it?", "search_terms": ["term"]}, context)
    assert not output.is_error
    return output.text, asked


def test_a_small_model_picks_what_matters(call: Any) -> None:
    text, (aside,) = search(call, "file:7:a term", MUCH, "files and directories that could not be read: 1")
    assert text.splitlines() == [
        "file:7:a term",
        f"[picked by a small model from {len(MUCH)} characters; read_file and search show the rest]",
        "[files and directories that could not be read: 1]",
    ]
    assert aside.purpose is Purpose.EXCERPTS
    assert aside.text == f"Question: Where is it?\n\nFound:\n{MUCH}"


def test_without_its_answer_the_beginning_is_shown(call: Any) -> None:
    text, _ = search(call, SideQueryError("it took too long"))
    *lines, cut = text.splitlines(keepends=True)
    assert 7_900 < len("".join(lines)) <= 8_000
    assert MUCH.startswith("".join(lines))
    assert (
        cut == f"[cut: {len(''.join(lines))} of {len(MUCH)} characters are shown; use fewer or more specific terms]\n"
    )


def test_what_it_picks_is_cut_likewise(call: Any) -> None:
    text, _ = search(call, "x" * 9_000)
    assert text.startswith("x" * 8_000 + "[cut: 8000 of 9001 characters")


@pytest.mark.parametrize("little", ["", "file:1:a term\n" * 100])
def test_it_is_not_asked_about_little(call: Any, little: str) -> None:
    text, asked = search(call, "never", little)
    assert (text, asked) == (little or "No matches found.\n", [])


def test_while_it_is_busy_the_tool_may_be_tried_again(call: Any) -> None:
    with pytest.raises(ToolTransientError):
        search(call, ToolTransientError("busy", begun=True))


def test_a_name_that_is_no_utf_8_arrives(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], call: Any
) -> None:
    (here / os.fsdecode(b"n\xff")).write_text("term\n")
    asked = json.dumps({"search_terms": ["term"], "ripgrep": ripgrep()}).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(asked)))
    worker.main([])
    sys.stdout.flush()
    call.sandbox.ends(head=capfdbinary.readouterr().out)
    output = KeywordSearchTool().run({"query": "q", "search_terms": ["term"]}, call.context)
    assert output.text == "n?:1:term\n"
