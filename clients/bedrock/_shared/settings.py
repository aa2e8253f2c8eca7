"""Finds the server's address and credentials: from arguments, the environment, or the data directory, in this order."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bedrock import local_server
from bedrock.errors import Misconfigured, ServerNotRunning, ServerUnreachable

DEFAULT_PORT = 7421


@dataclass(frozen=True, slots=True)
class Settings:
    """The server's address and the credentials of a connection."""

    target: str
    token: str = field(repr=False)
    tls: bool
    ca: bytes | None
    """The CA certificates to trust, in PEM format; None for those of the system."""
    certificate: bytes | None = None
    """This client's own certificate and its chain, in PEM format; None if the client has none."""
    key: bytes | None = field(default=None, repr=False)
    """The private key of `certificate`, in PEM format."""
    token_source: str = ""
    """Where the token came from, for errors: "BEDROCK_TOKEN", "token=", the path of its file, or ""."""


def resolve(
    address: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    certificate_file: str | os.PathLike[str] | None = None,
    key_file: str | os.PathLike[str] | None = None,
) -> Settings:
    """Decide which server to connect to, and with which credentials.

    Arguments take precedence over BEDROCK_ADDRESS, BEDROCK_TOKEN, BEDROCK_CA_FILE, BEDROCK_CERTIFICATE_FILE and
    BEDROCK_KEY_FILE, and these over the data directory of a server on this machine. The token in that directory is sent
    only through a Unix socket on which no other user can listen. An address with `https://` means TLS. A token is sent
    in the clear to another machine only if the address begins with `http://`.

    Raises ServerNotRunning, ServerUnreachable (the server has no socket), or Misconfigured: a relative
    BEDROCK_DATA_DIR, an invalid address, a token that cannot be sent at all or only in the clear, a certificate without
    its key, or a file that is unreadable or that other users may have written.
    """
    data = _data_directory(environ)
    given = address or environ.get("BEDROCK_ADDRESS")
    scheme, target = _split(given) if given else ("", _local_server(data))
    source = "token=" if token is not None else "BEDROCK_TOKEN"
    token = token if token is not None else environ.get("BEDROCK_TOKEN")
    if token is None:
        token, source = _local_token(data) if _is_private_socket(target) else "", str(data / local_server.TOKEN_FILE)
    elif token and not is_local(target) and not scheme:
        raise _misconfigured(
            f"the token would be sent unencrypted to {target}; write https://{target}, "
            f"or http://{target} if the connection is protected in another way"
        )
    if not (token.isascii() and token.isprintable()):
        raise _misconfigured("the token contains invalid characters: line breaks or non-ASCII characters")
    ca_file = ca_file or environ.get("BEDROCK_CA_FILE")
    ca = _read_file("CA", ca_file) if ca_file else None
    certificate_file = certificate_file or environ.get("BEDROCK_CERTIFICATE_FILE")
    key_file = key_file or environ.get("BEDROCK_KEY_FILE")
    if bool(certificate_file) != bool(key_file):
        raise _misconfigured("a client certificate and its key must be given together")
    return Settings(
        target, token, tls=scheme == "https", ca=ca,
        certificate=_read_file("certificate", certificate_file) if certificate_file else None,
        key=_read_file("key", key_file) if key_file else None, token_source=source if token else "",
    )  # fmt: skip


def _data_directory(environ: Mapping[str, str]) -> Path:
    try:
        return local_server.data_directory(environ)
    except ValueError as error:
        raise _misconfigured(str(error)) from None


def _local_server(data: Path) -> str:
    """The address of the server with this data directory, which must be one that only this user can change.

    Raises ServerNotRunning, ServerUnreachable (the server has no socket) or Misconfigured.
    """
    try:
        local_server.check_private(data)
        target = _read(data / local_server.ADDRESS_FILE)
        if target.startswith("unix:/"):
            local_server.check_socket(Path(target.removeprefix("unix:")))
            return target
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise _misconfigured(f"{error.filename} cannot be used: {error.strerror}") from None
    except local_server.NotPrivateError as error:
        raise _misconfigured(f"the files of the server on this machine cannot be trusted: {error}") from None
    else:
        if target:
            raise _misconfigured(
                f"{data / local_server.ADDRESS_FILE} names {target}, not a Unix socket; "
                "restart the server with this version of Bedrock"
            )
    if process := local_server.server_process(data):
        raise _unreachable(process, data)
    raise ServerNotRunning(
        f"no Bedrock server is running on this machine (data: {data})", reason="SERVER_NOT_RUNNING", code="UNAVAILABLE"
    )


