"""Where the server is and how to prove who we are: arguments, then the environment, then the data directory."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bedrock.errors import Misconfigured

DEFAULT_ADDRESS = "127.0.0.1:7421"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a client needs to know before it connects."""

    target: str
    """What gRPC dials, e.g. "127.0.0.1:7421" or "unix:/run/bedrock.sock"."""
    token: str = field(repr=False)
    """The bearer token; empty to send none."""
    tls: bool
    ca: bytes | None
    """The certificates to trust, as PEM; those of the system if None."""


def data_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory in which a local server keeps its files."""
    if chosen := environ.get("BEDROCK_DATA_DIR"):
        return Path(chosen).expanduser()
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "bedrock"


def resolve(
    address: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Decide what to connect to, and how.

    The address comes from the argument, BEDROCK_ADDRESS, the file `address` that a local server writes, or is
    127.0.0.1:7421. The token comes from the argument, BEDROCK_TOKEN or, for a server on this machine, its file
    `token`. An address that begins with `https://` is connected to with TLS; `http://` says that it is not, which is
    needed to send a token to another machine in the clear.

    Raises:
        Misconfigured: The address has a port that is none, a token would be sent in the clear to another machine or
            cannot be sent at all, or a file cannot be read.
    """
    data = data_directory(environ)
    found = address or environ.get("BEDROCK_ADDRESS") or _read(data / "address") or DEFAULT_ADDRESS
    scheme, target = _split(found)
    local = _is_local(target)
    token = token if token is not None else environ.get("BEDROCK_TOKEN")
    if token is None:
        token = _read(data / "token") if local else ""
    elif token and not local and not scheme:
        raise Misconfigured(
            f"the token would be sent in the clear to {target}; write https://{target}, "
            f"or http://{target} if the way there is protected otherwise",
            reason="MISCONFIGURED",
        )
    if not (token.isascii() and token.isprintable()):
        raise Misconfigured(
            "the token has characters that no token has: line breaks, perhaps, or letters of another alphabet",
            reason="MISCONFIGURED",
        )
    ca_file = ca_file or environ.get("BEDROCK_CA_FILE")
    return Settings(target, token, tls=scheme == "https", ca=_read_certificates(ca_file) if ca_file else None)


def _split(address: str) -> tuple[str, str]:
    for scheme in ("https", "http"):
        if address.startswith(scheme + "://"):
            return scheme, _with_port(address.removeprefix(scheme + "://").rstrip("/"))
    return "", _with_port(address)


def _with_port(target: str) -> str:
    _, colon, port = target.rpartition("]")[2].rpartition(":")
    if not colon:
        return f"{target}:{DEFAULT_ADDRESS.rpartition(':')[2]}"
    named = _is_local_socket(target) or "/" in port
    if not named and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise Misconfigured(f"{target} is no address: “{port}” is no port", reason="MISCONFIGURED")
    return target


def _is_local_socket(target: str) -> bool:
    return target.startswith(("unix:", "unix-abstract:"))


def _is_local(target: str) -> bool:
    if _is_local_socket(target):
        return True
    host = target.removeprefix("dns:///").removeprefix("ipv4:").removeprefix("ipv6:").rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {error.strerror}", reason="MISCONFIGURED") from error


def _read_certificates(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Misconfigured(f"the CA file {path} cannot be read: {error.strerror}", reason="MISCONFIGURED") from error
