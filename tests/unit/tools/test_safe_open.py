"""Directories that are opened beneath another: both ways agree, and neither is led out."""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.adapters.tools.workers import patch_files


def has_openat2() -> bool:
    root = os.open("/", patch_files.DIRECTORY)
    try:
        os.close(patch_files.by_openat2(root, "."))
    except patch_files.UnsupportedFileError:
        return False
    finally:
        os.close(root)
    return True


WAYS = [patch_files.by_walking, *([patch_files.by_openat2] if has_openat2() else [])]


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def way(request: pytest.FixtureRequest) -> Callable[[int, str], int]:
    chosen: Callable[[int, str], int] = request.param
    return chosen


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "outside").mkdir()
    inside = tmp_path / "root"
    (inside / "a" / "b").mkdir(parents=True)
    (inside / "file").touch()
    links = {
        "b": "a/b",
        "a/up": "..",
        "a/b/top": "../..",
        "a/same": "./b/",
        "a/out": "../../outside",
        "absolute": str(inside / "a"),
        "loop": "loop",
        "dangling": "nowhere",
        "a/magic": "/proc/self/cwd",
        "chain": "b/top/a/same",
    }
    for name, target in links.items():
        (inside / name).symlink_to(target)
    opened = os.open(inside, patch_files.DIRECTORY)
    before = set(os.listdir("/proc/self/fd"))
    yield opened
    assert set(os.listdir("/proc/self/fd")) <= before, "no descriptor is left"
    os.close(opened)


def test_this_machine_has_openat2_if_its_kernel_should() -> None:
    major, minor = map(int, os.uname().release.split(".")[:2])
    assert has_openat2() or (major, minor) < (5, 6), "openat2 is refused here: only the other way would be tested"


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("", "."),
        (".", "."),
        ("a", "a"),
        ("a//b/", "a/b"),
        ("a/../a/./b/..", "a"),
        ("b", "a/b"),
        ("b/..", "a"),
        ("a/up/a/b/top", "."),
        ("a/same", "a/b"),
        ("chain", "a/b"),
    ],
)
def test_what_is_beneath_is_opened(way: Callable[[int, str], int], root: int, path: str, real: str) -> None:
    opened = way(root, path)
    try:
        assert os.path.samestat(os.fstat(opened), os.stat(real, dir_fd=root))
        assert not os.get_inheritable(opened)
    finally:
        os.close(opened)


@pytest.mark.parametrize(
    "path", ["..", "a/../..", "b/../../..", "a/out", "absolute", "a/magic", "/", "/etc", "a/up/..", "a/b/top/../root"]
)
def test_what_leads_out_is_refused(way: Callable[[int, str], int], root: int, path: str) -> None:
    with pytest.raises(patch_files.PathEscapesError):
        way(root, path)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("nothing", errno.ENOENT),
        ("dangling", errno.ENOENT),
        ("a/nothing/b", errno.ENOENT),
        ("file", errno.ENOTDIR),
        ("file/x", errno.ENOTDIR),
        ("loop", errno.ELOOP),
        ("x" * 300, errno.ENAMETOOLONG),
    ],
)
def test_what_is_no_directory_fails(way: Callable[[int, str], int], root: int, path: str, error: int) -> None:
    with pytest.raises(OSError, match=os.strerror(error)) as failed:
        way(root, path)
    assert failed.value.errno == error


@pytest.mark.parametrize("refusal", [errno.ENOSYS, errno.EPERM])
def test_without_openat2_it_walks(root: int, refusal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_files, "_syscall", lambda *arguments: -1)
    monkeypatch.setattr(ctypes, "get_errno", lambda: refusal)
    os.close(patch_files.open_directory(root, "chain"))
    with pytest.raises(patch_files.PathEscapesError):
        patch_files.open_directory(root, "a/out")


def test_a_rename_on_the_way_is_tried_again_and_not_for_ever(root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[int] = []

    def busy(*arguments: object) -> int:
        answers.append(-1)
        return -1

    monkeypatch.setattr(patch_files, "_syscall", busy)
    monkeypatch.setattr(ctypes, "get_errno", lambda: errno.EAGAIN)
    with pytest.raises(BlockingIOError):
        patch_files.open_directory(root, "a")
    assert len(answers) == patch_files.ATTEMPTS
