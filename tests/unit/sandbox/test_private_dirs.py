"""Private directories: made safely, removed whatever is in them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from actors.adapters.sandbox.private_dirs import PREFIX, PrivateDirectories, remove

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go in these tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_the_server_s_alone_and_goes_with_it(place: Path) -> None:
    root = PrivateDirectories()
    call = Path(root.make())
    assert [each.stat().st_mode & 0o777 for each in (Path(root.path), call)] == [0o700, 0o700]
    (call / "file").touch()
    root.close()
    root.close()
    assert list(place.iterdir()) == []


def test_what_a_killed_server_left_is_removed_and_a_living_one_s_stays(place: Path) -> None:
    script = (
        "import os; from actors.adapters.sandbox.private_dirs import PrivateDirectories; root = PrivateDirectories(); "
    )
    script += "print(root.make(), flush=True); os._exit(9)"
    left = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={"TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    assert left
    assert Path(left).is_dir()
    living = PrivateDirectories()
    assert not Path(left).parent.exists()
    other = PrivateDirectories()
    assert Path(living.path).is_dir()
    living.close()
    other.close()
    assert list(place.iterdir()) == []


def test_what_only_looks_like_ours_is_left_alone(place: Path) -> None:
    (place / f"{PREFIX}file").touch()
    (place / f"{PREFIX}open").mkdir(mode=0o755)
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / "precious").touch()
    (place / f"{PREFIX}link").symlink_to(place / "elsewhere")
    before = sorted(each.name for each in place.iterdir())
    PrivateDirectories().close()
    assert sorted(each.name for each in place.iterdir()) == before
    assert (place / "elsewhere" / "precious").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_files_of_other_users_are_not_touched(place: Path) -> None:
    theirs = place / f"{PREFIX}theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 65534, 65534)
    PrivateDirectories().close()
    assert theirs.is_dir()


def test_another_directory_in_its_place_is_not_used(place: Path) -> None:
    root = PrivateDirectories()
    planted = Path(root.path)
    planted.rename(place / "away")
    planted.mkdir()
    assert Path(root.make()).parent != planted
    root.close()
    assert {entry.name for entry in place.iterdir()} == {"away", planted.name}


def test_one_that_is_planted_before_the_end_is_left(place: Path) -> None:
    root = PrivateDirectories()
    planted = Path(root.path)
    planted.rename(place / "away")
    planted.mkdir()
    (planted / "file").touch()
    root.close()
    assert (planted / "file").exists()


def test_it_is_never_where_tools_may_not_look(place: Path) -> None:
    root = PrivateDirectories((str(place),))
    assert not Path(root.path).is_relative_to(place)
    root.close()


def test_hostile_content_is_removed(place: Path) -> None:
    precious = place / "precious"
    precious.mkdir()
    (precious / "file").touch()
    top = place / "top"
    top.mkdir()
    (top / "link").symlink_to(precious)
    (top / "a").mkdir()
    (top / "a" / "link").symlink_to(precious)
    (top / "full").mkdir()
    (top / "full" / "inner").mkdir()
    (top / "full" / "inner" / "file").touch()
    os.mkfifo(top / "full" / "fifo")
    for name in ("full/inner", "full"):
        (top / name).chmod(0)
    deep = os.open(top / "a", os.O_RDONLY)
    for _ in range(1_100):  # deeper than Python calls and than files are open, and longer than a path may be
        os.mkdir("deep", dir_fd=deep)
        inner = os.open("deep", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    remove(str(top))
    assert not top.exists()
    assert (precious / "file").exists()


def test_what_is_not_there_needs_no_removal(place: Path) -> None:
    remove(str(place / "nothing"))
