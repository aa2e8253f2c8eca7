"""Copies of the database: whole, of one moment, while others write; and nothing half-done whatever goes wrong."""

import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.store.sqlite import backup as module
from actors.adapters.store.sqlite.backup import BackupError, DamagedBackupError, back_up, part_of, restore
from actors.adapters.store.sqlite.engine import FILE, MIGRATIONS, migrate, raw, sqlite3
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import DataDirectoryBusyError, StoreUnusableError
from actors.ports.store import UNARCHIVED, Selection
from tests.support.commit_builder import CommitBuilder

SECONDS = 40.0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with the conversations c0 and c1, of a server that has stopped."""
    directory = tmp_path / "data"
    fill(directory, "c0", "c1")
    return directory


def fill(directory: Path, *conversations: str, transitions: int = 3) -> None:
    with closing(open_store(directory)) as store:
        for name in conversations:
            draft = CommitBuilder.stored(store, name)
            for _ in range(transitions):
                store.commit(draft.next())


def steps(directory: Path) -> dict[str, int]:
    """The conversations in a data directory, all of them proven, and how far each has come."""
    with closing(open_store(directory)) as store:
        return steps_of(store)


def steps_of(store: PeeweeStore) -> dict[str, int]:
    found = {record.id: record.step for record in store.list(Selection("local", UNARCHIVED), limit=100).records}
    assert {name: store.verify(name) for name in found} == dict.fromkeys(found, ())
    return found


def as_it_is(connection: sqlite3.Connection) -> sqlite3.Connection:
    return connection


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def damage(database: Path) -> None:
    """Overwrite the last pages of a file."""
    with database.open("r+b") as file:
        file.seek(-8_192, os.SEEK_END)
        file.write(b"\xa5" * 8_192)


def newer(database: Path) -> None:
    """As a later version leaves it."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("INSERT INTO schema_migration (name, applied) VALUES ('0999_later', '2030-01-01')")


# --- a copy of one moment -------------------------------------------------------------------------------------


def test_a_copy_has_everything_and_is_for_its_owner_only(data: Path, tmp_path: Path) -> None:
    made = back_up(data, tmp_path / "copy.db")
    assert made.path == tmp_path / "copy.db"
    assert made.conversations == 2
    assert made.size == made.path.stat().st_size > 0
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    assert names(tmp_path) == {"data", "copy.db"}
    restored = restore(made.path, tmp_path / "other")
    assert (restored.path, restored.conversations, restored.kept) == (tmp_path / "other" / FILE, 2, None)
    assert names(tmp_path / "other") == {FILE, "lock"}
    assert stat.S_IMODE(restored.path.stat().st_mode) == 0o600
    assert steps(tmp_path / "other") == steps(data)


def test_what_is_committed_while_it_is_copied_is_not_held_up_and_not_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = CommitBuilder("c0")
    with closing(open_store(tmp_path / "data")) as store:
        store.commit(draft.create())
        store.commit(draft.next(messages=50))
        before = steps_of(store)

        class Slow:
            """A connection whose copy goes on page by page, with a commit after each."""

            def __init__(self, connection: sqlite3.Connection) -> None:
                self.execute, self._connection = connection.execute, connection

            def backup(self, target: sqlite3.Connection, **_: Any) -> None:
                self._connection.backup(target, pages=1, progress=self.commit)

            def commit(self, *_: int) -> None:
                if draft.record.step < 30:
                    store.commit(draft.next())

        slow = iter([Slow])
        monkeypatch.setattr(module, "raw", lambda database: next(slow, as_it_is)(raw(database)))
        made = back_up(tmp_path / "data", tmp_path / "copy.db")
        assert draft.record.step == 30, "nothing was committed meanwhile"
    restore(made.path, tmp_path / "other")
    assert steps(tmp_path / "other") == before


