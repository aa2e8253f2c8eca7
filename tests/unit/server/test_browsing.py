"""What people are shown of the server's directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bedrock import v1

from actors.adapters.workspace import local
from actors.adapters.workspace.local import LocalWorkspace
from server.queries.listings import NotBrowsableError, browse_directory


def browse(path: str, *protected: Path) -> v1.BrowseDirectoryResponse:
    request = v1.BrowseDirectoryRequest(path=path)
    return browse_directory(LocalWorkspace(lambda: [str(path) for path in protected]), request)


def listed(path: Path, *protected: Path) -> list[tuple[str, bool]]:
    answer = browse(str(path), *protected)
    return [(entry.name, entry.directory) for entry in answer.entries]


def why_not(path: str, *protected: Path) -> str:
    with pytest.raises(NotBrowsableError) as refused:
        browse(path, *protected)
    ((field, text),) = refused.value.violations
    assert (field, refused.value.reason) == ("path", "WORKING_DIRECTORY_INVALID")
    return text


def test_directories_come_first_each_kind_by_name(tmp_path: Path) -> None:
    for name in ("zoo", "art"):
        (tmp_path / name).mkdir()
    for name in ("b.txt", ".hidden", "a.txt"):
        (tmp_path / name).touch()
    assert listed(tmp_path) == [("art", True), ("zoo", True), (".hidden", False), ("a.txt", False), ("b.txt", False)]


def test_the_path_is_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    answer = browse(f"{tmp_path}/link/../link")
    assert answer.path == str(tmp_path / "real")
    assert not answer.truncated


def test_links_are_what_they_lead_to_and_circles_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "nowhere").symlink_to("gone")
    assert listed(tmp_path) == [("folder", True), ("to-folder", True), ("nowhere", False), ("round", False)]


def test_what_belongs_to_the_server_is_not_listed_nor_shown(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "token").touch()
    (tmp_path / "way-in").symlink_to(own / "token")
    (tmp_path / "other").mkdir()
    assert listed(tmp_path, own) == [("other", True)]
    assert listed(tmp_path, own / "token") == [("other", True), ("own", True)]
    assert listed(own, own / "token") == []
    for path in (own, tmp_path / "other" / ".." / "own"):
        assert "the server keeps its own data" in why_not(str(path), own)


@pytest.mark.parametrize(
    ("path", "text"),
    [("relative", "must be an absolute path"), ("/no/such/place", "no such directory"), ("/etc/passwd", "not a dir")],
)
def test_other_paths_are_refused_in_plain_words(path: str, text: str) -> None:
    assert text in why_not(path)


def test_a_directory_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", forbidden)
    assert why_not(str(tmp_path)) == "the user that the server runs as may not read it"


def test_names_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "fine").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    assert listed(tmp_path) == [("fine", False)]


def test_many_entries_come_in_pages(tmp_path: Path) -> None:
    for name in "fabcde":
        (tmp_path / name).touch()
    (tmp_path / "z").mkdir()
    request = v1.BrowseDirectoryRequest(path=str(tmp_path), page_size=3)
    found: list[list[str]] = []
    while not found or request.page_token:
        answer = browse_directory(LocalWorkspace(list), request)
        found.append([entry.name for entry in answer.entries])
        assert not answer.truncated
        request.page_token = answer.next_page_token
    assert found == [["z", "a", "b"], ["c", "d", "e"], ["f"]]


def test_a_huge_directory_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "MAX_ENTRIES", 3)
    for number in range(20):
        (tmp_path / str(number)).touch()
    answer = browse(str(tmp_path))
    assert len(answer.entries) == 3
    assert answer.truncated


def test_without_a_path_it_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert browse("").path == str(tmp_path)
