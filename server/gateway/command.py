"""The command `bedrock gateway`, which `bedrock serve --http` runs as a module: JSON over HTTP in front of a server."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from bedrock import v1
from bedrock.cli.text.output import print_text
from bedrock.local_server import ADDRESS_FILE, NotPrivateError, data_directory, read_believed

from actors.common.settings_checks import host_and_port
from server.cli import CANNOT_START, USAGE, fail
from server.operating_system import CannotListenError, bound, tune_process
from server.settings.setting_values import LOG_LEVELS, ConfigError, Listen, PortListen, unencrypted

# The warning that client certificates are not passed on: the server accepts them only from a gateway that it has
# started itself, because it must trust that process.
NOT_PASSED_ON = "--client-ca: the server does not see client certificates, so every call also needs a token"
FILE = click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True)


@click.command()
@click.option("--listen", default="127.0.0.1:7422", help="host:port to serve HTTP on. [127.0.0.1:7422]")
@click.option("--upstream", default="", help="The server: host:port, https://host:port or unix:/path. [the local one]")
@click.option("--upstream-ca", type=FILE, help="PEM file with CA certificates for verifying the server.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="The local server's data directory.")
@click.option("--allow-host", "hosts", multiple=True, help="Host name to accept in the Host header (repeatable).")
@click.option("--allow-origin", "origins", multiple=True, help="Origin whose web pages may call the API (repeatable).")
@click.option("--tls-certificate", "certificate", type=FILE, help="Certificate as PEM; required for remote clients.")
@click.option("--tls-key", "key", type=FILE, help="Private key for --tls-certificate, as PEM.")
@click.option("--client-ca", type=FILE, help="PEM file with CAs; clients need a certificate signed by one of them.")
@click.option("--insecure-behind-proxy", "behind_proxy", is_flag=True, help="Accept remote clients without TLS.")
@click.option("--new-thread", default="", help="JSON template for the conversation of a new AG-UI thread.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", help="Minimum log level on stderr. [info]")
@click.option("--fd", type=int, hidden=True, help="File descriptor of a listening socket to use.")
@click.option("--until-eof", is_flag=True, help="Also stop when standard input (a pipe) is closed by its writer.")
def gateway(
    *,
    listen: str,
    upstream: str,
    data_dir: Path | None,
    new_thread: str,
    log_level: str,
    fd: int | None,
    until_eof: bool,
    **options: Any,
) -> None:
    """Serve the API of a server as JSON over HTTP.

    Events are server-sent events. `bedrock serve --http` runs this alongside the server. Callers send the token as
    `Authorization: Bearer TOKEN`, even on this machine.
    """
    try:
        where = _checked(listen, options)
        tls, target = _target(upstream or _local(data_dir))
        thread = _conversation(new_thread) if new_thread else None
    except ConfigError as error:
        fail(str(error), USAGE)
    tune_process()
    import asyncio  # noqa: PLC0415

    from server import json_logs  # noqa: PLC0415 -- not for --help
    from server.certificates import CertificateFiles, CertificateUnusableError, authorities_in  # noqa: PLC0415
    from server.gateway.console import Links  # noqa: PLC0415
    from server.gateway.http_server import Gateway, serve  # noqa: PLC0415

    json_logs.set_up(log_level)
    # The server writes the secret and the link in one piece, so one read is enough.
    secret, *link = (os.read(0, 4096).decode().split() if fd is not None else []) or [""]
    links = Links()
    if link:
        links.make(link[1], link[0])
    authorities, certificate, key, client_ca = map(options.pop, ("upstream_ca", "certificate", "key", "client_ca"))
    try:
        settings = Gateway(
            upstream=target,
            upstream_tls=tls,
            upstream_ca=authorities_in(authorities) if authorities else None,
            secret=secret,
            tls=CertificateFiles(certificate, key, client_ca) if certificate else None,
            new_thread=thread,
            **options,
        )
        listening = bound(where, "--listen") if fd is None else socket.socket(fileno=fd)
    except (CertificateUnusableError, CannotListenError) as error:
        fail(str(error), CANNOT_START)
    if fd is None:
        scheme = "https" if settings.tls else "http"
        if client_ca:
            logging.getLogger(__name__).warning(NOT_PASSED_ON)
        print_text(f"bedrock gateway ready on {scheme}://{Listen(where.host, listening.getsockname()[1])}")
    asyncio.run(serve(settings, listening, until_eof=until_eof, links=links))


def _checked(listen: str, options: Mapping[str, Any]) -> Listen:
    """The address to listen on. Raises ConfigError if it is invalid, or open to other machines without TLS."""
    try:
        where = PortListen.of(listen)
    except ValueError:
        raise ConfigError("--listen: must be host:port, or a port") from None
    if (options["certificate"] is None) != (options["key"] is None):
        raise ConfigError("--tls-certificate and --tls-key must be set together")
    if options["client_ca"] and not options["certificate"]:
        raise ConfigError("--client-ca requires --tls-certificate and --tls-key")
    if not (where.local or options["certificate"] or options["behind_proxy"]):
        raise ConfigError(f"{unencrypted(where)}Set --tls-certificate and --tls-key, or listen on 127.0.0.1")
    return where


def _target(upstream: str) -> tuple[bool, str]:
    """Whether the server is called with TLS, and its address as gRPC expects it. Raises ConfigError."""
    if upstream.startswith("unix:"):
        return False, upstream
    scheme, _, address = upstream.rpartition("://")
    address = address.removesuffix("/")
    if scheme not in ("", "http", "https") or host_and_port(address) is None:
        raise ConfigError("--upstream: must be host:port, http://host:port, https://host:port or unix:/path")
    return scheme == "https", address


def _conversation(text: str) -> v1.Conversation:
    from bedrock import v1  # noqa: PLC0415 -- not for --help
    from google.protobuf.json_format import Parse, ParseError  # noqa: PLC0415

    try:
        found = Parse(text, v1.Conversation())
    except ParseError as error:
        raise ConfigError(f"--new-thread: must be a conversation as JSON ({error})") from None
    if not (found.working_directory and found.mode):
        raise ConfigError("--new-thread: must have workingDirectory and mode")
    return found


def _local(data_dir: Path | None) -> str:
    """The address of the Unix socket of the server on this machine. Raises ConfigError if none runs."""
    try:
        return read_believed((data_dir or data_directory()) / ADDRESS_FILE, most=4096).decode().strip()
    except NotPrivateError as error:
        raise ConfigError(str(error)) from None
    except (OSError, ValueError):
        raise ConfigError("no server is running on this machine; specify one with --upstream") from None


if __name__ == "__main__":
    gateway(prog_name="python -m server.gateway.command")
