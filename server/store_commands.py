"""The commands on stored conversations: `bedrock backup`, `bedrock restore`, and `bedrock move` to PostgreSQL."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from bedrock._interrupts import INTERRUPTED, ending_at_once
from bedrock.cli.text.output import print_text
from bedrock.local_server import NotPrivateError

from actors.ports import DataDirectoryBusyError, StoreError, StoreUnusableError
from server.auth.tokens import PRINCIPALS_TOKENS, PrivateFile, TokenUnusableError
from server.cli import CONFIG, DATA_DIR, USAGE, fail, loaded
from server.local_endpoint import close_to_others
from server.settings.config import shown_database

if TYPE_CHECKING:
    from actors.adapters.store.sqlite.backup import Copied

FAILED = 1

_backup = click.argument("copy", metavar="FILE", type=click.Path(path_type=Path))


@click.command()
@_backup
@CONFIG
@DATA_DIR
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def backup(copy: Path, file: Path | None, data_dir: str | None, force: bool) -> None:
    """Back up the database to FILE.

    The server may be running. The copy is consistent and verified; it contains no token, keys or settings.
    """
    with ending_at_once():
        from actors.adapters.store.sqlite.backup import BackupError, TargetExistsError, back_up  # noqa: PLC0415 -- not for --help

    _refuse_elsewhere(data_dir, file)
    directory = data_directory(data_dir, file)
    try:
        made = back_up(directory, copy, replace=force)
    except (BackupError, StoreUnusableError) as error:
        fail(f"no backup was made: {error}", USAGE if isinstance(error, TargetExistsError) else FAILED)
    except KeyboardInterrupt:
        fail("interrupted: no backup was made", INTERRUPTED)
    print_text(f"backed up {_amount(made)} to {made.path}")


@click.command()
@_backup
@CONFIG
@DATA_DIR
@click.option("--force", is_flag=True, help="Replace an existing database; the old one is kept under another name.")
@click.option("--accept-damage", is_flag=True, help="Restore damaged conversations as they are, and list them.")
def restore(copy: Path, file: Path | None, data_dir: str | None, force: bool, accept_damage: bool) -> None:
    """Restore a backup as the database of a stopped server.

    Every row of the backup is verified first. Changes since the backup are lost. The next start of the server recovers
    all conversations: runs that were in progress are interrupted.
    """
    with ending_at_once():
        from actors.adapters.store.sqlite.backup import BackupError, DamagedBackupError  # noqa: PLC0415 -- not for --help
        from actors.adapters.store.sqlite.backup import restore as put_back  # noqa: PLC0415

    _refuse_elsewhere(data_dir, file)
    directory = data_directory(data_dir, file)
    try:
        made = put_back(copy, directory, replace=force, accept_damage=accept_damage)
    except DamagedBackupError as error:
        fail(f"nothing was restored: {error}; --accept-damage restores the damaged conversations as they are", FAILED)
    except (BackupError, StoreUnusableError) as error:
        fail(f"nothing was restored: {error}", FAILED)
    except DataDirectoryBusyError as error:
        fail(f"nothing was restored: {error}; stop the server first", FAILED)
    except KeyboardInterrupt:
        fail("interrupted: nothing was restored", INTERRUPTED)
    print_text(f"restored {_amount(made)} to {made.path}")
    if made.kept:
        print_text(f"the previous data is kept as {made.kept}")
    for damage in made.damaged:
        print_text(f"damaged: {damage}", err=True)


def data_directory(data_dir: str | None, file: Path | None) -> Path:
    """The data directory of `bedrock serve`. Prints an error and exits if it or the settings cannot be used."""
    found = loaded(file, data_dir=data_dir).data_dir
    try:
        with suppress(FileNotFoundError):  # backup reports a missing directory, restore creates it
            close_to_others(found)
    except (NotPrivateError, OSError) as error:
        fail(f"cannot use the data directory: {error}", FAILED)
    return found


def _refuse_elsewhere(data_dir: str | None, file: Path | None) -> None:
    """Unless `data_dir` is given, exit if the database is on PostgreSQL, which this command cannot copy."""
    database = loaded(file).database
    if database and data_dir is None:
        fail(
            f"the conversations are in {shown_database(database)}; copy them with PostgreSQL's own tools, such as "
            "pg_dump and pg_restore. For a database in a data directory, pass --data-dir",
            USAGE,
        )


def _amount(made: Copied) -> str:
    return f"{_counted(made.conversations)}, {made.size / 1_000_000:.1f} MB,"


def _counted(conversations: int) -> str:
    return f"{conversations} conversation{'s' if conversations != 1 else ''}"


@click.command()
@CONFIG
@DATA_DIR
@click.option("--database", type=str, help="URL of an empty PostgreSQL database. [the database setting]")
def move(file: Path | None, data_dir: str | None, database: str | None) -> None:
    """Copy all conversations from the data directory to PostgreSQL.

    Principals' tokens are copied, too. Stop the server first. Every copied row is compared; if one differs, the
    database stays empty.

    The data directory keeps its own token, which stays valid, and its database, which is no longer opened; a file next
    to it records where the conversations are now.
    """
    found = loaded(file, database=database)
    if not found.database:
        fail("no target database: pass --database postgresql://user@host:port/name, or set `database`", USAGE)
    if importlib.util.find_spec("psycopg") is None:
        fail(str(found.without_extra("database", "postgres")), USAGE)
    with ending_at_once():
        from actors.adapters.store.postgres.moving import move_to  # noqa: PLC0415 -- not for --help
    source = data_directory(data_dir, file)
    try:
        tokens = PrivateFile(source / PRINCIPALS_TOKENS).read()
        moved = move_to(found.database, source, {} if tokens is None else {PRINCIPALS_TOKENS: tokens})
    except DataDirectoryBusyError as error:
        fail(f"nothing was moved: {error}; stop the server first", FAILED)
    except (StoreError, TokenUnusableError) as error:
        fail(f"nothing was moved: {error}", FAILED)
    except KeyboardInterrupt:
        fail("interrupted: nothing was moved", INTERRUPTED)
    print_text(f"moved {_counted(moved.conversations)} to {moved.to}: {moved.rows} rows, all verified")
