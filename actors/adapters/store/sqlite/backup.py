"""Backs up the database while a server writes to it, and restores backups.

Files are named NAME.part until they are complete, checked and synced, so that a killed program leaves no partial file
under the final name. The next backup to that name overwrites the .part file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

import peewee
from msgspec import Struct
from peewee import SqliteDatabase

from actors.adapters.store.integrity import check_all
from actors.adapters.store.sqlite.data_directory import DataDirectory, disk_is_full, is_want_of_room, refuse_moved
from actors.adapters.store.sqlite.engine import (
    BUSY_SECONDS,
    FILE,
    SqliteSession,
    decode_texts,
    migrate,
    raw,
    schema_of,
    sqlite3,
)

PART = ".part"  # the suffix of incomplete files


class BackupError(Exception):
    """A backup or restore failed and changed nothing; the message says why."""


@contextmanager
def part_of(target: Path) -> Generator[Path]:
    """Yield an empty file next to `target`, for the caller to fill and rename; it is removed if the block raises.

    The file is locked while it is written, so a file that is not locked was left by a killed process and can be
    overwritten. Raises BackupError if another process is writing the file, or OSError.
    """
    part = target.with_name(target.name + PART)
    held = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _lock(held, part)
        try:
            os.fchmod(held, 0o600)
            os.ftruncate(held, 0)
            _remove_logs_of(part)
            yield part
        except BaseException:
            _remove_logs_of(part)
            part.unlink(missing_ok=True)
            raise
    finally:
        os.close(held)


def _remove_logs_of(part: Path) -> None:
    """Remove log files that a killed process left, because SQLite would apply them to the new database."""
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{part}{suffix}").unlink(missing_ok=True)


def _lock(held: int, part: Path) -> None:
    """Lock the open file, and check that `part` still leads to it, since another process may have renamed it."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), part.stat()):
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    raise BackupError(f"another process is writing {part}")


MAX_DAMAGED = 8  # maximum number of damaged conversations (or other damaged objects) that a restore reports

PAGES = 1_024  # pages copied per step. Ctrl-C takes effect only between two steps.

# URI parameters for reading a database: _LIVE if other processes may write to it, _AT_REST if none do.
_LIVE, _AT_REST = "mode=ro", "immutable=1"


class TargetExistsError(BackupError):
    """The file to which a backup should be written already exists."""


class DamagedBackupError(BackupError):
    """Conversations in the backup fail verification, although the file as a whole is readable."""


class Copied(Struct, frozen=True):
    """The result of a backup or a restore."""

    path: Path
    conversations: int  # the number of conversations, including sub-agents and archived ones
    size: int  # the size of the database in bytes
    kept: Path | None = None  # the new path of the database that a restore replaced; None if it replaced none
    # Descriptions of damaged objects in the backup, which was restored anyway; () if there are none.
    damaged: tuple[str, ...] = ()


def back_up(directory: Path, target: Path, *, replace: bool = False) -> Copied:
    """Write a snapshot of the database to the file `target`, which only its owner can read.

    The copy is made in one read transaction, which does not block a server but lets the write-ahead log grow. Raises
    BackupError, TargetExistsError (unless `replace`), or StoreUnusableError for a newer or moved database.
    """
    refuse_moved(directory)
    source, target = directory / FILE, target.resolve()
    if not source.is_file():
        raise BackupError(f"no database in {directory}")
    if target.parent == directory.resolve():
        raise BackupError(f"{target} is inside the data directory; choose a path outside it")
    with _explain(f"{source} cannot be copied to {target}"), part_of(target) as part:
        _refuse_if_taken(target, replace=replace)
        with _explain_full_disk(directory), _reading(source, _LIVE) as database:
            schema_of(database, source)
        with _reading(source, _LIVE) as database:
            _copy(raw(database), part)
        conversations = _checked(part, source)
        _sync(part)
        _refuse_if_taken(target, replace=replace)
        part.replace(target)
        _sync(target.parent)
    return Copied(target, conversations, target.stat().st_size)


def restore(backup: Path, directory: Path, *, replace: bool = False, accept_damage: bool = False) -> Copied:
    """Verify `backup` by digests and hash chains, and copy it into the data directory as its database.

    With `replace`, an existing database is kept next to the new one, under a name with the date. Raises BackupError,
    DamagedBackupError (unless `accept_damage`), StoreUnusableError for a newer file or moved content, or
    DataDirectoryBusyError.
    """
    _refuse_if_no_backup(backup)
    with closing(DataDirectory(directory)), _explain(f"{backup} cannot be restored to {directory}"):
        refuse_moved(directory)
        target = directory / FILE
        there = target.exists()
        if there and not replace:
            raise BackupError(f"{directory} has a database; choose another directory, or use --force to replace it")
        with part_of(target) as part:
            shutil.copyfile(backup, part)
            conversations = _checked(part, backup)
            damaged = _damage(part)
            if damaged and not accept_damage:
                raise DamagedBackupError(f"{backup} is damaged: {'; '.join(damaged)}")
            _sync(part)
            kept = _keep_aside(target) if there else None
            part.replace(target)
            _sync(directory)
        return Copied(target, conversations, target.stat().st_size, kept, damaged)


