"""The command `bedrock console`: opens the console in a browser, signed in, with its own gateway if need be."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import urllib.request
import webbrowser
from contextlib import suppress

import click

from bedrock import Client
from bedrock._shared.settings import Settings, resolve
from bedrock.cli import exit_codes as exits
from bedrock.cli.arguments import address_or_spawned, option
from bedrock.cli.text.output import print_text
from bedrock.errors import Unauthenticated
from bedrock.local_server import GATEWAY_FILE, NotPrivateError, data_directory, read_believed, server_process

# Maximum seconds for a gateway that runs to make a link.
ASK_SECONDS = 5.0
_READY = re.compile(r"\bready on (\S+)")


@click.command()
@option("--no-open quiet", "Only print the address.", is_flag=True)
@click.pass_context
def console(ctx: click.Context, *, quiet: bool) -> None:
    """Open the console: all conversations in a browser.

    The link signs one browser in, within a minute. If the server of this machine serves HTTP, its gateway is used.
    Otherwise this command runs a gateway until Ctrl-C, and a server if there is none.
    """
    if not exits.address_source(ctx) and (link := link_of_running()):
        _show(link, quiet=quiet)
        return
    address = address_or_spawned(ctx)
    settings = resolve(address)
    with Client(address) as client, suppress(*() if settings.token else (Unauthenticated,)):
        client.server_info()  # the page itself could not say why no server answers
    _serve(settings, quiet=quiet)


def link_of_running(address: str | None = None) -> str:
    """A link to sign in at the gateway of this machine's server; "" if it runs none.

    `address`: the server's, if not the usual.
    """
    folder = data_directory()
    if not server_process(folder):  # another program may listen at the address by now
        return ""
    with suppress(OSError, NotPrivateError, ValueError, KeyError):
        url = read_believed(folder / GATEWAY_FILE, most=4096).decode().strip()
        headers = {"Authorization": f"Bearer {resolve(address).token}"}
        request = urllib.request.Request(f"{url}/console/links", b"", headers)  # noqa: S310 -- the server's own file names it
        with urllib.request.urlopen(request, timeout=ASK_SECONDS) as answer:  # noqa: S310
            return f"{url}/#link={json.load(answer)['link']}"
    return ""


def _serve(settings: Settings, *, quiet: bool) -> None:
    """Run a gateway until Ctrl-C. Raises CommandError if it cannot be started."""
    scheme = "https://" if settings.tls else ""
    command = [sys.executable, "-P", "-m", "server.gateway.command", "--listen", "127.0.0.1:0", "--until-eof"]
    command += ["--log-level", "warning", "--upstream", f"{scheme}{settings.target}"]
    if settings.tls and (authorities := os.environ.get("BEDROCK_CA_FILE")):
        command += ["--upstream-ca", authorities]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as gateway:
        assert gateway.stdin is not None  # noqa: S101 -- both are pipes
        assert gateway.stdout is not None  # noqa: S101
        if (ready := _READY.search(gateway.stdout.readline())) is None:
            raise exits.CommandError("the gateway could not be started", exit_code=exits.UNREACHABLE)
        code = secrets.token_urlsafe(24)
        if settings.token:
            gateway.stdin.write(f"{code} {settings.token}\n")
            gateway.stdin.flush()
        _show(f"{ready[1]}/#link={code}" if settings.token else ready[1], quiet=quiet)
        print_text("Ctrl-C stops the console; runs continue.", err=True)
        with suppress(KeyboardInterrupt):
            gateway.wait()
        gateway.stdin.close()


def _show(link: str, *, quiet: bool) -> None:
    print_text(link)
    screen = sys.platform == "darwin" or any(os.environ.get(each) for each in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if screen and not quiet:
        webbrowser.open(link)
