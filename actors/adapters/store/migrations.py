"""Applies migrations: files NNNN_name.sql, modules NNNN_name.py with a function `up`, or both, the SQL first.

A migration is recorded by its name. Released migrations are never edited, because databases already contain their
results.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from playhouse.migrations import Migration, Runner  # type: ignore[import-untyped] # playhouse has no stubs

from actors.ports import StoreUnusableError


class _FileMigration(Migration):  # type: ignore[misc]
    __slots__ = ()

    def load(self) -> ModuleType:
        script = Path(self.path).with_suffix(".sql")

        def up(migrator: object, database: Any) -> None:
            for statement in statements_of(script):
                database.execute_sql(statement)
            if self.path.endswith(".py"):
                super(_FileMigration, self).load().up(migrator, database)

        module = ModuleType(self.name)
        module.up = up  # type: ignore[attr-defined]
        return module


class Migrations(Runner):  # type: ignore[misc]
    """The migrations in a directory, for one database."""

    def __init__(self, database: Any, directory: Path) -> None:
        super().__init__(database, str(directory))

    def migrations(self) -> list[Migration]:
        """The migrations in the directory, in order, each with the path of its module, if it has one."""
        paths = {path.stem: path for suffix in ("sql", "py") for path in Path(self.directory).glob(f"[0-9]*.{suffix}")}
        return sorted(_FileMigration(int(name.partition("_")[0]), name, str(paths[name]), None) for name in paths)

    def known(self, where: str) -> list[Migration]:
        """All migrations, applied or not. Raises StoreUnusableError, naming `where`, if an unknown one was applied."""
        found: list[Migration] = self.status()
        if unknown := [migration.name for migration in found if migration.path is None]:
            raise StoreUnusableError(f"{where} was written by a newer version: it has {', '.join(unknown)}")
        return found


def statements_of(script: Path) -> list[str]:
    """The statements in a file; [] if there is no file. A statement ends with a semicolon at the end of a line."""
    parts = script.read_text(encoding="utf-8").split(";\n") if script.exists() else []
    return [part for part in parts if part.strip()]