def test_copies_of_a_database_that_others_write_have_all_that_was_acknowledged(tmp_path: Path) -> None:
    data = tmp_path / "data"
    writing = [sys.executable, "-m", "tests.integration.store.committer", str(data)]
    with subprocess.Popen(writing, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            done: dict[str, int] = {}
            for number in range(4):
                while len(done) < 3 or sum(done.values()) < 100 * number:
                    name, step = process.stdout.readline().split()
                    done[name.decode()] = int(step)
                made = back_up(data, tmp_path / f"{number}.db")
                restore(made.path, tmp_path / f"{number}")
                there = steps(tmp_path / f"{number}")
                assert all(there[name] >= step for name, step in done.items() if name != "ready")
        finally:
            process.kill()


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("taken.db", "already exists; choose another name, or use --force"),
        ("folder", "is not a regular file"),
        ("missing/copy.db", "no such file or directory"),
        ("data/copy.db", "is inside the data directory"),
        ("data/token", "is inside the data directory"),
    ],
)
def test_a_copy_is_not_written_where_it_does_not_belong(data: Path, tmp_path: Path, target: str, text: str) -> None:
    (tmp_path / "taken.db").write_text("precious")
    (tmp_path / "folder").mkdir()
    before = names(tmp_path) | names(data)
    with pytest.raises(BackupError, match=text):
        back_up(data, tmp_path / target)
    assert names(tmp_path) | names(data) == before
    assert (tmp_path / "taken.db").read_text() == "precious"


def test_a_name_that_is_taken_meanwhile_is_not_overwritten(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "copy.db"
    monkeypatch.setattr(module, "_sync", lambda _: target.write_text("precious"))
    with pytest.raises(BackupError, match="exists"):
        back_up(data, target)
    assert target.read_text() == "precious"


def test_two_processes_do_not_write_the_same_copy(data: Path, tmp_path: Path) -> None:
    with part_of(tmp_path / "copy.db") as part:
        part.write_text("of the other one")
        with pytest.raises(BackupError, match=f"another process is writing {part}"):
            back_up(data, tmp_path / "copy.db")
        assert part.read_text() == "of the other one"


def test_a_copy_that_was_finished_by_another_process_meanwhile_is_not_started_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, target = tmp_path / "copy.db.part", tmp_path / "copy.db"
    part.write_text("of the other one")
    monkeypatch.setattr(fcntl, "flock", lambda *_: part.rename(target))
    with pytest.raises(BackupError, match=f"another process is writing {part}"):
        back_up(data, target, replace=True)
    assert target.read_text() == "of the other one"


def test_a_directory_without_a_database_and_one_of_a_newer_version_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="no database in"):
        back_up(tmp_path, tmp_path / "copy.db")
    newer(data / FILE)
    with pytest.raises(StoreUnusableError, match="newer version: it has 0999_later"):
        back_up(data, tmp_path / "copy.db")
    assert names(tmp_path) == {"data"}


def test_a_damaged_database_replaces_no_backup(data: Path, tmp_path: Path) -> None:
    fill(data, "c2", transitions=30)
    target = back_up(data, tmp_path / "copy.db").path
    good = target.read_bytes()
    damage(data / FILE)
    with pytest.raises(BackupError, match="is damaged"):
        back_up(data, target, replace=True)
    assert target.read_bytes() == good
    assert names(tmp_path) == {"data", "copy.db"}


def test_a_backup_is_replaced_when_that_is_wanted(data: Path, tmp_path: Path) -> None:
    target = back_up(data, tmp_path / "copy.db").path
    fill(data, "c2")
    assert back_up(data, target, replace=True).conversations == 3


# --- restoring ------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Path:
    return back_up(data, tmp_path / "copy.db").path


def text_file(path: Path) -> None:
    path.write_text("This is no database.\n" * 1_000)


