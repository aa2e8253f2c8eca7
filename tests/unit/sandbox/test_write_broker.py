"""What the broker of a workspace protects, by name and by what a directory holds."""

import errno
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.adapters.sandbox import server_files
from actors.adapters.sandbox.host import kernel, syscall_filter, writable_trees, write_broker
from actors.adapters.sandbox.server_files import Workspaces
from tests.unit.sandbox.test_kernel import ALLOW, ENOSYS, EPERM, TABLES, number_of, verdict

NAMES = writable_trees.Names([b".git", b".envrc", b"node_modules/.bin", b"a/b/c"])

PROTECTED = """
/w/.git /w/.git/hooks/x /w/sub/.git /w/.GIT/x /w/.Git /w/.g\u200cit /w/.\uff27it /w/.git\u0301 /w/.g\ufe0fit
/w/node_modules/.bin /w/x/Node_Modules/.BIN/tool /w/a/b/c /w/a/a/b/c/d /node_modules/.bin/x
""".split()
FREE = """
/w /w/git /w/.gitignore /w/x.git /w/.github/workflows /w/node_modules/bin /w/.bin /w/node_modules/x/.bin /w/a/b
/w/a/x/b/c /w/b/c /w/.envrc.example /w/\u00e9t\u00e9 /w/.env
""".split()


@pytest.mark.parametrize("path", PROTECTED)
def test_names_are_protected_whatever_their_case_and_whatever_cannot_be_seen_in_them(path: str) -> None:
    assert NAMES.cover(path.encode())


@pytest.mark.parametrize("path", FREE)
def test_other_names_are_not(path: str) -> None:
    assert not NAMES.cover(path.encode())


@given(st.lists(st.binary(min_size=1).filter(lambda name: b"/" not in name and b"\0" not in name), max_size=6))
def test_any_path_beneath_a_protected_one_is_protected_and_none_is_too_odd_to_judge(parts: list[bytes]) -> None:
    path = b"/" + b"/".join(parts)
    NAMES.cover(path)
    assert NAMES.cover(path.rstrip(b"/") + b"/.git")
    assert NAMES.cover(b"/.git" + path)


@pytest.mark.parametrize(
    ("entries", "holds"),
    [
        (["HEAD", "objects/", "refs/"], True),
        (["HEAD", "commondir"], True),
        (["HEAD", "objects/"], False),
        (["objects/", "refs/", "commondir"], False),
        ([], False),
    ],
)
def test_a_repository_is_known_by_what_it_holds(tmp_path: Path, entries: list[str], holds: bool) -> None:
    for name in entries:
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).touch()
    folder = os.fsencode(tmp_path)
    assert writable_trees.is_repository(folder) == holds
    assert bool(writable_trees.why_not(folder + b"/objects", [])) == holds


@pytest.mark.parametrize("last", ["HEAD", "objects", "refs", "commondir"])
def test_the_entry_that_would_make_a_repository_is_the_one_that_is_refused(tmp_path: Path, last: str) -> None:
    others = {"HEAD", "commondir"} if last == "commondir" else {"HEAD", "objects", "refs"}
    for name in others - {last}:
        (tmp_path / name).touch()
    folder = os.fsencode(tmp_path)
    assert not writable_trees.is_repository(folder)
    assert writable_trees.is_repository(folder, adding=last.lower())
    assert not writable_trees.is_repository(folder, adding="config")


def test_a_link_to_a_file_system_without_further_names_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    workspaces = Workspaces()
    assert workspaces.refusal(str(tmp_path / "link"), (), ()) == workspaces.refusal(str(tmp_path), (), ()) == ""
    assert workspaces.describe(str(tmp_path / "link"), "", ())["root"] == os.fsencode(tmp_path)


