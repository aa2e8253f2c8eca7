"""keyword_search: what is around its terms, and what is left out when that is too much."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from actors.tools import keyword_search as tool
from actors.tools.keyword_search import KeywordSearchTool
from actors.tools.workers import keyword_search as worker
from actors.tools.workers.keyword_search import KeywordSearch


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def find(*terms: str, max_entries: int = 1000) -> tuple[bool, str]:
    return KeywordSearch({"search_terms": list(terms), "ripgrep": ""}, max_entries).answer()


def numbered(count: int, **special: str) -> str:
    return "".join(special.get(f"l{number}", f"line {number}") + "\n" for number in range(1, count + 1))


def test_ten_lines_around_every_match_are_shown(here: Path) -> None:
    (here / "file").write_text(numbered(60, l20="Needle", l40="other", l55="NEEDLE"))
    found, text = find("needle", "other")
    lines = text.splitlines()
    assert found
    assert [line.split("-")[1] for line in lines if line[4] == "-"] == [
        str(number) for number in range(10, 61) if number not in {20, 40, 55}
    ]
    assert [line for line in lines if line[4] == ":"] == ["file:20:Needle", "file:40:other", "file:55:NEEDLE"]
    assert (lines[0], lines[10], lines[-1]) == ("file-10-line 10", "file:20:Needle", "file-60-line 60")


def test_blocks_that_do_not_touch_are_parted(here: Path) -> None:
    (here / "a").write_text(numbered(60, l1="x!", l40="x!"))
    (here / "b").write_text("x!\n")
    lines = find("x!")[1].splitlines()
    assert lines.count("--") == 2
    assert lines[10:13] == ["a-11-line 11", "--", "a-30-line 30"]
    assert lines[-2:] == ["--", "b:1:x!"]


def test_a_term_is_a_regular_expression_or_else_itself(here: Path) -> None:
    (here / "file").write_text("call(me)\n")
    assert find(r"c\w+l\(")[1] == "file:1:call(me)\n"
    assert find("CALL(")[1] == "file:1:call(me)\n"
    assert find("nothing") == (True, "No matches found.\n")


def test_the_repository_around_is_searched(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / ".git").mkdir()
    (here / ".git/HEAD").write_text("term\n")
    (here / "sub").mkdir()
    (here / "top").write_text("term\n")
    (here / "sub/file").write_text("term\n")
    monkeypatch.chdir(here / "sub")
    assert find("term")[1] == f"[paths are relative to {here.resolve()}]\nsub/file:1:term\n--\ntop:1:term\n"
    (here / ".git/HEAD").unlink()
    assert find("term")[1] == "file:1:term\n"


def test_a_term_that_finds_too_much_is_skipped(here: Path) -> None:
    (here / "many").write_text("common word\n" * 20_000)
    (here / "one").write_text("rare\n")
    found, text = find("common", "rare", "word")
    assert found
    assert text == "one:1:rare\n" + "".join(
        f"[skipped, as it finds more than 64 KiB: {term}]\n" for term in ("common", "word")
    )
    found, text = find("common", "word")
    assert not found
    assert "more specific" in text


@pytest.mark.parametrize(("extra", "kept"), [(0, True), (1, False)])
def test_a_term_may_find_just_as_much(here: Path, monkeypatch: pytest.MonkeyPatch, extra: int, kept: bool) -> None:
    monkeypatch.setattr(worker, "MAX_TERM_BYTES", 40)
    (here / "a").write_text("x" + "y" * (40 - len("a:1:x\n--\n") + extra) + "\n")
    assert find("x")[0] is kept


def test_the_least_important_terms_are_dropped(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("alpha", "beta", "gamma"):
        (here / name).write_text(f"{name} {'z' * 8}\n")
    both = "alpha:1:alpha zzzzzzzz\n--\nbeta:1:beta zzzzzzzz\n"
    dropped = "[left out, as all together find too much: {}]\n".format
    monkeypatch.setattr(worker, "MAX_ALL_BYTES", len(both))
    assert find("beta", "alpha", "gamma")[1] == both + dropped("gamma")
    monkeypatch.setattr(worker, "MAX_ALL_BYTES", len(both) - 1)
    assert find("beta", "alpha", "gamma")[1] == "beta:1:beta zzzzzzzz\n" + dropped("alpha") + dropped("gamma")


def test_what_is_found_is_cut_at_a_line(here: Path) -> None:
    (here / "file").write_text("term and more\n" * 1000)
    found, text = find("term")
    shown = text.splitlines()
    assert found
    assert shown[-1].startswith("[cut: ")
    assert {line.partition(":")[2].partition(":")[2] for line in shown[:-1]} == {"term and more"}
    assert 7_900 < sum(len(line) + 1 for line in shown[:-1]) <= 8_000


def test_it_stops_after_so_many_entries(here: Path) -> None:
    for name in "abc":
        (here / name).write_text("x\n")
    assert "[stopped after 2 entries: not all was searched]" in find("x", max_entries=2)[1]


def test_the_verdict_comes_first(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (here / "file").write_text("x\n")
    for term, answer in (("x", b"ok\nfile:1:x\n"), ("[[x]y", b"ok\nNo matches found.\n")):
        asked = json.dumps({"search_terms": [term], "ripgrep": ""}).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(asked)))
        worker.main([])
        sys.stdout.flush()
        assert capfdbinary.readouterr() == (answer, b"")


def test_the_worker_gets_the_terms(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "ripgrep", lambda: "/bin/rg")
    call.sandbox.ends(head=b"ok\nNo matches found.\n")
    assert not KeywordSearchTool().run({"query": "q", "search_terms": ["a", "b"]}, call.context).is_error
    (launch,) = call.sandbox.launches
    assert json.loads(launch.stdin) == {"search_terms": ["a", "b"], "ripgrep": "/bin/rg"}
