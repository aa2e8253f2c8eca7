"""The command `bedrock move`, which copies the data directory's database to PostgreSQL while the server is stopped."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click
from bedrock._interrupts import INTERRUPTED, ending_at_once
from bedrock.cli.text.output import print_text

from actors.ports import DataDirectoryBusyError, StoreError
from server.auth.local_token import TokenUnusableError
from server.auth.private_file import PrivateFile
from server.auth.tokens.principal_tokens import FILE
from server.backup import FAILED, data_directory
from server.cli import USAGE, fail
from server.settings.loading import load
from server.settings.setting_values import ConfigError


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="The server's file with settings.")
@click.option("--data-dir", type=str, help="Where conversations are kept. [~/.local/state/bedrock]")
@click.option("--database", type=str, help="The URL of an empty PostgreSQL database. [the setting database]")
def move(config: Path | None, data_dir: str | None, database: str | None) -> None:
    """Copy all conversations from the data directory to PostgreSQL.

    The tokens of principals are copied, too. The server has to be stopped. Every row is compared after it was copied;
    if one differs, the database stays empty.

    The data directory keeps its own token, which stays valid, and its database, which is no longer opened: a file
    beside it says where the conversations are.
    """
    try:
        found = load({} if database is None else {"database": database}, file=config)
    except ConfigError as error:
        fail(str(error), USAGE)
    if not found.database:
        fail("where to? Say --database postgresql://user@host:port/name, or set database", USAGE)
    if importlib.util.find_spec("psycopg") is None:
        fail(str(found.without_extra("database", "postgres")), USAGE)
    with ending_at_once():
        from actors.adapters.store.postgres.moving import move_to  # noqa: PLC0415 -- not for --help
    source = data_directory(data_dir, config)
    try:
        tokens = PrivateFile(source / FILE).read()
        moved = move_to(found.database, source, {} if tokens is None else {FILE: tokens})
    except DataDirectoryBusyError as error:
        fail(f"nothing was moved: {error}: stop the server first", FAILED)
    except (StoreError, TokenUnusableError) as error:
        fail(f"nothing was moved: {error}", FAILED)
    except KeyboardInterrupt:
        fail("interrupted: nothing was moved", INTERRUPTED)
    what = "conversation" if moved.conversations == 1 else "conversations"
    print_text(f"moved {moved.conversations} {what} to {moved.to}: {moved.rows} rows, each compared")
