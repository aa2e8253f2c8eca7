"""The command `bedrock console`: opens the console in a browser, with a gateway of its own if there is none."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import webbrowser
from contextlib import ExitStack
from functools import partial

import click
import requests
from bedrock._shared.settings import Settings, resolve
from bedrock.cli.spawned_server import spawn_if_missing
from bedrock.cli.text.output import print_text
from bedrock.local_server import GATEWAY_FILE, NotPrivateError, data_directory, read_believed, server_process

from server.cli import CANNOT_START, USAGE, fail

ASK_SECONDS = 5.0


@click.command()
@click.option("--no-open", "quiet", is_flag=True, help="Only print the address.")
@click.option("--listen", default="127.0.0.1:0", help="Where a gateway of its own listens. [127.0.0.1, any free port]")
def console(*, quiet: bool, listen: str) -> None:
    """Open the console: all conversations in a browser.

    The link signs one browser in, within a minute. If the server of this machine serves HTTP, its gateway is used.
    Otherwise this command runs a gateway until Ctrl-C, and a server if there is none.
    """
    address: str | None = click.get_current_context().find_root().obj
    if address is None and (link := _link_of_running()) is not None:
        _show(link, quiet=quiet)
        return
    with ExitStack() as stack:
        starting = partial(print_text, "No server is running; starting one.", err=True)
        spawned = spawn_if_missing(address, stack.enter_context, starting)
        _serve(resolve(spawned.address if spawned else address), listen, quiet=quiet)


def _link_of_running() -> str | None:
    """Return a link of the gateway that the server of this machine runs; None if it runs none."""
    folder = data_directory()
    if not server_process(folder):  # another program may listen at the address by now
        return None
    try:
        url = read_believed(folder / GATEWAY_FILE, most=4096).decode().strip()
        headers = {"Authorization": f"Bearer {resolve().token}"}
        answer = requests.post(f"{url}/console/links", headers=headers, timeout=ASK_SECONDS)
        answer.raise_for_status()
        return f"{url}/#link={answer.json()['link']}"
    except (OSError, NotPrivateError, ValueError, KeyError):  # requests' errors are OSErrors
        return None


def _serve(settings: Settings, listen: str, *, quiet: bool) -> None:
    from server import json_logs  # noqa: PLC0415 -- not for --help
    from server.gateway.console import Links  # noqa: PLC0415
    from server.gateway.http_server import Gateway, serve  # noqa: PLC0415
    from server.process.operating_system import bound, tune_process  # noqa: PLC0415
    from server.settings.setting_values import Listen, PortListen  # noqa: PLC0415

    try:
        where = PortListen.of(listen)
    except ValueError:
        fail("--listen: must be host:port, or a port", USAGE)
    if not where.local:
        fail("--listen: must be on this machine; `bedrock gateway` has TLS", USAGE)
    tune_process()
    json_logs.set_up("warning")
    try:
        listening: socket.socket = bound(where)
    except OSError as error:
        fail(f"cannot listen on {where}: {(error.strerror or 'unknown host').lower()}", CANNOT_START)
    links = Links()
    gateway = Gateway(upstream=settings.target, upstream_tls=settings.tls, upstream_ca=settings.ca)
    url = f"http://{Listen(where.host, listening.getsockname()[1])}"
    _show(f"{url}/#link={links.make(settings.token)}" if settings.token else url, quiet=quiet)
    print_text("Ctrl-C ends the console; runs go on.", err=True)
    asyncio.run(serve(gateway, listening, until_eof=False, links=links))


def _show(link: str, *, quiet: bool) -> None:
    print_text(link)
    screen = sys.platform == "darwin" or any(os.environ.get(each) for each in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if screen and not quiet:
        webbrowser.open(link)