@pytest.mark.parametrize("kind", ["vfat", "cifs"])
def test_a_file_system_whose_files_have_further_names_is(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(server_files, "_other_names", lambda path: kind)
    assert f"a file system ({kind}) that gives files aliases" in Workspaces().refusal(str(tmp_path), (), ())


def test_git_is_always_among_the_names(tmp_path: Path) -> None:
    assert Workspaces(()).describe(str(tmp_path), "", ())["names"] == [b".git"]
    assert Workspaces(("x", ".git")).describe(str(tmp_path), "", ())["names"] == [b".git", b"x"]


@pytest.mark.parametrize(
    ("one", "other", "excluded"),
    [
        ("w", "w", True),
        ("w", "w/inner", True),
        ("w/inner", "w", True),
        ("w/inner", "w/beside", False),
        ("w", "v", False),
    ],
)
def test_brokers_whose_workspaces_overlap_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str, excluded: bool
) -> None:
    for name in ("w/inner", "w/beside", "v"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(writable_trees, "LOCK_SECONDS", 0)
    lock, another = (writable_trees.TreeLock(os.fsencode(tmp_path / name)) for name in (one, other))
    for _ in range(2):
        with lock, pytest.raises(BlockingIOError) if excluded else nullcontext(), another:
            assert lock.held
            assert another.held
        assert not lock.held
        assert not another.held
        with another:
            assert another.held
    for file in (*lock.places, *another.places):
        os.close(file)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["beside", "inner", "v", "w"], "nothing is left behind"


def test_what_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    lock = writable_trees.TreeLock(os.fsencode(tmp_path / "none"))
    with pytest.raises(PermissionError), lock:
        pytest.fail("it is locked")
    for file in lock.places:
        os.close(file)


# --- the filter -------------------------------------------------------------------------------------------------------

WRITING = os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_TMPFILE | os.O_WRONLY, 3
BROKERED = [
    *(("openat", (0, 0, flags), "ask") for flags in WRITING),
    *(("openat", (0, 0, flags), ALLOW) for flags in (0, os.O_DIRECTORY, os.O_CLOEXEC | os.O_NOFOLLOW)),
    ("openat2", (), ENOSYS),
    ("faccessat2", (0, 0, os.W_OK), "ask"),
    ("faccessat2", (0, 0, os.R_OK | os.X_OK), ALLOW),
    *(
        (name, (), "ask")
        for name in ("mkdirat", "unlinkat", "renameat2", "symlinkat", "truncate", "fchmodat", "fchmod")
    ),
    *((name, (), "ask") for name in ("fchownat", "fchown", "utimensat", "fchmodat2")),
    ("socket", (), EPERM),
    ("unshare", (), EPERM),
    *(
        (name, (), errno.errorcode[errno.EOPNOTSUPP])
        for name in ("setxattr", "fsetxattr", "removexattr", "setxattrat", "removexattrat")
    ),
    ("quotactl", (), EPERM),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), BROKERED)
@pytest.mark.parametrize("tier", "AB")
@pytest.mark.parametrize("machine", TABLES)
def test_the_broker_is_asked_about_what_changes_the_file_system(
    machine: str, tier: str, name: str, arguments: tuple[int, ...], expected: str
) -> None:
    assert verdict(machine, tier, number_of(machine, name), *arguments, brokered=True) == expected


@pytest.mark.parametrize("machine", TABLES)
def test_the_broker_knows_every_call_that_it_is_asked_about(machine: str) -> None:
    asked = {
        name
        for name, body in syscall_filter.reported().items()
        if syscall_filter.result(syscall_filter.NOTIFY)[0] in body
    }
    section = {"root": b"/x", "names": [], "denied": [], "private": b""}
    broker = write_broker.Broker(section, (-1, -1), 0)
    assert asked <= broker.calls().keys()
    broker.register(TABLES[machine] | kernel.EVERYWHERE)
    known = {name for name, _ in broker.handlers.values()}
    assert {name for name in asked if name in TABLES[machine] or name in kernel.EVERYWHERE} <= known


@pytest.mark.parametrize("tier", "AB")
def test_without_a_broker_nobody_is_asked(tier: str) -> None:
    assert syscall_filter.result(syscall_filter.NOTIFY)[0] not in syscall_filter.seccomp_program("x86_64", tier, 7)
