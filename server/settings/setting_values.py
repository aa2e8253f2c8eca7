"""The values of single settings, the addresses to listen on, and the error for what cannot be used.

The parsers raise ValueError for an invalid value, with a text that completes "NAME: …" in the error message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from bedrock.local_server import absolute_path

from actors.ports.settings.settings_checks import absolute_path_of, check_keys, host_and_port, is_loopback
from actors.ports.telemetry import CONTENTS


class ConfigError(Exception):
    """A setting cannot be used. The text names the setting, where it comes from, and what it should be."""


LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_CPUS = 8_192
"""The largest number of CPUs that a Linux kernel supports."""
SANDBOXES = ("auto", "A", "B", "none")

Parser: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True)
class Listen:
    """An address to listen on: a host and a port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def target(self) -> str:
        """The address as gRPC expects it: `host:port` or `unix:/path`."""
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether only programs on this machine can connect."""
        return bool(self.path) or is_loopback(self.host)


USUAL_LISTEN = Listen("127.0.0.1", 7421)


def parse_listen(value: Any) -> Listen | None:
    """Return an address to listen on; None for "none". Raises ValueError if the value is no address."""
    text = str(value)
    if text == "none":
        return None
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ValueError("the path of a Unix socket must be absolute: unix:/run/bedrock.sock")
        return Listen(path=path)
    if (found := host_and_port(text)) is None:
        raise ValueError("must be host:port, with port 0 for any free one, unix:/path, or none")
    return Listen(*found)


def parse_metrics_listen(value: Any) -> Listen | None:
    """Return the address for "host:port"; a port alone means 127.0.0.1. Returns None for "none".

    Raises ValueError for other values.
    """
    text = str(value)
    where = parse_listen(f"127.0.0.1:{text}" if text.isdecimal() else text)
    if where is not None and where.path:
        raise ValueError("must be a port, host:port, or none")
    return where


def parse_url(value: Any) -> str:
    """Return the URL of a collector of telemetry; "" for "none". Raises ValueError if the value is no http(s) URL."""
    text = str(value)
    if text == "none":
        return ""
    scheme, _, host = text.partition("://")
    if scheme not in {"http", "https"} or not host or any(each.isspace() for each in text):
        raise ValueError("must be http://host:port, https://host:port, or none")
    return text


def parse_contents(value: Any) -> tuple[str, ...]:
    """Parse a list of span attributes with message contents: those that a collector of traces may get.

    Raises ValueError for an unknown name.
    """
    names = parse_texts(value)
    for name in names:
        if name not in CONTENTS:
            raise ValueError(f"{name!r} is none of {', '.join(CONTENTS)}")
    return names


def parse_data_dir(value: Any) -> Path:
    """Return the data directory as an absolute path. Raises ValueError if the value is no usable path."""
    absolute_path_of(value)
    return absolute_path(value)


def parse_database(value: Any) -> str:
    """Return the URL of a PostgreSQL database; "" for "none". Raises ValueError if the value is no such URL."""
    text = str(value)
    if text == "none":
        return ""
    if not text.startswith(("postgresql://", "postgres://")) or any(each.isspace() for each in text):
        raise ValueError("must be postgresql://user@host:port/database, or none")
    return text


def parse_text(value: Any) -> str:
    """Return a text unchanged. Raises ValueError for any other type."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


