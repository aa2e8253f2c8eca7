"""Finds and reads the settings file. A file that other users can change is refused."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bedrock.local_server import xdg_directory

from actors.ports.settings.settings_checks import expanded
from server.settings.config_error import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def settings_file(chosen: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the settings file: `chosen`, else the one that BEDROCK_CONFIG names, else the default file if it exists.

    Returns None if there is none. Raises ConfigError if BEDROCK_CONFIG is no usable path.
    """
    if chosen is not None:
        return chosen
    if text := environ.get("BEDROCK_CONFIG"):
        try:
            return expanded(text)
        except ValueError as error:
            raise ConfigError(f"BEDROCK_CONFIG: {error}") from None
    root = xdg_directory("XDG_CONFIG_HOME", environ) or _home(environ) / ".config"
    usual = root / "bedrock" / "config.toml"
    return usual if usual.is_file() else None


def read_settings(path: Path | None) -> tuple[dict[str, Any], str]:
    """Return the content of the settings file, and its path for error messages; {} and "" for None.

    Raises ConfigError if the file cannot be read or parsed, or if other users own or can change it.
    """
    if path is None:
        return {}, ""
    try:
        with path.open("rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            return tomllib.load(file), str(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _check_owner(path: Path, found: os.stat_result) -> None:
    """Raise ConfigError if other users own or can change the settings file: the server runs commands from it."""
    user = os.geteuid()
    if found.st_uid not in (0, user):
        raise ConfigError(f"{path} belongs to user {found.st_uid}, and this is user {user}: use a file of your own")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"others may change {path}: chmod go-w {path}")


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
