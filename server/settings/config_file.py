"""Finds and reads the settings file. A file that other users can change is refused."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bedrock.local_server import NotPrivateError, read_believed, xdg_directory

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
        return tomllib.loads(read_believed(path, named=True).decode("utf-8-sig")), str(path)
    except NotPrivateError as error:  # the server runs commands from this file
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
