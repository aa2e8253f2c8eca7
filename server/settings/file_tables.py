"""Removes tables from the content of the settings file and parses them. Errors name the file and the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from server.settings.config_error import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from server.settings.setting_values import Parser

Made = TypeVar("Made")


def tables_named(table: dict[str, Any], name: str, origin: str) -> tuple[Mapping[str, Any], ...]:
    """Remove the tables [[NAME]] from the content of the settings file, and return them.

    Raises ConfigError if the content has something else than tables under this name.
    """
    tables = table.pop(name, [])
    if not (isinstance(tables, list) and all(isinstance(each, dict) for each in tables)):
        raise ConfigError(f"{origin}: {name}: must be tables, [[{name}]]")
    return tuple(tables)


def made_of_tables(table: dict[str, Any], name: str, origin: str, read: Callable[[Any], Made]) -> Made:
    """Remove the tables [name.NAME] from the content of the settings file, and return what `read` makes of them.

    Raises ConfigError if the content has something else than tables under this name, or if `read` raises ValueError.
    """
    tables = table.pop(name, {})
    if not (isinstance(tables, dict) and all(isinstance(each, dict) for each in tables.values())):
        raise ConfigError(f"{origin}: {name}: must be tables, [{name}.NAME]")
    return made_of_table(read, tables, name, origin)


def made_of_table(read: Callable[[Any], Made], table: Any, name: str, origin: str) -> Made:
    """Return what `read` makes of a table of the settings file.

    Raises ConfigError if `table` is no table, or if `read` raises ValueError.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{origin}: {name}: must be a table, [{name}]")
    try:
        return read(table)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from None


def parsed(parse: Parser, value: Any, origin: str) -> Any:
    """Return the parsed value of a setting. Raises ConfigError, which names `origin`, if the value is invalid."""
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from None