def no_listener_error(target: str, environ: Mapping[str, str] = os.environ) -> ServerNotRunning:
    """The error for a Unix socket without a listener: ServerUnreachable if the server's process still runs."""
    data = _data_directory(environ)
    for directory in (Path(target.removeprefix("unix:")).parent, data):
        named = directory != data or _names(data, target)
        if named and (process := local_server.server_process(directory)):
            return _unreachable(process, directory)
    text = f"no Bedrock server is running: no process is listening on {target}"
    return ServerNotRunning(text, reason="SERVER_NOT_RUNNING", code="UNAVAILABLE")


def _names(data: Path, target: str) -> bool:
    try:
        return _read(data / local_server.ADDRESS_FILE) == target
    except (local_server.NotPrivateError, OSError):
        return False


def _unreachable(process: int, data: Path) -> ServerUnreachable:
    text = f"a Bedrock server is running (process {process}, data: {data}), but its socket is missing"
    return ServerUnreachable(text, reason="SERVER_UNREACHABLE", code="UNAVAILABLE")


def _local_token(data: Path) -> str:
    """The token of the server on this machine; "" if there is none. Raises Misconfigured if it is unusable."""
    try:
        local_server.check_private(data)
        return _read(data / local_server.TOKEN_FILE)
    except local_server.NotPrivateError as error:
        raise _misconfigured(f"the token on this machine cannot be trusted: {error}") from None
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _misconfigured(f"{error.filename} cannot be read: {error.strerror}") from None


def _is_private_socket(target: str) -> bool:
    try:
        local_server.check_socket(Path(target.removeprefix("unix:").removeprefix("//")))
    except (local_server.NotPrivateError, OSError):
        return False
    return target.startswith("unix:")


def _misconfigured(text: str) -> Misconfigured:
    return Misconfigured(text, reason="MISCONFIGURED")


def _split(address: str) -> tuple[str, str]:
    for scheme in ("https", "http"):
        if address.startswith(scheme + "://"):
            return scheme, _with_port(address.removeprefix(scheme + "://").rstrip("/"))
    return "", _with_port(address)


def _with_port(target: str) -> str:
    if not target or target.startswith(":"):
        raise _misconfigured("the address has no host: write it as host:port, or https://host:port")
    _, colon, port = target.rpartition("]")[2].rpartition(":")
    if not colon:
        return f"{target}:{DEFAULT_PORT}"
    named = _is_local_socket(target) or "/" in port
    if not named and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise _misconfigured(f"{target} is not an address: “{port}” is not a port")
    return target


def _is_local_socket(target: str) -> bool:
    return target.startswith(("unix:", "unix-abstract:"))


def is_local(target: str) -> bool:
    """Whether a gRPC target is on this machine: a Unix socket, "localhost" or a loopback address."""
    if _is_local_socket(target):
        return True
    host = _host(target)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_of(target: str, environ: Mapping[str, str] = os.environ) -> str:
    """The environment variable that sets the proxy for a connection; "" if there is none.

    Connections to this machine, to a private network, or to hosts in `no_proxy` are direct.
    """
    variable = next((name for name in ("grpc_proxy", "https_proxy", "http_proxy") if environ.get(name)), "")
    if not variable or is_local(target):
        return ""
    host = _host(target)
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_private:
            return ""
    listed = ",".join(environ.get(name, "") for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY")).split(",")
    spared = filter(None, (each.strip().removeprefix(".") for each in listed))
    return "" if any(each in {"*", host} or host.endswith(f".{each}") for each in spared) else variable


def _host(target: str) -> str:
    return target.removeprefix("dns:///").removeprefix("ipv4:").removeprefix("ipv6:").rpartition(":")[0].strip("[]")


def _read(path: Path) -> str:
    return local_server.read_believed(path).decode(errors="replace").strip()


def _read_file(what: str, path: str | os.PathLike[str]) -> bytes:
    try:
        return local_server.read_believed(Path(path), named=True)
    except local_server.NotPrivateError as error:
        raise _misconfigured(f"the {what} file cannot be trusted: {error}") from None
    except OSError as error:
        raise _misconfigured(f"the {what} file {path} cannot be read: {error.strerror}") from error