def somebody_elses(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE conversations (id TEXT)")


def in_use(path: Path) -> None:
    Path(f"{path}-wal").write_text("changes")


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (text_file, "cannot be read: file is not a database"),
        (somebody_elses, "is not a Bedrock database"),
        (newer, "newer version: it has 0999_later"),
        (in_use, "is a database in use"),
        (Path.unlink, "is not a regular file"),
    ],
)
def test_what_is_no_backup_is_refused_before_anything_is_made(
    copy: Path, tmp_path: Path, spoil: Callable[[Path], None], text: str
) -> None:
    spoil(copy)
    with pytest.raises((BackupError, StoreUnusableError), match=text):
        restore(copy, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_damaged_backup_is_refused_and_the_database_stays(data: Path, tmp_path: Path) -> None:
    fill(data, "c2", transitions=30)
    target, before = back_up(data, tmp_path / "copy.db").path, (data / FILE).read_bytes()
    damage(target)
    with pytest.raises(BackupError, match=r"copy\.db is damaged"):
        restore(target, data, replace=True)
    assert (data / FILE).read_bytes() == before
    assert names(data) <= {FILE, f"{FILE}-wal", f"{FILE}-shm", "initialized", "lock", "reserve"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "UPDATE messages SET content = replace(content, 'message', 'massage') WHERE conversation_id = 'c1'",
            "c1: message",
        ),
        ("UPDATE log SET at = at + 1 WHERE conversation_id = 'c0' AND step = 2", "c0: step 2 has been modified"),
        ("DELETE FROM log WHERE conversation_id = 'c1' AND step = 3", "c1: "),
        ("UPDATE conversations SET title = 'other' WHERE id = 'c0'", "c0: the conversation's row"),
    ],
)
def test_a_backup_whose_rows_are_not_what_was_written_is_restored_only_if_that_is_accepted(
    copy: Path, tmp_path: Path, change: str, said: str
) -> None:
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        assert connection.execute(change).rowcount > 0
    with pytest.raises(DamagedBackupError, match=f"is damaged: conversation {said}"):
        restore(copy, tmp_path / "other")
    assert FILE not in names(tmp_path / "other")
    made = restore(copy, tmp_path / "other", accept_damage=True)
    assert [said in damage for damage in made.damaged] == [True]
    assert names(tmp_path / "other") == {FILE, "lock"}


def test_a_remembered_call_that_is_not_what_was_written_is_damage_too(copy: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO commands (principal, request_id, body_hash, answer, at, digest) "
            "VALUES ('p', 'r', '', '', 1, 'x')"
        )
    with pytest.raises(DamagedBackupError, match="remembered calls of CreateConversation"):
        restore(copy, tmp_path / "other")


def test_a_backup_of_an_older_version_is_brought_up_to_date_and_checked(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = back_up(data, tmp_path / "copy.db").path
    later = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, later)
    (later / "0999_later.py").write_text("def up(_, db):\n    db.execute_sql('CREATE TABLE moods (x)')\n")
    monkeypatch.setattr(module, "migrate", lambda database: migrate(database, later))
    restored = restore(copy, tmp_path / "other").path
    assert names(tmp_path / "other") == {FILE, "lock"}
    with closing(sqlite3.connect(restored)) as connection:
        assert connection.execute("SELECT count(*) FROM moods").fetchone() == (0,)


def test_what_an_interrupted_backup_left_is_no_backup(copy: Path, tmp_path: Path) -> None:
    left = copy.rename(tmp_path / "copy.db.part")
    with pytest.raises(BackupError, match="incomplete result"):
        restore(left, tmp_path / "other")


