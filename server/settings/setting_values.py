"""The types of the settings' values, such as addresses and lists of CPUs, and the error for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, field

from actors.common.settings_checks import host_and_port, is_loopback, one_of
from actors.ports.telemetry import CONTENTS


class ConfigError(Exception):
    """A setting cannot be used. The message names the setting, where it comes from, and what it should be."""


MAX_CPUS = 8_192


class Listen(str):
    """An address to listen on, as gRPC expects it: `host:port` or `unix:/path`."""

    host: str
    port: int
    path: str
    """The path of a Unix socket; "" for host and port."""

    def __new__(cls, host: str = "", port: int = 0, path: str = "") -> Listen:
        made = super().__new__(cls, f"unix:{path}" if path else f"{f'[{host}]' if ':' in host else host}:{port}")
        made.host, made.port, made.path = host, port, path
        return made

    @classmethod
    def of(cls, value: object) -> Listen:
        """Parse an address. Raises ValueError if it is invalid."""
        text = str(value)
        if text.startswith("unix:"):
            path = text.removeprefix("unix:").removeprefix("//")
            if not path.startswith("/"):
                raise ValueError("the path of a Unix socket must be absolute, as in unix:/run/bedrock.sock")
            return cls(path=path)
        if (found := host_and_port(text)) is None:
            raise ValueError("must be host:port (port 0 for any free port), unix:/path, or none")
        return cls(*found)

    @property
    def local(self) -> bool:
        """Whether only programs on this machine can connect."""
        return bool(self.path) or is_loopback(self.host)


class PortListen(Listen):
    """An HTTP address: host and port, or just a port on this machine."""

    @classmethod
    def of(cls, value: object) -> Listen:
        """Parse an address. Raises ValueError if it is invalid."""
        text = str(value)
        if (found := host_and_port(f"127.0.0.1:{text}" if text.isdecimal() else text)) is None:
            raise ValueError("must be a port, host:port, or none")
        return cls(*found)


class Cpus(frozenset[int]):
    @classmethod
    def of(cls, value: object) -> Cpus:
        found: set[int] = set()
        for part in str(value).split(","):
            first, _, last = part.strip().partition("-")
            if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first) < MAX_CPUS):
                raise ValueError("must be all, or a list of CPUs such as 1 or 0,2-3")
            found |= set(range(int(first), int(last or first) + 1))
        return cls(found)


LOG_LEVELS = ("debug", "info", "warning", "error")
SANDBOXES = ("auto", "A", "B", "none")


Database: TypeAlias = Annotated[
    str, Meta(pattern=r"^postgres(ql)?://\S+\Z", description="must be postgresql://user@host:port/database, or none")
]
Url: TypeAlias = Annotated[
    str, Meta(pattern=r"^https?://\S+\Z", description="must be http://host:port, https://host:port, or none")
]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=86_400, description="must be a number of seconds, 0 to 86400")]
Days: TypeAlias = Annotated[float, Meta(ge=0, le=36_500, description="must be a number of days, 0 (no limit) to 36500")]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1, description="must be a whole number, 1 to 2147483647")]
AnyPath: TypeAlias = Annotated[str, Meta(pattern="^[/~]", description="must be absolute, or begin with ~")]
NamesBelow: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^(?!\.{0,2}(/|\Z))[^/]+(/(?!\.{0,2}(/|\Z))[^/]+)*\Z",
        description="must be a name, or several joined by slashes, such as node_modules/.bin",
    ),
]
Content: TypeAlias = Annotated[str, one_of(CONTENTS)]


class Listener(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A [[listen]] table: an address to listen on, and who can connect."""

    where: Annotated[Listen, Meta(description="must be host:port or unix:/path")] = field(name="address")
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
        return f"https://{self.where}" if self.certificate else self.where


def check_listeners(listeners: tuple[Listener, ...]) -> None:
    """Check that the [[listen]] tables are consistent, and that no token crosses a network without TLS.

    Raises ValueError with a message such as "listen[1].address: why".
    """
    for number, listener in enumerate(listeners, 1):
        where, address, encrypted = f"listen[{number}]", listener.where, listener.certificate is not None
        if (address.path or address.port) and address in [each.where for each in listeners[: number - 1]]:
            raise ValueError(f"{where}.address: another table has the same address, {address}; merge them")
        if encrypted != (listener.key is not None):
            raise ValueError(f"{where}: certificate and key must be set together")
        if address.path and encrypted:
            raise ValueError(f"{where}.certificate: a Unix socket needs none, because only its owner can connect")
        if listener.client_ca is not None and not encrypted:
            raise ValueError(f"{where}.client_ca: requires TLS; set certificate and key")
        if listener.insecure_behind_proxy and (encrypted or address.path):
            raise ValueError(f"{where}.insecure_behind_proxy: allowed only for host:port without TLS")
        if not (address.local or encrypted or listener.insecure_behind_proxy):
            raise ValueError(f"{where}.address: {unencrypted(address)}Set certificate and key, or listen on 127.0.0.1")
    if len({each.client_ca for each in listeners} - {None}) > 1:
        raise ValueError("listen: every client_ca must be the same, as a certificate's names do not show who signed it")


def unencrypted(where: Listen) -> str:
    """The beginning of the error for an address at which tokens would cross a network without TLS."""
    return f"refusing to listen on {where} without TLS: anyone on the network could read the token. "
