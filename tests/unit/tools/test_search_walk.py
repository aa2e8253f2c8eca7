"""Which files are searched, and in which order."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.tools.workers.searching import gitignore as ignoring
from actors.adapters.tools.workers.searching import patterns
from actors.adapters.tools.workers.searching import walk as walking
from actors.adapters.tools.workers.searching.walk import Walk

if TYPE_CHECKING:
    from pathlib import Path


def grow(root: Path, *names: str) -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x\n")


def names(root: Path, **options: object) -> list[str]:
    return [file.name for file in Walk(os.path.realpath(root), **options).files()]  # type: ignore[arg-type]


def test_files_come_in_the_order_of_their_names_bytes(tmp_path: Path) -> None:
    grow(tmp_path, "b", "a/z", "a/b/c", "a.txt", "B", "ä", "a-b", ".hidden", ".config/x")
    assert names(tmp_path) == [".config/x", ".hidden", "B", "a/b/c", "a/z", "a-b", "a.txt", "b", "ä"]


def test_what_tools_build_is_not_entered_but_for_the_root(tmp_path: Path) -> None:
    pruned = ".git node_modules target .next __pycache__ vendor dist build .venv venv .tox".split()
    grow(tmp_path, *(f"{name}/x" for name in pruned), "sub/build/y", "sub/target", "buildings/z")
    assert names(tmp_path) == ["buildings/z", "sub/target"]
    assert names(tmp_path / "build") == ["x"]


def test_links_devices_pipes_and_empty_files_are_left_out(tmp_path: Path) -> None:
    grow(tmp_path, "real/file")
    (tmp_path / "empty").touch()
    (tmp_path / "to-file").symlink_to("real/file")
    (tmp_path / "to-directory").symlink_to("real")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "nowhere").symlink_to("missing")
    os.mkfifo(tmp_path / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.close()
    assert names(tmp_path) == ["real/file"]


def test_too_large_files_are_counted(tmp_path: Path) -> None:
    for name, size in (("fits", walking.MAX_FILE_BYTES), ("large", walking.MAX_FILE_BYTES + 1)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    walk = Walk(str(tmp_path.resolve()))
    assert [file.name for file in walk.files()] == ["fits"]
    assert walk.too_large == 1


def test_directories_that_cannot_be_read_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path, "a/x", "closed/x", "z")
    scandir = os.scandir

    def refuse(path: bytes) -> object:
        if path.endswith(b"/closed"):
            raise PermissionError
        return scandir(path)

    walk = Walk(str(tmp_path.resolve()))
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refuse)
        assert [file.name for file in walk.files()] == ["a/x", "z"]
    assert walk.unreadable == 1


@pytest.mark.parametrize(("entries", "found", "stopped"), [(5, 4, False), (4, 3, True), (2, 1, True), (0, 0, True)])
def test_it_stops_after_so_many_entries(tmp_path: Path, entries: int, found: int, stopped: bool) -> None:
    grow(tmp_path, "a", "d/1", "d/2", "d/3")
    walk = Walk(str(tmp_path.resolve()), max_entries=entries)
    assert (len(list(walk.files())), walk.stopped) == (found, stopped)


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
def test_a_glob_without_a_slash_is_for_names_and_with_one_for_paths(tmp_path: Path, glob: str, fitting: str) -> None:
    every = ["a.py", "readme.md", "src/b.py", "src/deep/c.py", "src/deep/e.txt", "test/d.py"]
    grow(tmp_path, *every)
    assert names(tmp_path, include=glob) == fitting.split()
    assert names(tmp_path, exclude=glob) == [name for name in every if name not in fitting.split()]


def test_an_excluded_directory_is_not_entered(tmp_path: Path) -> None:
    grow(tmp_path, "a/skip/x", "skip/y", "keep/z")
    assert names(tmp_path, exclude="skip") == ["keep/z"]
    assert names(tmp_path, exclude="a/skip") == ["keep/z", "skip/y"]
    assert names(tmp_path, include="x", exclude="x") == []


def test_a_question_mark_in_a_glob_is_a_character(tmp_path: Path) -> None:
    grow(tmp_path, "ä.py")
    assert names(tmp_path, include="?.py") == ["ä.py"]


@pytest.mark.parametrize("glob", ["[b-a]", "[a", "a\\", "/", "x/[a"])
def test_a_malformed_glob_fits_nothing(tmp_path: Path, glob: str) -> None:
    grow(tmp_path, "a", "x/a", "x/[a")
    assert names(tmp_path, include=glob) == []
    (tmp_path / ".gitignore").write_text(f"{glob}\n")
    assert names(tmp_path) == [".gitignore", "a", "x/[a", "x/a"]


def test_what_is_special_in_a_gitignore_only_is_a_letter_in_a_glob(tmp_path: Path) -> None:
    grow(tmp_path, "!a", "#a", "a")
    assert names(tmp_path, include="!a") == ["!a"]
    assert names(tmp_path, include="#a") == ["#a"]


NAME = st.text(st.sampled_from("ab.ä-*?["), min_size=1, max_size=4).filter(lambda name: name not in {".", ".."})
PATH = st.lists(NAME, min_size=1, max_size=3).map("/".join)


def escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[\\" else letter for letter in text)


@given(PATH, PATH)
def test_a_plain_glob_fits_itself_alone(path: str, other: str) -> None:
    assert patterns.selector("/" + escaped(path))(path)
    assert patterns.selector("/" + escaped(path))(other) == (path == other)
    name = other.rpartition("/")[2]
    assert patterns.selector(escaped(path.rpartition("/")[2]))(other) == (name == path.rpartition("/")[2])


@given(PATH, PATH)
def test_stars_between_slashes_stand_for_any_depth(above: str, below: str) -> None:
    end = below.rpartition("/")[2]
    assert patterns.selector(f"**/{escaped(end)}")(below)
    assert patterns.selector(f"{escaped(above)}/**/{escaped(end)}")(f"{above}/{below}")
    assert patterns.selector(f"{escaped(above)}/")(f"{above}/{below}")
    assert patterns.selector(f"{escaped(above)}/*")(f"{above}/{below}") == ("/" not in below)


@given(st.lists(st.text("ab,{}", max_size=6), max_size=6).map("".join))
def test_braces_without_end_are_refused_or_expanded(pattern: str) -> None:
    try:
        assert patterns.alternatives(pattern)
    except patterns.TooManyAlternativesError:
        assert pattern.count("{") > 2


def test_braces_that_stand_for_too_much_are_refused() -> None:
    with pytest.raises(patterns.TooManyAlternativesError):
        patterns.selector("{a,b}" * 30)


def test_the_rules_of_directories_above_hold_up_to_the_repository(tmp_path: Path) -> None:
    grow(tmp_path, "repo/.git/HEAD", "repo/a/b/x.log", "repo/a/b/x.txt", "repo/a/b/y")
    (tmp_path / ".gitignore").write_text("y\n")
    (tmp_path / "repo/.gitignore").write_text("*.log\n/a/b/x.txt\n")
    assert names(tmp_path / "repo/a/b") == ["y"]
    (tmp_path / "repo/a/.gitignore").write_text("!x.log\n")
    assert names(tmp_path / "repo/a/b") == ["x.log", "y"]


def test_without_a_repository_the_rules_beneath_hold(tmp_path: Path) -> None:
    grow(tmp_path, "a/x", "a/y", "x")
    (tmp_path / ".gitignore").write_text("/x\n")
    (tmp_path / "a/.gitignore").write_text("y\n")
    assert names(tmp_path) == [".gitignore", "a/.gitignore", "a/x"]


def test_an_ignored_directory_is_searched_when_it_is_named(tmp_path: Path) -> None:
    grow(tmp_path, ".git/HEAD", "logs/x")
    (tmp_path / ".gitignore").write_text("logs/\n")
    assert names(tmp_path) == [".gitignore"]
    assert names(tmp_path / "logs") == ["x"]


def test_a_gitignore_that_is_no_ordinary_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("x\n")
    assert ignoring.load(os.fsencode(tmp_path)) is None
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("rules", path)):
        path = tmp_path / ".gitignore"
        make(path)
        assert ignoring.load(os.fsencode(tmp_path)) is None
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / ".gitignore").write_bytes(b"x\n" * ignoring.MAX_BYTES)
    assert ignoring.load(os.fsencode(tmp_path)) is None


def test_a_repository_is_known_by_its_directory_or_file(tmp_path: Path) -> None:
    inner = tmp_path / "a/b"
    inner.mkdir(parents=True)
    here = os.fsencode(tmp_path.resolve())
    assert walking.enclosing_repository(here + b"/a/b") is None
    (tmp_path / ".git").mkdir()
    assert walking.enclosing_repository(here + b"/a/b") is None, "an empty .git is none"
    (tmp_path / ".git/HEAD").touch()
    assert walking.enclosing_repository(here + b"/a/b") == here
    (tmp_path / "a/.git").write_text("gitdir: /elsewhere\n")
    assert walking.enclosing_repository(here + b"/a/b") == here + b"/a"


def test_a_repository_of_another_user_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours").mkdir()
    grow(tmp_path, ".git/HEAD")
    here = os.fsencode(tmp_path.resolve())
    owners = {here: os.geteuid() + 1, here + b"/ours": os.geteuid()}
    monkeypatch.setattr(walking, "owner", owners.__getitem__)
    assert walking.enclosing_repository(here + b"/ours") is None
    owners[here + b"/ours"] = owners[here]
    assert walking.enclosing_repository(here + b"/ours") == here
