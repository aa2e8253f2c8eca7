"""The commands `bedrock mcp login` and `bedrock mcp logout`, for the operator's logins at MCP servers."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import click
from bedrock._interrupts import INTERRUPTED, ending_at_once
from bedrock.cli.text.output import print_text
from bedrock.local_server import NotPrivateError

from actors.adapters.mcp.server_settings import servers_from_tables
from actors.ports.mcp import McpLoginsError
from server.auth.mcp_login_file import CLIENTS, FILE, McpLoginFile, McpRegistrationFile
from server.cli import CANNOT_START, USAGE, fail
from server.local_access import close_to_others
from server.settings.loading import load
from server.settings.setting_values import ConfigError

if TYPE_CHECKING:
    from actors.adapters.mcp.login_flow import LoggedIn
    from actors.adapters.mcp.server_settings import McpServer
    from actors.ports.mcp import McpRegistration
    from server.config import Config

FAILED = 1

_NAME = click.argument("name")
_CONFIG = click.option("--config", "file", type=click.Path(path_type=Path), help="The server's file with settings.")
_DATA_DIR = click.option("--data-dir", type=str, help="Where conversations are kept. [~/.local/state/bedrock]")


@click.command()
@_NAME
@click.option("--paste", is_flag=True, help="The browser is on another machine: paste the address that it ends at.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Where the browser comes back to. [any]")
@_CONFIG
@_DATA_DIR
def login(name: str, paste: bool, port: int, file: Path | None, data_dir: str | None) -> None:
    """Log in at an MCP server of the settings, in a browser.

    NAME is that of a table [[mcp_servers]] with a url. The tokens are kept in the data directory, readable by this user
    only; a running server uses them within a second, and renews them.
    """
    config = _config(file, data_dir)
    server = _server(config, name)
    with ending_at_once():
        if importlib.util.find_spec("mcp") is None:
            fail(str(config.without_extra("mcp_servers", "mcp")), CANNOT_START)
        from actors.adapters.mcp.login_flow import SECONDS, ClientRefusedError, LoginError, log_in  # noqa: PLC0415 -- not for --help  # noqa: PLC0415
    logins, registrations = _logins(config), McpRegistrationFile(config.data_dir / CLIENTS)

    def show(address: str) -> None:
        print_text(f"Open this address in a browser, and log in:\n\n  {address}\n", err=True)
        if not paste:
            print_text(f"Waiting for the browser on this machine, {SECONDS / 60:.0f} minutes at most …", err=True)

    def pasted() -> str:
        return str(click.prompt("The address that the browser ends at, which need not load", err=True))

    def log_in_as(known: McpRegistration | None) -> LoggedIn:
        return asyncio.run(log_in(server, show, paste=pasted if paste else None, port=port, known=known))

    try:
        known = registrations.take(name)  # removed, so that it is not used again if this login fails
        try:
            made = log_in_as(known)
        except ClientRefusedError:
            if known is None:
                raise
            print_text("The client that was registered there before is refused; another one is registered.", err=True)
            made = log_in_as(None)
        logins.put(name, made.login)
        if made.registration is not None:
            registrations.put(name, made.registration)
    except (LoginError, McpLoginsError) as error:
        fail(f"not logged in at {name}: {error}", FAILED)
    except (KeyboardInterrupt, click.Abort):
        fail(f"interrupted: not logged in at {name}", INTERRUPTED)
    print_text(f"logged in at {name}; `bedrock mcp` shows its tools")


@click.command()
@_NAME
@_CONFIG
@_DATA_DIR
def logout(name: str, file: Path | None, data_dir: str | None) -> None:
    """Forget the login at an MCP server.

    A running server ends its connections within a second. The provider is asked to revoke the tokens, if it offers
    that.
    """
    logins = _logins(_config(file, data_dir))
    try:
        while (found := logins.read().get(name)) is not None and not logins.replace(name, found, None):
            pass
    except McpLoginsError as error:
        fail(str(error), FAILED)
    if found is None:
        fail(f"there is no login at {name}", USAGE)
    print_text(f"logged out from {name}")
    if importlib.util.find_spec("mcp") is not None:
        from actors.adapters.mcp.login_flow import revoked  # noqa: PLC0415 -- not for --help

        if asyncio.run(revoked(found)):
            return
    print_text("the tokens are removed here, but not known to be invalid: end the login at the provider, too", err=True)


def _config(file: Path | None, data_dir: str | None) -> Config:
    """Return the server's settings; print an error and exit if they are invalid."""
    try:
        return load({"data_dir": data_dir} if data_dir else {}, file=file)
    except ConfigError as error:
        fail(str(error), USAGE)


def _server(config: Config, name: str) -> McpServer:
    """Return the MCP server with this name; print an error and exit if it does not exist or takes no logins."""
    try:
        servers = servers_from_tables(config.mcp_servers, config.environ)
    except ValueError as error:
        fail(str(config.refusal(str(error))), USAGE)
    found = next((server for server in servers if server.name == name), None)
    possible = ", ".join(server.name for server in servers if server.login is not None) or "none"
    if found is None:
        fail(f"the settings have no MCP server {name!r}; those with a login are: {possible}", USAGE)
    if found.login is None:
        why = "it is a program, has credentials in the settings, or has no https URL"
        fail(f"{name} cannot be logged in to: {why}; those with a login are: {possible}", USAGE)
    return found


def _logins(config: Config) -> McpLoginFile:
    if not config.data_dir.is_dir():
        fail(f"{config.data_dir} does not exist: start the server once, or name it with --data-dir", CANNOT_START)
    try:
        close_to_others(config.data_dir)
    except NotPrivateError as error:
        fail(str(error), CANNOT_START)
    return McpLoginFile(config.data_dir / FILE)
