"""Directories to work in: which are refused, and what is found in them, whoever filled them."""

import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.workspace import local as workspace
from actors.adapters.workspace.local import ALL_BYTES, FILE_BYTES, MAX_FILES, LocalWorkspace, is_inside
from actors.ports import Instructions, WorkspaceContext

BOUND = 30.0
"""Seconds after which something counts as hung."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a repository."""
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return folder


def look(folder: Path, *protected: Path) -> WorkspaceContext:
    """The surroundings, had within the bound."""
    seen: list[WorkspaceContext] = []
    place = LocalWorkspace(lambda: [str(path) for path in protected])
    thread = threading.Thread(target=lambda: seen.append(place.surroundings(str(folder))), daemon=True)
    thread.start()
    thread.join(BOUND)
    assert seen, "it hangs, or raised"
    return seen[0]


def texts(folder: Path, *protected: Path) -> list[tuple[str, str]]:
    return [(os.path.basename(each.path), each.text) for each in look(folder, *protected).instructions]


def only(folder: Path, *protected: Path) -> Instructions:
    (one,) = look(folder, *protected).instructions
    return one


# --- check ------------------------------------------------------------------------------------------------------------


def test_a_directory_is_given_by_its_real_path(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    assert LocalWorkspace().check(str(tmp_path / "link")) == os.path.realpath(real)
    assert LocalWorkspace().check(f"{real}/../real/.") == os.path.realpath(real)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "absolute"),
        ("relative/path", "absolute"),
        ("/nowhere/at/all", "directory not found"),
        ("/etc/passwd", "not a directory"),
        ("/tmp\0/x", "NUL"),
        ("/" + "x" * 5_000, "directory not found"),
    ],
)
def test_what_is_no_directory_is_refused_with_a_reason(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        LocalWorkspace().check(path)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/nope", "/nope"),
        ("/tmp/../nope", "/tmp/../nope"),
        ("/no\x1b[31m\u202e", r"/no\x1b[31m\u202e"),
        ("/" + "x" * 5_000 + "end", "/" + "x" * 99 + "…" + "x" * 97 + "end"),
    ],
)
def test_a_directory_that_is_missing_is_named_as_it_was_given(path: str, shown: str) -> None:
    with pytest.raises(ValueError, match="directory not found") as refused:
        LocalWorkspace().check(path)
    assert str(refused.value) == f"directory not found on the server: {shown}"


def test_a_circle_of_links_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match="directory not found"):
        LocalWorkspace().check(str(tmp_path / "a"))


def test_a_link_to_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    strange = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(strange)
    (tmp_path / "link").symlink_to(os.fsdecode(strange))
    with pytest.raises(ValueError, match="not valid UTF-8"):
        LocalWorkspace().check(str(tmp_path / "link"))


@pytest.mark.parametrize("inside", ["data", "data/attachments", "link", "data/../data"])
def test_the_data_directory_cannot_be_a_working_directory(tmp_path: Path, inside: str) -> None:
    (tmp_path / "data" / "attachments").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(ValueError, match="it contains the server's data"):
        LocalWorkspace(lambda: [str(tmp_path / "data")]).check(str(tmp_path / inside))


