"""Files that are removed or replaced under a store that uses them: nothing is acknowledged into nothing."""

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from actors.adapters.store.sqlite.backup import back_up, restore
from actors.adapters.store.sqlite.data_directory import MARKER
from actors.adapters.store.sqlite.engine import FILE
from actors.adapters.store.sqlite.store import PeeweeStore, open_store
from actors.ports import DataDirectoryBusyError, StoreUnavailableError, StoreUnusableError
from tests.integration.store.conftest import SECONDS
from tests.support.commit_builder import CommitBuilder


class Said(logging.Handler):
    """What is logged, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._new = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._new:
            self._lines.append(f"{record.levelname} {record.getMessage()}")
            self._new.notify_all()

    def wait_for(self, text: str) -> str:
        with self._new:
            assert self._new.wait_for(lambda: any(text in line for line in self._lines), SECONDS), self._lines
            return next(line for line in self._lines if text in line)

    def count(self, text: str) -> int:
        with self._new:
            return sum(text in line for line in self._lines)


@pytest.fixture
def said() -> Iterator[Said]:
    handler = Said()
    logger = logging.getLogger("actors.adapters.store")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def draft() -> CommitBuilder:
    return CommitBuilder("c1")


@pytest.fixture
def store(data: Path, draft: CommitBuilder, said: Said) -> Iterator[PeeweeStore]:
    with closing(open_store(data)) as opened:
        opened.commit(draft.create())
        yield opened


def refuses_everything(store: PeeweeStore) -> None:
    with pytest.raises(StoreUnavailableError):
        store.commit(CommitBuilder("c2").create())
    with pytest.raises(StoreUnavailableError):
        store.load("c1")
    with pytest.raises(StoreUnavailableError):
        store.delete("c1")


def test_a_database_that_is_removed_is_missed_by_the_next_commit(store: PeeweeStore, data: Path, said: Said) -> None:
    (data / FILE).unlink()
    refuses_everything(store)
    assert said.wait_for("was removed or replaced").startswith(f"CRITICAL {data / FILE} was removed or replaced")
    assert not (data / FILE).exists(), "nobody began a new one"


def test_it_is_missed_when_nothing_is_written_too(store: PeeweeStore, data: Path, said: Said) -> None:
    (data / FILE).unlink()
    said.wait_for("was removed or replaced")
    with pytest.raises(StoreUnavailableError):
        store.load("c1")
    assert said.count("was removed or replaced while") == 1


def test_what_is_committed_into_nothing_is_not_acknowledged(data: Path, said: Said) -> None:
    class Remover:
        def hit(self, point: str) -> None:
            if point == "store.before_commit":
                (data / FILE).unlink()

    with closing(open_store(data, Remover())) as store, pytest.raises(StoreUnavailableError):
        store.commit(CommitBuilder("c1").create())


def test_a_directory_that_is_moved_away_and_back_goes_on(
    store: PeeweeStore, data: Path, draft: CommitBuilder, said: Said
) -> None:
    data.rename(data.with_name("elsewhere"))
    refuses_everything(store)
    data.with_name("elsewhere").rename(data)
    said.wait_for("is back; the store resumes reads and writes")
    store.commit(draft.next())
    assert store.verify("c1") == ()


def test_a_database_that_takes_its_place_is_neither_read_nor_written(
    store: PeeweeStore, data: Path, tmp_path: Path, said: Said
) -> None:
    with closing(open_store(tmp_path / "other")) as other:
        other.commit(CommitBuilder("theirs").create())
        for name in (FILE, f"{FILE}-wal"):
            shutil.copyfile(tmp_path / "other" / name, tmp_path / name)
    for name in (FILE, f"{FILE}-wal"):
        (tmp_path / name).replace(data / name)
    refuses_everything(store)
    theirs = (data / FILE, data / f"{FILE}-wal")
    before = [path.read_bytes() for path in theirs]
    store.close()
    assert [path.read_bytes() == was for path, was in zip(theirs, before, strict=True)] == [True, True]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_without_its_write_ahead_log_what_was_acknowledged_is_in_the_database(
    store: PeeweeStore, draft: CommitBuilder, said: Said, *, replaced: bool, closed: bool
) -> None:
    data = Path(store._writer._database.database).parent
    tmp_path = data.parent
    store.commit(draft.next())
    log = data / f"{FILE}-wal"
    log.unlink()
    if replaced:
        log.write_bytes(b"")
    with pytest.raises(StoreUnavailableError):
        store.commit(draft.next())
    assert said.wait_for("was removed or replaced").startswith(f"CRITICAL {log} was")
    if closed:
        store.close()
    (tmp_path / "copy").mkdir()
    shutil.copyfile(data / FILE, tmp_path / "copy" / FILE)
    with closing(open_store(tmp_path / "copy")) as copy:
        assert copy.verify("c1") == ()
        assert len(copy.history("c1", 9)) >= 1


@pytest.mark.parametrize("replaced", [False, True])
def test_without_the_lock_file_no_second_server_starts_and_the_first_says_so(
    store: PeeweeStore, data: Path, draft: CommitBuilder, said: Said, replaced: bool
) -> None:
    (data / "lock").unlink()
    if replaced:
        (data / "lock").write_text("1\n")
    with pytest.raises(DataDirectoryBusyError):
        open_store(data)
    assert said.wait_for("lock file").startswith(f"CRITICAL the lock file {data / 'lock'} was removed or replaced")
    store.commit(draft.next())


def test_where_there_was_a_database_none_is_begun_unasked(data: Path, tmp_path: Path) -> None:
    with closing(open_store(data)) as store:
        store.commit(CommitBuilder("c1").create())
    copy = back_up(data, tmp_path / "copy.db").path
    (data / FILE).unlink()
    with pytest.raises(
        StoreUnusableError, match=rf"had a database, but {FILE} is now missing; .*, or remove .*{MARKER}"
    ):
        open_store(data)
    assert not (data / FILE).exists()
    restore(copy, data)
    with closing(open_store(data)) as store:
        assert store.load("c1") is not None
    (data / FILE).unlink()
    (data / MARKER).unlink()
    with closing(open_store(data)) as store:
        assert store.load("c1") is None


def test_a_directory_of_an_earlier_version_gets_its_marker(data: Path) -> None:
    open_store(data).close()
    (data / MARKER).unlink()
    open_store(data).close()
    assert (data / MARKER).exists()
