"""Files are opened beneath a directory and replaced as a whole, whatever others do meanwhile."""

import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.tools.patch import MAX_INPUT, MAX_PATCHES, Clipboards, PatchTool
from actors.adapters.tools.registry import StandardToolbox
from actors.adapters.tools.workers import patch_files
from actors.adapters.tools.workers.patch_files import MAX_FILE, PatchRefusedError, change
from actors.ports import InvalidToolInputError, ToolTransientError

Snapshot = dict[str, tuple[int, bytes | str | None]]


def snapshot(top: Path) -> Snapshot:
    """Everything beneath: mode and content, or what a link says."""

    def seen(path: Path) -> tuple[int, bytes | str | None]:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return mode, os.readlink(path)
        return mode, path.read_bytes() if stat.S_ISREG(mode) else None

    return {str(path.relative_to(top)): seen(path) for path in sorted(top.rglob("*"))}


def add_x(content: bytes | None) -> bytes:
    return (content or b"") + b"x"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory; beside it is "outside"."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "outside").mkdir()
    monkeypatch.chdir(work)
    before = set(os.listdir("/proc/self/fd"))
    yield work
    assert set(os.listdir("/proc/self/fd")) <= before, "no descriptor is left"


def refusal(path: str, protected: tuple[str, ...] = (), rewrite: Callable[[bytes | None], bytes] = add_x) -> str:
    with pytest.raises((PatchRefusedError, OSError)) as refused:
        change(path, list(protected), rewrite)
    return str(refused.value)


def test_a_file_is_replaced_with_its_mode(here: Path) -> None:
    file = here / "file"
    file.write_bytes(b"a")
    file.chmod(0o751)
    change("file", [], add_x)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"ax", 0o751)
    assert [path.name for path in here.iterdir()] == ["file"]


def test_a_new_file_has_the_mode_that_new_files_have(here: Path) -> None:
    change("file", [], add_x)
    (here / "other").touch()
    assert (here / "file").stat().st_mode == (here / "other").stat().st_mode


def test_owner_and_attributes_are_kept(here: Path) -> None:
    file = here / "file"
    file.write_bytes(b"a")
    if os.geteuid() == 0:
        os.chown(file, 12345, 23456)
    os.setxattr(file, "user.note", b"mine")
    before = file.stat()
    change("file", [], add_x)
    after = file.stat()
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert os.getxattr(file, "user.note") == b"mine"