def test_beside_and_above_the_servers_data_one_may_work(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data-of-others").mkdir()
    place = LocalWorkspace(lambda: [str(tmp_path / "data")])
    for allowed in (tmp_path, tmp_path / "data-of-others"):
        assert place.check(str(allowed)) == str(allowed)


names = st.text("ab", min_size=1, max_size=2)


@given(st.lists(names, max_size=4), st.lists(names, max_size=4))
def test_inside_is_what_the_parts_of_the_paths_say(path: list[str], folder: list[str]) -> None:
    assert is_inside("/" + "/".join(path), "/" + "/".join(folder)) == (path[: len(folder)] == folder)


# --- instructions -----------------------------------------------------------------------------------------------------


def test_instructions_come_from_the_root_down_to_the_working_directory(root: Path) -> None:
    below = root / "a" / "b"
    below.mkdir(parents=True)
    (root.parent / "AGENTS.md").write_text("above the repository")
    (root / "AGENTS.md").write_text("root")
    (root / "a" / "CLAUDE.md").write_text("a")
    (below / "AGENTS.md").write_text("b")
    (below / "c").mkdir()
    (below / "c" / "AGENTS.md").write_text("below")
    assert texts(below) == [("AGENTS.md", "root"), ("CLAUDE.md", "a"), ("AGENTS.md", "b")]
    assert texts(root) == [("AGENTS.md", "root")]
    assert [each.path for each in look(root / "a").instructions] == [str(root / "AGENTS.md"), str(root / "a/CLAUDE.md")]


def test_outside_of_a_repository_only_the_working_directory_counts(tmp_path: Path) -> None:
    below = tmp_path / "a"
    below.mkdir()
    (tmp_path / "AGENTS.md").write_text("above")
    (below / "CLAUDE.md").write_text("here")
    assert look(below).git is None
    assert texts(below) == [("CLAUDE.md", "here")]


def test_the_first_name_wins_unless_it_says_nothing(root: Path) -> None:
    (root / "AGENTS.md").write_text("first")
    (root / "CLAUDE.md").write_text("second")
    assert texts(root) == [("AGENTS.md", "first")]
    (root / "AGENTS.md").write_text(" \n")
    assert [(each.text, each.left_out) for each in look(root).instructions] == [("second", ""), ("", "it is empty")]


def test_a_link_inside_the_repository_is_followed(root: Path) -> None:
    (root / "docs").mkdir()
    (root / "docs" / "rules.md").write_text("rules")
    (root / "AGENTS.md").symlink_to("docs/rules.md")
    assert texts(root) == [("AGENTS.md", "rules")]


def _link_out(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _folder_out(path: Path) -> None:
    (path.parent / "out").symlink_to("/etc")
    path.symlink_to("out/passwd")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def _circle(path: Path) -> None:
    path.symlink_to(path.name)


def _nowhere(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link out of the repository": (_link_out, "it leads out of the repository"),
    "a link through a folder outside": (_folder_out, "it leads out of the repository"),
    "a link to a device": (_device, "it leads out of the repository"),
    "a FIFO that nobody writes to": (os.mkfifo, "it is not a regular file"),
    "a directory": (Path.mkdir, "it is not a regular file"),
    "a socket": (_unix_socket, "it is not a regular file"),
    "a circle": (_circle, "it cannot be read"),
    "a link to nowhere": (_nowhere, "it leads out of the repository"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_hostile_is_named_and_not_read(root: Path, kind: str) -> None:
    make, why = HOSTILE[kind]
    make(root / "AGENTS.md")
    one = only(root)
    assert (one.text, one.left_out) == ("", why)
    (root / "CLAUDE.md").write_text("instead")
    assert [each.text for each in look(root).instructions] == ["instead", ""]


def test_what_belongs_to_the_server_is_not_read(root: Path) -> None:
    (root / "data").mkdir()
    (root / "data" / "token").write_text("secret")
    (root / "AGENTS.md").symlink_to("data/token")
    assert texts(root) == [("AGENTS.md", "secret")]
    assert only(root, root / "data").left_out == "tools cannot read it"
    assert only(root, root / "data" / "token").left_out == "tools cannot read it"


def test_a_file_that_is_exchanged_meanwhile_does_not_leak(root: Path) -> None:
    """The name is a link that another thread turns back and forth: what is read is always the file inside."""
    (root / "inside").write_text("inside")
    secret = root.parent / "secret"
    secret.write_text("secret")
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for target in (secret, root / "inside"):
                (root / "next").symlink_to(target)
                os.rename(root / "next", root / "AGENTS.md")

    (root / "AGENTS.md").symlink_to("inside")
    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        seen = {each.text or each.left_out for _ in range(500) for each in look(root).instructions}
    finally:
        stop.set()
        thread.join()
    assert seen <= {"inside", "it leads out of the repository"}


def test_a_huge_file_is_cut_and_says_so(root: Path) -> None:
    with open(root / "AGENTS.md", "wb") as file:
        file.write(b"a" * FILE_BYTES)
        file.truncate(1 << 40)
    one = only(root)
    assert one.text == "a" * FILE_BYTES
    assert (one.shown_bytes, one.cut_bytes) == (FILE_BYTES, (1 << 40) - FILE_BYTES)


def test_no_character_is_cut_in_two(root: Path) -> None:
    (root / "AGENTS.md").write_text("a" + "€" * FILE_BYTES)
    text = only(root).text
    assert set(text) == {"a", "€"}
    assert FILE_BYTES - 3 < len(text.encode()) <= FILE_BYTES


@pytest.mark.parametrize(
    "data",
    ["Use tabs.\n".encode(encoding) for encoding in ("utf-16", "utf-16-be", "utf-32")]
    + ["Отступы — табуляцией.".encode("cp1251"), b"\x7fELF\x02\x01\x01\0\0"],
    ids=["utf-16", "utf-16 without a mark", "utf-32", "cp1251", "program"],
)
def test_a_file_in_another_encoding_and_one_that_is_no_text_is_left_out(root: Path, data: bytes) -> None:
    (root / "AGENTS.md").write_bytes(data)
    (root / "CLAUDE.md").write_text("second")
    seen = [(each.text, each.left_out) for each in look(root).instructions]
    assert seen == [("second", ""), ("", "it is not UTF-8 text")]


def test_a_few_characters_in_another_encoding_are_replaced(root: Path) -> None:
    (root / "AGENTS.md").write_bytes("Bitte Einrückungen mit Tabulatoren.".encode("latin-1"))
    assert only(root).text == "Bitte Einr\ufffdckungen mit Tabulatoren."


@given(data=st.binary(max_size=200))
def test_any_bytes_become_valid_text_without_nul(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "AGENTS.md").write_bytes(data)
    try:
        for one in look(folder).instructions:
            assert "\0" not in one.text
            assert one.text.encode().decode() == one.text
            assert (one.text == "") == bool(one.left_out)
    finally:
        shutil.rmtree(folder)


def test_all_files_together_are_capped_and_the_nearest_come_first(root: Path) -> None:
    folder = root
    (folder / "AGENTS.md").write_text("0" * FILE_BYTES)
    for depth in range(1, 4):
        folder = folder / "x"
        folder.mkdir()
        (folder / "AGENTS.md").write_text(str(depth) * (FILE_BYTES - 10))
    shown = [(each.text[:1], each.shown_bytes, each.cut_bytes) for each in look(folder).instructions]
    assert shown == [
        ("", 0, FILE_BYTES),
        ("1", 20, FILE_BYTES - 30),
        ("2", FILE_BYTES - 10, 0),
        ("3", FILE_BYTES - 10, 0),
    ]
    assert sum(each[1] for each in shown) == ALL_BYTES


def test_of_very_many_files_the_nearest_are_named(root: Path) -> None:
    folder = root
    for depth in range(MAX_FILES + 5):
        (folder / "AGENTS.md").write_text(str(depth))
        folder = folder / "x"
        folder.mkdir()
    seen = look(folder)
    assert [each.text for each in seen.instructions] == [str(depth) for depth in range(5, MAX_FILES + 5)]
    assert seen.unnamed == 5


def test_a_missing_directory_has_no_context(tmp_path: Path) -> None:
    assert look(tmp_path / "gone") == WorkspaceContext(str(tmp_path / "gone"))


def test_nothing_stays_open(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "AGENTS.md").write_text("text")
    os.mkfifo(root / "CLAUDE.md")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        assert workspace.LocalWorkspace().surroundings(str(root)).instructions
    assert len(os.listdir("/proc/self/fd")) <= before


# --- those of a principal ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["AGENTS.md", ".git"])
def test_a_link_to_the_files_of_others_does_not_tell_what_is_there(tmp_path: Path, name: str) -> None:
    own, others = tmp_path / "own", tmp_path / "others"
    own.mkdir()
    (others / "directory" / "HEAD").mkdir(parents=True)
    (others / "file").write_text("text")
    os.mkfifo(others / "pipe")
    seen = set[str]()
    for target in ("missing", "file", "directory", "pipe", "file/below"):
        (own / name).symlink_to(others / target)
        seen.add(repr(LocalWorkspace().surroundings(str(own), (str(own),))))
        (own / name).unlink()
    assert len(seen) == 1