def test_a_database_that_is_there_stays_unless_it_is_to_be_replaced(copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    fill(other, "mine")
    with pytest.raises(BackupError, match=r"has a database; .*--force"):
        restore(copy, other)
    assert steps(other) == {"mine": 4}
    kept = restore(copy, other, replace=True).kept
    assert kept is not None
    assert kept.name.startswith(f"{FILE}.before-restore-")
    assert steps(other).keys() == {"c0", "c1"}
    assert restore(kept, other, replace=True).kept not in {None, kept}
    assert steps(other) == {"mine": 4}


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The data directory of a server that was killed: its latest changes are in the write-ahead log."""
    fill(tmp_path / "running", "mine")
    with closing(open_store(tmp_path / "running")) as store:
        store.commit(CommitBuilder("latest").create())
        shutil.copytree(tmp_path / "running", tmp_path / "killed")
    return tmp_path / "killed"


def test_the_latest_changes_of_a_server_that_was_killed_are_kept_with_its_database(
    copy: Path, killed: Path, tmp_path: Path
) -> None:
    assert (killed / f"{FILE}-wal").stat().st_size
    kept = restore(copy, killed, replace=True).kept
    assert kept is not None
    restore(kept, tmp_path / "again")
    assert steps(tmp_path / "again").keys() == {"mine", "latest"}


def test_a_backup_of_a_server_that_was_killed_has_its_latest_changes(killed: Path, tmp_path: Path) -> None:
    restore(back_up(killed, tmp_path / "copy.db").path, tmp_path / "other")
    assert steps(tmp_path / "other").keys() == {"mine", "latest"}
    assert steps(killed).keys() == {"mine", "latest"}


def test_a_write_ahead_log_that_could_not_be_moved_into_its_database_stays_with_it(
    copy: Path, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_fold_log", lambda _: None)
    kept = restore(copy, killed, replace=True).kept
    assert kept is not None
    assert steps(killed).keys() == {"c0", "c1"}
    assert conversations_in(kept, tmp_path) == {"mine", "latest"}


def test_a_file_that_is_no_database_is_replaced_too(copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / FILE).write_text("no database")
    kept = restore(copy, other, replace=True).kept
    assert kept is not None
    assert kept.read_text() == "no database"
    assert steps(other).keys() == {"c0", "c1"}


def conversations_in(database: Path, folder: Path) -> set[str]:
    """The conversations of a database that has another name, with its write-ahead log."""
    (folder / "named").mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{database}{suffix}", folder / "named" / f"{FILE}{suffix}")
    return set(steps(folder / "named"))


@pytest.mark.parametrize("replace", [False, True])
def test_a_directory_that_a_server_holds_is_left_alone(copy: Path, data: Path, replace: bool) -> None:
    with closing(open_store(data)) as store:
        with pytest.raises(DataDirectoryBusyError):
            restore(copy, data, replace=replace)
        assert steps_of(store).keys() == {"c0", "c1"}


# --- killed in the middle -------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from actors.adapters.store.sqlite import backup
where, call, left = sys.argv[1], getattr(backup, sys.argv[2]), int(sys.argv[3])
home, _, name = where.rpartition(".")
owner = {"backup": backup, "Path": Path, "os": os}[home]
original = getattr(owner, name)

def killing(*given, **more):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*given, **more)

setattr(owner, name, killing)
call(Path(sys.argv[4]), Path(sys.argv[5]), replace=True)
"""

Moment = tuple[str, int]
"""A call, and the how manyth of it."""
UNCHECKED, UNNAMED, NAMED, KEPT = ("backup._checked", 1), ("Path.replace", 1), ("backup._sync", 2), ("os.link", 1)


@pytest.fixture
def kill() -> Callable[..., None]:
    """Runs a copy in a process that kills itself when it comes to a certain moment."""

    def run(moment: Moment, call: str, origin: Path, target: Path) -> None:
        arguments = [sys.executable, "-c", KILLED, moment[0], call, str(moment[1]), str(origin), str(target)]
        done = subprocess.run(arguments, timeout=SECONDS, check=False, capture_output=True, text=True)
        assert done.returncode == -9, done.stderr

    return run


@pytest.mark.parametrize("moment", [UNCHECKED, NAMED])
def test_a_backup_that_is_killed_leaves_the_one_before_or_a_whole_one(
    kill: Callable[..., None], data: Path, tmp_path: Path, moment: Moment
) -> None:
    target = back_up(data, tmp_path / "copy.db").path
    fill(data, "c2")
    kill(moment, "back_up", data, target)
    assert names(tmp_path) <= {"data", "copy.db", "copy.db.part"}
    restore(target, tmp_path / "other")
    assert len(steps(tmp_path / "other")) in {2, 3}
    assert back_up(data, target, replace=True).conversations == 3
    assert names(tmp_path) == {"data", "copy.db", "other"}


@pytest.mark.parametrize("moment", [KEPT, UNNAMED])
def test_a_restore_that_is_killed_leaves_a_whole_database(
    kill: Callable[..., None], copy: Path, tmp_path: Path, moment: Moment
) -> None:
    other = tmp_path / "other"
    fill(other, "mine")
    kill(moment, "restore", copy, other)
    assert steps(other).keys() in ({"mine"}, {"c0", "c1"})
    restore(copy, other, replace=True)
    assert f"{FILE}.part" not in names(other)
    assert steps(other).keys() == {"c0", "c1"}