def parse_seconds(value: Any) -> float:
    """Return a number of seconds from 0 to a day. Raises ValueError for other values."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise ValueError("must be a number of seconds") from None
    if not 0 <= seconds <= 86_400:
        raise ValueError("must be between 0 and 86400 seconds")
    return seconds


def parse_days(value: Any) -> float:
    """Return a number of days from 0 to a hundred years. Raises ValueError for other values."""
    try:
        days = float(value)
    except (TypeError, ValueError):
        raise ValueError("must be a number of days") from None
    if not 0 <= days <= 36_500:
        raise ValueError("must be between 0, which means for ever, and 36500 days")
    return days


def parse_count(value: Any) -> int:
    """Return a whole number of at least 1. Raises ValueError for other values."""
    try:
        count = int(value)
    except (TypeError, ValueError):
        raise ValueError("must be a whole number") from None
    if count < 1:
        raise ValueError("must be at least 1")
    return count


def parse_flag(value: Any) -> bool:
    """Return the truth value of a boolean, or of a text such as "yes" or "off". Raises ValueError for other values."""
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return known[str(value).lower()]
    except KeyError:
        raise ValueError("must be true or false") from None


def parse_level(value: Any) -> str:
    """Return the name of a log level in lower case. Raises ValueError if there is no such level."""
    if str(value).lower() not in LOG_LEVELS:
        raise ValueError(f"must be one of {', '.join(LOG_LEVELS)}")
    return str(value).lower()


def parse_sandbox(value: Any) -> str:
    """Return how strictly the machine must be able to restrict tools: "auto", "A", "B" or "none".

    A uses namespaces, B only Landlock and seccomp; auto is the best that is possible. Raises ValueError for other
    values.
    """
    for known in SANDBOXES:
        if str(value).lower() == known.lower():
            return known
    raise ValueError(f"must be one of {', '.join(SANDBOXES)}")


def parse_texts(value: Any) -> tuple[str, ...]:
    """Return the texts in a list, or in one comma-separated text; () for "none".

    Raises ValueError for other values.
    """
    if isinstance(value, str):
        value = [] if value.lower() == "none" else [part.strip() for part in value.split(",") if part.strip()]
    if not (isinstance(value, list) and all(isinstance(each, str) and each for each in value)):
        raise ValueError("must be a list of texts, or one text with commas between them")
    return tuple(value)


def parse_names(value: Any) -> tuple[str, ...]:
    """Parse a setting that lists names of files and directories that tools cannot change, such as "node_modules/.bin".

    Raises ValueError if a component of a name is "..", "." or empty.
    """
    names = parse_texts(value)
    for name in names:
        if any(part in {"", ".", ".."} for part in name.split("/")):
            raise ValueError(
                f"{name!r} is not a name, nor several with slashes between them, such as node_modules/.bin"
            )
    return names


def parse_paths(value: Any) -> tuple[str, ...]:
    """Return the paths in a list of paths. Raises ValueError for a path that is not absolute and has no ~ in front."""
    paths = parse_texts(value)
    for path in paths:
        if not path.startswith(("/", "~")):
            raise ValueError(f"{path!r} must be absolute, or begin with ~")
    return paths


def parse_cpus(value: Any) -> frozenset[int] | None:
    """Return the CPU numbers of a list such as "1" or "0,2-3"; None for "all". Raises ValueError for other values."""
    if str(value).lower() == "all":
        return None
    found: set[int] = set()
    for part in str(value).split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first) < MAX_CPUS):
            raise ValueError("must be all, or a list of CPUs such as 1 or 0,2-3")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


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


@dataclass(frozen=True, kw_only=True)
class Listener:
    """An address to listen on, and who can connect there."""

    where: Listen
    certificate: Path | None = None
    """The PEM file with the server's certificate and its chain; None for no TLS."""
    key: Path | None = None
    client_ca: Path | None = None
    """The PEM file with the authorities that sign clients' certificates; None if clients need no certificate."""
    insecure_behind_proxy: bool = False
    """Whether a proxy or a mesh in front of the listener encrypts and restricts access, so that it needs no TLS."""

    @property
    def target(self) -> str:
        """The address as the project's clients expect it: with `https://` in front if there is a certificate."""
        return f"https://{self.where.target}" if self.certificate else self.where.target


LISTENER: dict[str, Parser] = {
    "address": parse_listen,
    "certificate": absolute_path_of,
    "key": absolute_path_of,
    "client_ca": absolute_path_of,
    "insecure_behind_proxy": parse_flag,
}
"""The parsers of the keys of a table [[listen]]."""


def listeners_from_tables(table: dict[str, Any], origin: str) -> tuple[Listener, ...]:
    """Remove the tables [[listen]] from the settings file's content, and return the addresses that they describe.

    Raises ConfigError if a table is invalid.
    """
    if not isinstance(table.get("listen"), list):
        return ()
    found: list[Listener] = []
    for number, given in enumerate(tables_named(table, "listen", origin), 1):
        where = f"{origin}: listen[{number}]"
        try:
            check_keys(where, given, LISTENER)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        values = {key: parsed(LISTENER[key], value, f"{where}.{key}") for key, value in given.items()}
        address = values.pop("address", None)
        if address is None:
            raise ConfigError(f"{where}.address: needed: host:port, or unix:/path")
        if (address.path or address.port) and any(address == each.where for each in found):
            raise ConfigError(f"{where}.address: another table has {address.target}, too; make one of both")
        found.append(Listener(where=address, **values))
        _check_listener(found[-1], where)
    if len({each.client_ca for each in found} - {None}) > 1:
        raise ConfigError(
            f"{origin}: listen: all with a client_ca need the same one, since names in certificates are believed "
            "whoever of them has signed"
        )
    return tuple(found)


def _check_listener(listener: Listener, where: str) -> None:
    """Raise ConfigError if keys of a table [[listen]] contradict each other, or tokens would be sent without TLS."""
    encrypted, local = listener.certificate is not None, listener.where.local
    if encrypted != (listener.key is not None):
        raise ConfigError(f"{where}: certificate and key are needed together")
    if listener.where.path and encrypted:
        raise ConfigError(f"{where}.certificate: a Unix socket takes none, since only its owner can connect to it")
    if listener.client_ca is not None and not encrypted:
        raise ConfigError(f"{where}.client_ca: needs TLS: certificate and key")
    if listener.insecure_behind_proxy and (encrypted or listener.where.path):
        raise ConfigError(f"{where}.insecure_behind_proxy: only for host:port without TLS")
    if not (local or encrypted or listener.insecure_behind_proxy):
        raise ConfigError(
            f"{where}.address: {unencrypted(listener.where)}Set certificate and key, or listen on 127.0.0.1"
        )


def unencrypted(where: Listen) -> str:
    """Return the beginning of the error for an address at which tokens would cross a network without TLS."""
    return f"refusing to listen on {where.target} without TLS: everybody on the network could read the token. "