def test_an_owner_that_cannot_be_kept_costs_the_set_uid_bits(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = here / "file"
    file.write_bytes(b"a")
    file.chmod(0o4755)

    def no(*arguments: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", no)
    found = patch_files.FileVersion(b"a", os.stat_result((0o104755, 1, 1, 1, 4242, 4242, 1, 0, 0, 0)), {})
    opened = os.open(file, os.O_WRONLY)
    patch_files.dress(opened, found)
    os.close(opened)
    assert stat.S_IMODE(file.stat().st_mode) == 0o755


def test_nothing_is_written_if_nothing_changes(here: Path) -> None:
    file = here / "file"
    file.write_bytes(b"a")
    before = file.stat()
    change("file", [], lambda content: content or b"")
    after = file.stat()  # but for when it was read
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_missing_directories_are_made(here: Path) -> None:
    change("a/b/./c/file", [], add_x)
    assert (here / "a/b/c/file").read_bytes() == b"x"
    change(str(here / "d/e/file"), [], add_x)
    assert (here / "d/e/file").read_bytes() == b"x"


def test_a_link_is_followed_and_stays_a_link(here: Path) -> None:
    (here / "a").mkdir()
    (here / "a/file").write_bytes(b"a")
    (here / "link").symlink_to("a/second")
    (here / "a/second").symlink_to("../a/./file")
    (here / "dir").symlink_to("a")
    for path in ("link", "dir/second", "dir/file"):
        change(path, [], add_x)
    assert (here / "a/file").read_bytes() == b"axxx"
    assert [os.readlink(here / name) for name in ("link", "a/second", "dir")] == ["a/second", "../a/./file", "a"]


def test_a_link_to_nothing_makes_what_it_says(here: Path) -> None:
    (here / "link").symlink_to("new/file")
    change("link", [], add_x)
    assert (here / "new/file").read_bytes() == b"x"
    assert (here / "link").is_symlink()


@pytest.mark.parametrize(
    "path", ["../outside/file", "out", "outdir/file", "outdir/new/file", "absolute", "a/../../outside/file", "dangling"]
)
def test_what_leads_out_of_the_working_directory_is_refused(here: Path, path: str) -> None:
    outside = here.parent / "outside"
    (outside / "file").write_bytes(b"a")
    (here / "a").mkdir()
    (here / "file").touch()
    for name, target in {
        "out": "../outside/file",
        "outdir": "../outside",
        "absolute": str(here / "file"),
        "dangling": "../outside/new",
    }.items():
        (here / name).symlink_to(target)
    before = snapshot(here.parent)
    assert "leads out of the working directory" in refusal(path)
    assert snapshot(here.parent) == before


def test_absolute_paths_go_anywhere(here: Path) -> None:
    outside = here.parent / "outside"
    (here / "out").symlink_to(outside / "file")
    (outside / "link").symlink_to("../work/back")
    change(str(here / "out"), [], add_x)
    change(str(outside / "link"), [], add_x)
    change(f"//{outside}/../outside/file", [], add_x)
    assert (outside / "file").read_bytes() == b"xx"
    assert (here / "back").read_bytes() == b"x"


@pytest.mark.parametrize(
    "path", ["data/file", "{}/data/file", "{}/link/file", "link/file", "data/new/file", "to", "data"]
)
def test_what_is_protected_is_refused_by_any_name(here: Path, path: str) -> None:
    data = here / "data"
    data.mkdir()
    (data / "file").write_bytes(b"a")
    (here / "link").symlink_to("data")
    (here / "to").symlink_to("data/file")
    before = snapshot(here)
    text = refusal(path.format(here), (str(data),))
    assert "belongs to the server" in text or "is a directory" in text
    assert snapshot(here) == before


def test_a_protected_file_is_refused_even_before_it_exists(here: Path) -> None:
    (here / "tokens").touch()
    protected = (str(here / "token"), str(here / "dir"))
    for path in ("token", "dir/x", "./token"):
        assert "belongs to the server" in refusal(path, protected)
    change("tokens", list(protected), add_x)


def test_a_protected_directory_is_known_by_more_than_its_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "data/deep").mkdir(parents=True)
    readlink = os.readlink

    def elsewhere(path: str, **arguments: Any) -> str:
        return "/mounted/elsewhere" if str(path).startswith("/proc/") else readlink(path, **arguments)

    monkeypatch.setattr(os, "readlink", elsewhere)
    assert "belongs to the server" in refusal("data/deep/file", (str(here / "data"),))


def test_what_is_no_regular_file_is_refused(here: Path) -> None:
    os.mkfifo(here / "fifo")
    (here / "dir").mkdir()
    assert "not a regular file" in refusal("fifo")
    assert "not a regular file" in refusal("/dev/null")
    for path in ("dir", ".", "..", "dir/", "dir/.."):
        assert "is a directory" in refusal(path)


def test_a_file_with_several_names_is_refused(here: Path) -> None:
    (here / "file").write_bytes(b"a")
    os.link(here / "file", here / "other")
    assert "2 hard links" in refusal("file")


def test_a_huge_file_is_refused_unread(here: Path) -> None:
    with (here / "file").open("wb") as file:
        file.truncate(MAX_FILE + 1)
    assert "larger than" in refusal("file")


def test_a_read_only_file_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").touch(0o444)
    monkeypatch.setattr(os, "access", lambda *arguments, **named: False)
    assert "read-only" in refusal("file")


def test_links_that_lead_nowhere_are_refused(here: Path) -> None:
    (here / "loop").symlink_to("loop")
    (here / "nowhere").symlink_to("nothing")
    (here / "file").touch()
    assert os.strerror(errno.ELOOP) in refusal("loop")
    assert os.strerror(errno.ELOOP) in refusal("loop/file")
    assert "broken symbolic link" in refusal("nowhere/file")
    assert os.strerror(errno.ENOTDIR) in refusal("file/file")
    assert os.strerror(errno.ENOENT) in refusal("missing/../file")


def test_concurrent_changes_are_kept(here: Path) -> None:
    file = here / "file"

    def other_writes(content: bytes | None) -> bytes:
        file.write_bytes(b"theirs")
        return b"ours"

    for _ in ("new", "known"):
        assert "another program" in refusal("file", rewrite=other_writes)
        assert snapshot(here).keys() == {"file"}
        assert file.read_bytes() == b"theirs"
    file.unlink()
    file.touch()

    def other_removes(content: bytes | None) -> bytes:
        file.unlink()
        return b"ours"

    assert "another program" in refusal("file", rewrite=other_removes)
    assert snapshot(here) == {}


def test_a_change_within_one_tick_of_the_clock_is_noticed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").write_bytes(b"a")
    monkeypatch.setattr(patch_files, "moment", lambda status: ())

    def other_writes(content: bytes | None) -> bytes:
        (here / "file").write_bytes(b"b")
        return b"ours"

    assert "another program" in refusal("file", rewrite=other_writes)
    assert (here / "file").read_bytes() == b"b"


def test_a_file_is_locked_from_reading_to_renaming(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").write_bytes(b"a")
    monkeypatch.setattr(patch_files, "LOCK_SECONDS", 0)

    def another_patch(content: bytes | None) -> bytes:
        assert "locked" in refusal("file")
        return b"ours"

    change("file", [], another_patch)
    change("file", [], add_x)
    assert (here / "file").read_bytes() == b"oursx"


def test_after_the_wait_the_file_that_took_its_place_is_patched(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = here / "file"
    file.write_bytes(b"old")
    lock, contents = patch_files.lock, iter((b"new", b"newer"))

    def lock_late(opened: int) -> int:
        for content in contents:
            (here / "beside").write_bytes(content)
            (here / "beside").rename(file)
            return lock(opened)
        return lock(opened)

    monkeypatch.setattr(patch_files, "lock", lock_late)
    change("file", [], add_x)
    assert file.read_bytes() == b"newerx"


def test_over_nfs_a_file_that_is_open_for_writing_is_locked(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").write_bytes(b"a")
    locked = []

    def flock(file: int, operation: int) -> None:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        locked.append(operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    change("file", [], add_x)
    assert (here / "file").read_bytes() == b"ax"
    assert locked == [fcntl.LOCK_EX | fcntl.LOCK_NB]


@pytest.mark.parametrize("numbers", [patch_files.RENAMEAT2, -1])
def test_what_appears_at_the_last_moment_is_not_replaced(
    here: Path, monkeypatch: pytest.MonkeyPatch, numbers: int
) -> None:
    monkeypatch.setattr(patch_files, "RENAMEAT2", numbers)
    rename = patch_files.rename_new
    change("file", [], add_x)

    def appears(directory: int, old: str, new: str) -> None:
        (here / new).write_bytes(b"theirs")
        rename(directory, old, new)

    monkeypatch.setattr(patch_files, "rename_new", appears)
    assert "another program" in refusal("other")
    assert {path.name: path.read_bytes() for path in here.iterdir()} == {"file": b"x", "other": b"theirs"}


def test_an_error_of_the_lock_or_of_the_patch_is_passed_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "file").write_bytes(b"a")

    def fail(*_: Any) -> bytes:
        raise OSError(errno.EBADF, "mine")

    assert "mine" in refusal("file", rewrite=fail)
    monkeypatch.setattr(patch_files, "lock", lambda file: errno.ENOLCK)
    assert os.strerror(errno.ENOLCK) in refusal("file")


class Saboteur:
    """Stands for `os`; before the call of this number something strikes."""

    def __init__(self, number: int, strike: Callable[[], None]) -> None:
        self.left = number
        self.strike = strike

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            closed = real(*arguments) if name == "close" else None
            if self.left == 0:
                self.strike()
            return closed if name == "close" else real(*arguments, **named)

        return call


CALLS = set("open close read write fsync fstat stat rename mkdir readlink access fchmod fchown dup setxattr".split())


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("path", ["file", "dir/link", "new/deep/file"])
def test_whatever_call_fails_everything_is_as_it_was(here: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (here / "file").write_bytes(b"a")
    (here / "dir").mkdir()
    (here / "dir/link").symlink_to("../file")
    target = (here / path).resolve()
    failures = 0
    for number in range(1, 1000):
        shutil.rmtree(here / "new", ignore_errors=True)
        before = snapshot(here)
        saboteur = Saboteur(number, no_space)
        with monkeypatch.context() as patched:
            patched.setattr(patch_files, "os", saboteur)
            try:
                change(path, [], add_x)
            except (OSError, PatchRefusedError):
                failures += 1
                assert snapshot(here) == before, number
            else:
                assert snapshot(here) != before, number
        if saboteur.left > 0:
            break
    assert failures > 15
    assert target.read_bytes().endswith(b"x")


def test_a_file_that_is_mounted_by_itself_is_refused_with_advice(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "a").write_text("1")

    def busy(*arguments: Any, **named: Any) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "rename", busy)
    with pytest.raises(PatchRefusedError, match=r"mount point, as in a container.*`cat > file`"):
        change("a", [], add_x)
    assert os.listdir(here) == ["a"]
    assert (here / "a").read_text() == "1"


# --- Directories that are opened beneath another ---


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
def test_what_is_beneath_is_opened(root: int, path: str, real: str) -> None:
    opened = patch_files.open_directory(root, path)
    try:
        assert os.path.samestat(os.fstat(opened), os.stat(real, dir_fd=root))
        assert not os.get_inheritable(opened)
    finally:
        os.close(opened)


@pytest.mark.parametrize(
    "path", ["..", "a/../..", "b/../../..", "a/out", "absolute", "a/magic", "/", "/etc", "a/up/..", "a/b/top/../root"]
)
def test_what_leads_out_is_refused(root: int, path: str) -> None:
    with pytest.raises(patch_files.PathEscapesError):
        patch_files.open_directory(root, path)


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
def test_what_is_no_directory_fails(root: int, path: str, error: int) -> None:
    with pytest.raises(OSError, match=os.strerror(error)) as failed:
        patch_files.open_directory(root, path)
    assert failed.value.errno == error


# --- patch as a tool: what its worker is told, and what becomes of the answer ---


PATCHES = [{"operation": "overwrite", "newText": "ä"}]


@pytest.fixture
def clipboards() -> Clipboards:
    return Clipboards()


def run(call: Any, clipboards: Clipboards, **arguments: Any) -> Any:
    return PatchTool(clipboards).run({"path": "a file", "patches": PATCHES} | arguments, call.context)


def answers(call: Any, **answer: Any) -> None:
    call.sandbox.ends(head=b"ok\n" + json.dumps({"clipboards": {}, "notes": [], "diff": ""} | answer).encode())


def kept(clipboards: Clipboards) -> dict[str, str]:
    return dict(clipboards.of("c-1"))


def test_the_worker_gets_everything_by_stdin(call: Any, clipboards: Clipboards) -> None:
    call.sandbox.protected = ("/data",)
    clipboards.store("c-1", clipboards.of("c-1"), {"c": "text"})
    answers(call)
    run(call, clipboards, path="-ä")
    (launch,) = call.sandbox.launches
    assert launch.argv[1:] == ()
    assert json.loads(launch.stdin) == {
        "path": "-ä",
        "patches": PATCHES,
        "clipboards": {"c": "text"},
        "protected": ["/data"],
    }


def test_the_answer_has_notes_for_the_model_and_a_diff_for_people(call: Any, clipboards: Clipboards) -> None:
    answers(call, notes=["<note>n</note>"], diff="--- ä\n")
    output = run(call, clipboards)
    assert output.text == "<patches_applied>all</patches_applied>\n<note>n</note>"
    assert json.loads(output.display) == {"path": "a file", "diff": "--- ä\n"}
    assert not output.is_error


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"path": "a\0b"}, "NUL"),
        ({"path": "~/a"}, "~ is not expanded"),
        ({"patches": [{"operation": "append_eof", "newText": "x" * MAX_INPUT}]}, "longer than 240 KiB"),
        ({"patches": [{"operation": "append_eof", "newText": "ä" * (MAX_INPUT // 2)}]}, "longer than 240 KiB"),
    ],
)
def test_what_cannot_be_done_is_not_started(call: Any, clipboards: Clipboards, arguments: Any, why: str) -> None:
    output = run(call, clipboards, **arguments)
    assert output.is_error
    assert why in output.text
    assert not call.sandbox.launches


def test_clipboards_are_kept_by_conversation_and_only_if_the_worker_succeeded(
    call: Any, clipboards: Clipboards
) -> None:
    answers(call, clipboards={"c": "1"})
    run(call, clipboards)
    answers(call, clipboards={"d": "2"})
    run(call, clipboards)
    assert kept(clipboards) == {"c": "1", "d": "2"}
    call.sandbox.ends(head=b"error\nno")
    assert run(call, clipboards).is_error
    call.sandbox.ends(killed=True)
    assert run(call, clipboards).is_error
    call.sandbox.ends(killed=False, exit_code=1)
    with pytest.raises(ToolTransientError):
        run(call, clipboards)
    assert kept(clipboards) == {"c": "1", "d": "2"}
    assert clipboards.of("c-2") == {}


def test_a_forgotten_conversation_keeps_nothing_not_even_from_a_running_call(clipboards: Clipboards) -> None:
    before = clipboards.of("c-1")
    clipboards.store("c-1", before, {"c": "1"})
    under_way = clipboards.of("c-1")
    clipboards.forget("c-1")
    clipboards.store("c-1", under_way, {"d": "2"})
    assert kept(clipboards) == {}
    clipboards.forget("c-3")


def test_the_toolbox_forgets_the_clipboards_of_a_deleted_conversation(call: Any) -> None:
    toolbox = StandardToolbox()
    tool = toolbox.get("patch")
    assert tool is not None
    arguments = {"path": "f", "patches": PATCHES}
    answers(call, clipboards={"c": "1"})
    tool.run(arguments, call.context)
    toolbox.forget("c-1")
    tool.run(arguments, call.context)
    told = [json.loads(launch.stdin)["clipboards"] for launch in call.sandbox.launches]
    assert told == [{}, {}]
    tool.run(arguments, call.context)
    assert json.loads(call.sandbox.launches[-1].stdin)["clipboards"] == {"c": "1"}


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"path": "f"}, '"patches" is a required property'),
        ({"path": "f", "patches": []}, "`patches`"),
        ({"path": "", "patches": PATCHES}, "`path`"),
        ({"path": "f", "patches": PATCHES * (MAX_PATCHES + 1)}, "`patches`"),
        ({"path": "f", "patches": [{"operation": "delete"}]}, '"delete" is not one of'),
        ({"path": "f", "patches": [{"operation": "replace", "old_text": "x"}]}, "'old_text' was unexpected"),
        ({"path": "f", "patches": [{"operation": "replace", "reindent": {"by": 1}}]}, "'by' was unexpected"),
    ],
)
def test_unfitting_input_is_refused(arguments: Any, hint: str) -> None:
    with pytest.raises(InvalidToolInputError) as refused:
        StandardToolbox().parse("patch", json.dumps(arguments))
    assert hint in str(refused.value)


def test_every_field_of_the_specification_is_taken() -> None:
    patch = {
        "operation": "replace",
        "oldText": "a",
        "newText": "b",
        "toClipboard": "c",
        "fromClipboard": "d",
        "reindent": {"strip": " ", "add": "\t"},
    }
    arguments = {"path": "f", "patches": [patch]}
    assert StandardToolbox().parse("patch", json.dumps(arguments)) == arguments
