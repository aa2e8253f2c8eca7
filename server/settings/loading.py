"""Reads the server's settings from flags, BEDROCK_* variables, a TOML file and defaults; the first of these wins."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from bedrock.local_server import NotPrivateError, absolute_path, data_directory, read_believed, xdg_directory
from msgspec import inspect

from actors.ports.settings_checks import absolute_path_of, described, expanded, read
from server.settings.config import Config, Options, Settings, check_consistency, refusal
from server.settings.setting_values import LOG_LEVELS, SANDBOXES, ConfigError, Listener, check_listeners

SETTINGS = Options.__struct_fields__
"""The names of all settings that a flag, an environment variable or the settings file can contain."""
TYPES = {each.name: described(each.type)[0] for each in inspect.type_info(Options).fields}  # type: ignore[attr-defined]
NO_VALUE = {"listen": "none", "http_listen": "none", "metrics_listen": "none", "cpus": "all"}
"""The words that stand for None."""
NO_TEXT = {"database": "none", "otlp_endpoint": "none"}
"""The words that stand for the default, ""."""
CHOICES = {"log_level": LOG_LEVELS, "sandbox": SANDBOXES}
FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def load(flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, file: Path | None = None) -> Config:
    """Read the settings from all sources, and merge them. Raises ConfigError if a setting is invalid.

    `flags` contains only the flags that were given; `file` is the argument of --config, or None.
    """
    source = settings_file(file, environ)
    values = read_settings(source)
    origins = {name: f"{source}: {name}" for name in values}
    tables = values.pop("listen") if isinstance(values.get("listen"), list) else []
    try:
        listeners = read(tuple[Listener, ...], "listen", tables)
        check_listeners(listeners)
        for name in SETTINGS:
            variable = f"BEDROCK_{name.upper()}"
            if name in flags:
                values[name], origins[name] = flags[name], f"--{name.replace('_', '-')}"
            elif environ.get(variable):
                values[name], origins[name] = environ[variable], variable
        more: dict[str, Any] = {"listen": None, "listen_tables": listeners}
        if "listen" in values or not tables:  # a flag or a variable replaces all the tables
            more = {}
        values.setdefault("data_dir", str(data_directory(environ)))
        plain = {name: _plain(name, value) for name, value in values.items() if value != NO_TEXT.get(name)}
        settings = read(Settings, "", plain)
        given = {name: getattr(settings, name) for name in settings.__struct_fields__} | more
        config = Config(**given, file=source, environ=environ, origins=origins)
        check_consistency(config, listeners)
    except ValueError as error:
        raise refusal(str(error), origins) from None
    return config


def _plain(name: str, value: Any) -> Any:
    """Return a setting as its type has it: a text, such as a variable has, may stand for any value.

    Raises ValueError if the value of `data_dir` is no absolute path, or a text has bytes that are none.
    """
    word = str(value).lower()
    if word == NO_VALUE.get(name):
        return None
    if name == "data_dir":
        try:
            absolute_path_of(value)
            return str(absolute_path(value))
        except ValueError as error:
            raise ValueError(f"data_dir: {error}") from None
    if name in CHOICES:
        return {each.lower(): each for each in CHOICES[name]}.get(word, value)
    match TYPES.get(name):
        case inspect.StrType() if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
            raise ValueError(f"{name}: must be UTF-8")
        case inspect.BoolType():
            return FLAGS.get(word, value)
        case inspect.IntType() | inspect.FloatType() as kind if isinstance(value, str):
            with suppress(ValueError):
                return int(value) if isinstance(kind, inspect.IntType) else float(value)
        case inspect.VarTupleType() if isinstance(value, str):
            return [] if word == "none" else [part.strip() for part in value.split(",") if part.strip()]
        case _:
            pass
    return value


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


def read_settings(path: Path | None) -> dict[str, Any]:
    """Return the content of the settings file; {} for None.

    Raises ConfigError if the file cannot be read or parsed, or if other users own or can change it.
    """
    if path is None:
        return {}
    try:
        return tomllib.loads(read_believed(path, named=True).decode("utf-8-sig"))
    except NotPrivateError as error:  # the server runs commands from this file
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
