"""`bedrock backup` and `bedrock restore`: copies of the database, on the machine that it is on."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from bedrock.cli.text.output import print_text
from bedrock.local_server import NotPrivate

from actors.ports import DataDirectoryBusy, StoreUnusable
from server.cli import USAGE, fail
from server.config import ConfigError, load
from server.local_access import close_to_others

if TYPE_CHECKING:
    from actors.store.backup import Copied

FAILED = 1

_file = click.argument("file", type=click.Path(path_type=Path))
_config = click.option("--config", type=click.Path(path_type=Path), help="The server's file with settings.")
_data_dir = click.option("--data-dir", type=str, help="Where conversations are kept. [~/.local/state/bedrock]")


@click.command()
@_file
@_config
@_data_dir
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def backup(file: Path, config: Path | None, data_dir: str | None, force: bool) -> None:
    """Copy the database into FILE.

    A server may use it meanwhile. The copy is that of one moment, and it is checked. Token, keys and settings are
    not in it.
    """
    from actors.store.backup import BackupFailed, TargetExists, back_up  # noqa: PLC0415 -- not for --help

    directory = _directory(data_dir, config)
    try:
        made = back_up(directory, file, replace=force)
    except (BackupFailed, StoreUnusable) as error:
        fail(f"no backup was made: {error}", USAGE if isinstance(error, TargetExists) else FAILED)
    print_text(f"backed up {_amount(made)} to {made.path}")


@click.command()
@_file
@_config
@_data_dir
@click.option("--force", is_flag=True, help="Also where there is a database; it is kept under another name.")
def restore(file: Path, config: Path | None, data_dir: str | None, force: bool) -> None:
    """Make a backup the database of a stopped server.

    What has happened since the backup is not in it. The next start brings all conversations to rest.
    """
    from actors.store.backup import BackupFailed  # noqa: PLC0415 -- not for --help
    from actors.store.backup import restore as put_back  # noqa: PLC0415

    directory = _directory(data_dir, config)
    try:
        made = put_back(file, directory, replace=force)
    except (BackupFailed, StoreUnusable) as error:
        fail(f"nothing was restored: {error}", FAILED)
    except DataDirectoryBusy as error:
        fail(f"nothing was restored: {error}: stop the server first", FAILED)
    print_text(f"restored {_amount(made)} to {made.path}")
    if made.kept:
        print_text(f"what was there is kept as {made.kept}")


def _directory(data_dir: str | None, config: Path | None) -> Path:
    """The data directory that `bedrock serve` would take; what others may have written is not touched."""
    try:
        found = load({} if data_dir is None else {"data_dir": data_dir}, file=config).data_dir
        with suppress(FileNotFoundError):  # which the command itself explains, or mends
            close_to_others(found)
    except ConfigError as error:
        fail(str(error), USAGE)
    except (NotPrivate, OSError) as error:
        fail(f"the data directory cannot be used: {error}", FAILED)
    return found


def _amount(made: Copied) -> str:
    what = "conversation" if made.conversations == 1 else "conversations"
    return f"{made.conversations} {what}, {made.size / 1_000_000:.1f} MB,"
