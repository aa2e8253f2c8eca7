"""The addresses to listen on, and the tables [[listen]] of the settings file that describe them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.ports.settings.settings_checks import absolute_path_of, check_keys
from server.settings.config_error import ConfigError
from server.settings.file_tables import parsed, tables_named
from server.settings.setting_values import Listen, Parser, parse_flag, parse_listen


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