@contextmanager
def _explain(what: str) -> Generator[None]:
    """Within the `with` block, convert system and SQLite errors to BackupError, whose message begins with `what`."""
    try:
        yield
    except OSError as error:
        raise BackupError(f"{what}: {(error.strerror or str(error)).lower()}") from error
    except (sqlite3.Error, peewee.PeeweeException) as error:
        raise BackupError(f"{what}: {error}") from error


@contextmanager
def _explain_full_disk(directory: Path) -> Generator[None]:
    """Convert errors caused by a full disk to BackupError; even opening a database for reading needs some space."""
    try:
        yield
    except (OSError, sqlite3.Error, peewee.PeeweeException) as error:
        if is_want_of_room(error, directory):
            raise BackupError(f"{directory / FILE} cannot be opened: {disk_is_full(directory)}") from error
        raise


def _refuse_if_taken(target: Path, *, replace: bool) -> None:
    if target.exists() and not target.is_file():
        raise BackupError(f"{target} is not a regular file")
    if target.exists() and not replace:
        raise TargetExistsError(f"{target} already exists; choose another name, or use --force to replace it")


def _refuse_if_no_backup(path: Path) -> None:
    """Raise BackupError if a file is not a complete backup. Does not create or change files."""
    if not path.is_file():
        raise BackupError(f"{path} is not a regular file")
    if path.name.endswith(PART):
        raise BackupError(f"{path} is the incomplete result of an interrupted backup or restore")
    log = Path(f"{path}-wal")
    if log.is_file() and log.stat().st_size:
        text = f"{path} is a database in use, with its latest changes in {log.name}"
        raise BackupError(f"{text}; make a backup with `bedrock backup --data-dir {path.parent} FILE`")
    with _explain(f"{path} cannot be read"), _reading(path, _AT_REST) as database:
        _schema(database, path)


def _reading(path: Path, how: str) -> closing[SqliteDatabase]:
    """Open a connection that cannot write and, unlike other connections, never checkpoints the log when it closes."""
    address = f"{path.absolute().as_uri()}?{how}"
    database = SqliteDatabase(address, uri=True, timeout=BUSY_SECONDS, thread_safe=False)
    database.connect()
    return closing(database)


def _copy(source: sqlite3.Connection, path: Path) -> None:
    """Copy a database in one read transaction; otherwise every commit on another connection would restart the copy."""
    with closing(sqlite3.connect(path, isolation_level=None)) as target:
        target.execute("PRAGMA journal_mode = OFF")
        target.execute("PRAGMA synchronous = OFF")
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        source.backup(target, pages=PAGES, progress=lambda *_: None)


def _checked(path: Path, origin: Path) -> int:
    """Check that a copied file is a readable Bedrock database; return its number of conversations."""
    with _explain(f"{origin} is damaged"), _reading(path, _AT_REST) as database:
        (finding,) = raw(database).execute("PRAGMA quick_check(1)").fetchone()
        if finding != "ok":
            raise BackupError(f"{origin} is damaged: {finding}")
        _schema(database, origin)
        (conversations,) = raw(database).execute("SELECT count(*) FROM conversations").fetchone()
    return int(conversations)


def _damage(part: Path) -> tuple[str, ...]:
    """Migrate a copied file, verify its rows, and describe the first MAX_DAMAGED damaged objects."""
    with closing(SqliteDatabase(str(part), pragmas={"journal_mode": "delete"}, thread_safe=False)) as database:
        migrate(database)
        decode_texts(raw(database), "replace")
        found = list(islice(check_all(SqliteSession(database)), MAX_DAMAGED + 1))
    damaged = [f"{what}: {finding}" for what, finding in found[:MAX_DAMAGED]]
    return (*damaged, "and more") if len(found) > MAX_DAMAGED else tuple(damaged)


def _schema(database: SqliteDatabase, origin: Path) -> None:
    if not schema_of(database, origin):
        raise BackupError(f"{origin} is not a Bedrock database")


def _keep_aside(database: Path) -> Path:
    """Give the database a second name, which remains when a new file takes the first one; return the second name."""
    _fold_log(database)
    now = time.time_ns() // 1_000_000
    date = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 1_000))
    kept = database.with_name(f"{FILE}.before-restore-{date}.{now % 1_000:03d}Z")
    os.link(database, kept)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.rename(f"{database}{suffix}", f"{kept}{suffix}")
    return kept


def _fold_log(database: Path) -> None:
    """Checkpoint the write-ahead log into the database if the log is intact and there is space; else do nothing."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
