"""Checks of an operator's settings that both the server and several adapters need."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from msgspec import Meta, ValidationError, convert, inspect

MAX_PORT = 65_535
Text = Annotated[str, Meta(min_length=1, description="must be a string")]

Read = TypeVar("Read")
Table = TypeVar("Table")
# Matches valid names of principals and of token issuers.
NAME = re.compile(r"[a-z0-9]([a-z0-9._@-]{0,62}[a-z0-9])?")
_WORDS = {
    "str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "a table",
}  # fmt: skip


def read(kind: type[Read], where: str, value: object) -> Read:
    """Convert a value from a settings file to `kind`, usually a Struct.

    Raises ValueError such as "WHERE.path.to.key: must be a string", with the `description` of the field's type if it
    has one. A `__post_init__` error begins with ".key: " if it is about one key. Types unknown to msgspec are
    converted by their method `of`.
    """
    try:
        return convert(value, kind, dec_hook=_custom)
    except ValidationError as error:
        text = _refusal(kind, str(error))
        raise ValueError(where + text if where else text.removeprefix(".")) from None


def _custom(kind: Any, value: object) -> Any:
    if kind is Path:
        return absolute_path_of(value)
    return kind.of(value, *get_args(kind))


class Named(dict[str, Table]):
    """The tables [where.NAME], by name. Unlike with a plain dict, an error in a table names that table."""

    @classmethod
    def of(cls, value: object, kind: type[Table]) -> Named[Table]:
        """Convert the tables. Raises ValueError for a wrong table or name."""
        if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
            raise ValueError("must be named tables")
        for name in value:
            if not NAME.fullmatch(name):
                raise ValueError(f".{name}: must be 1 to 64 of a-z, 0-9 and .-_@, with a letter or digit at both ends")
        return cls({name: read(kind, f".{name}", table) for name, table in value.items()})


def one_of(names: Collection[str]) -> Meta:
    known = "|".join(map(re.escape, names))
    return Meta(pattern=rf"^({known})\Z", description=f"must be one of {', '.join(names)}")


def _refusal(kind: Any, error: str) -> str:
    why, _, path = error.partition(" - at `$")
    where, (node, description) = "", described(inspect.type_info(kind))
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        where += f".{name}" if name else f"[{int(index) + 1}]" if index.isdecimal() else ""
        inner = _fields(node)[name].type if name else getattr(node, "item_type", getattr(node, "value_type", None))
        node, description = described(inner)
    key = next(iter(re.findall("(?s)field `(.*)`", why)), "")
    if why.startswith("Object contains unknown"):
        return f"{where}.{key}: {unknown_key(key, _fields(node))}"
    if why.startswith("Object missing"):
        needed = described(_fields(node)[key].type)[1]
        return f"{where}.{key}: required{needed and f'; {needed}'}"
    if why.startswith(("Expected", "Invalid")):
        why = description or _in_words(node, why)
    return f"{where}{why if why.startswith('.') else f': {why}'}"


def described(node: Any) -> tuple[Any, str]:
    """A type without its annotations, and its description ("" if it has none)."""
    description = ""
    while isinstance(node, inspect.Metadata | inspect.UnionType):
        if isinstance(node, inspect.UnionType):
            node = node.types[0]
        else:
            description = (node.extra_json_schema or {}).get("description", "") or description
            node = node.type
    return node, description


def _fields(node: Any) -> dict[str, Any]:
    return {each.encode_name: each for each in node.fields}


def _in_words(node: Any, why: str) -> str:
    if isinstance(node, inspect.LiteralType | inspect.EnumType):
        known = node.values if isinstance(node, inspect.LiteralType) else [each.value for each in node.cls]
        return f"must be one of {', '.join(map(str, known))}"
    wanted, bound = (re.findall(r"^Expected `(.*?)`(?: ([<>].*))?", why) or [("", "")])[0]
    kinds = [_WORDS.get(each) or each for each in wanted.split(" | ") if each != "null"]
    return f"must be {' or '.join(kinds)}{bound and f' {bound}'}" if kinds else why


def unknown_key(key: str, known: Collection[str]) -> str:
    """The message that refuses an unknown key; it names the most similar known key and all others."""
    from difflib import get_close_matches  # noqa: PLC0415 -- only for refusals, not at start

    near = get_close_matches(key, known, 1, cutoff=0.75)
    return f"unknown; {f'did you mean {near[0]!r}? Known' if near else 'known'} keys: {', '.join(known)}"


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address (without brackets) means this machine."""
    return (address := _address(host)) is not None and address.is_loopback


def is_nearby(host: str) -> bool:
    """Whether a host name or IP address (without brackets) means this machine, or is a private address."""
    return (address := _address(host)) is not None and address.is_private


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The host as an IP address; 127.0.0.1 for localhost, and None for any other name."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return None


def host_and_port(text: str) -> tuple[str, int] | None:
    """The host, without brackets, and the port of "host:port"; None if the text has a different form."""
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and int(port) <= MAX_PORT) or re.search(r"[\s/\ud800-\udfff]", host):
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def absolute_path_of(value: object) -> Path:
    """An absolute path with `~` expanded. Raises ValueError if the value is not a path or names an unknown user."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a path")
    return expanded(value).absolute()


def read_named(path: Path) -> bytes:
    """The content of a regular file that only root and this user can have written.

    Raises ValueError if others can have written it, or OSError.
    """
    link = path.lstat()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is not a regular file")
        if others := {link.st_uid, found.st_uid} - {0, os.geteuid()}:
            raise ValueError(f"is owned by uid {min(others)}, but this process runs as uid {os.geteuid()}")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("can be changed by others; run chmod go-w on it")
        return file.read()


def expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"user not found: {text.partition('/')[0]!r}") from None
