"""The commands `bedrock token`, for principals' tokens, and `bedrock mcp login`, for logging in to MCP servers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from bedrock._interrupts import INTERRUPTED, ending_at_once
from bedrock.cli.text.output import print_text
from bedrock.local_server import NotPrivateError

from actors.adapters.mcp.server_settings import servers_from_tables
from actors.ports import StoreError
from actors.ports.tools import McpLoginsError, McpRegistration
from server.auth import tokens as secret_files
from server.auth.principals import Role
from server.cli import CANNOT_START, CONFIG, DATA_DIR, USAGE, fail, loaded
from server.local_endpoint import close_to_others
from server.settings.config import Config

if TYPE_CHECKING:
    from actors.adapters.mcp.login_flow import LoggedIn
    from actors.adapters.mcp.server_settings import McpServer


T = TypeVar("T")

DAY_MS = 86_400_000
LIFETIME = re.compile(r"([1-9][0-9]{0,4})([hd])")

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def token() -> None:
    """Manage the tokens of principals.

    Principals are the people and services listed in the settings file, in [principals.NAME] tables. Only hashes of
    tokens are stored, in the data directory or in the shared database. A running server applies changes within a
    second.
    """


@token.command()
@click.argument("principal")
@click.option("--role", type=click.Choice([role.value for role in Role]), help="Role of the token. [the principal's]")
@click.option("--expires", metavar="TIME", help="Lifetime, such as 12h or 90d. [unlimited]")
@click.option("--note", default="", help="Note about the token's purpose.")
@CONFIG
@DATA_DIR
def create(  # noqa: PLR0917 -- one for each option
    principal: str, role: str | None, expires: str | None, note: str, file: Path | None, data_dir: str | None
) -> None:
    """Create a token and print it. It is shown only this once."""
    config = loaded(file, data_dir=data_dir)
    known = config.principals.get(principal)
    if known is None:
        names = ", ".join(sorted(config.principals)) or "none; add [principals.NAME] tables"
        fail(f"the settings have no principal {principal!r}; known principals: {names}", USAGE)
    chosen = Role(role) if role else known.role
    if not known.role.includes(chosen):
        fail(f"principal {principal} has role {known.role}, so its tokens cannot have role {chosen}", USAGE)
    now = time.time_ns() // 1_000_000
    ends = _expiry(expires, now)
    made, text = _done(config, lambda tokens: tokens.create(principal, chosen, now, expires_at=ends, note=note))
    print_text(f"token {made.id} of {principal}, {_described(made)}:", err=True)
    print_text(text)


@token.command(name="list")
@JSON
@CONFIG
@DATA_DIR
def list_(as_json: bool, file: Path | None, data_dir: str | None) -> None:
    """List the tokens, without their secrets."""
    config = loaded(file, data_dir=data_dir)
    tokens = _done(config, secret_files.PrincipalTokens.read)
    if as_json:
        shown = [
            {
                "id": each.id,
                "principal": each.principal,
                "role": each.role,
                "created": _time(each.created_at),
                "expires": _time(each.expires_at) if each.expires_at else None,
                "note": each.note,
            }
            for each in tokens
        ]
        print_text(json.dumps(shown, indent=2))
        return
    for each in tokens:
        gone = "" if each.principal in config.principals else "; refused: this principal is not in the settings"
        print_text(f"{each.id}  {each.principal}, {_described(each)}{gone}{f'  {each.note}' if each.note else ''}")
    if not tokens:
        print_text("No tokens.", err=True)


@token.command()
@click.argument("token_id", metavar="ID")
@CONFIG
@DATA_DIR
def rotate(token_id: str, file: Path | None, data_dir: str | None) -> None:
    """Replace a token's secret, and print the new token. Calls with the old one are refused, and their streams end."""
    text = _done(loaded(file, data_dir=data_dir), lambda tokens: tokens.rotate(token_id))
    if text is None:
        fail(f"token {token_id} not found; see `bedrock token list`", USAGE)
    print_text(text)


@token.command()
@click.argument("token_id", metavar="ID")
@CONFIG
@DATA_DIR
def revoke(token_id: str, file: Path | None, data_dir: str | None) -> None:
    """Remove a token. Calls with it are refused, and its streams end within seconds."""
    if not _done(loaded(file, data_dir=data_dir), lambda tokens: tokens.revoke(token_id)):
        fail(f"token {token_id} not found; see `bedrock token list`", USAGE)
    print_text(f"revoked {token_id}")


def _done(config: Config, work: Callable[[secret_files.PrincipalTokens], T]) -> T:
    """The result of `work` on the tokens in the configured database or data directory; a failure ends the program."""
    try:
        if config.database:
            return _in_database(config, work)
        if not config.data_dir.is_dir():
            fail(f"{config.data_dir} does not exist; start the server once, or set --data-dir", CANNOT_START)
        close_to_others(config.data_dir)
        return work(secret_files.TokenFile(config.data_dir / secret_files.PRINCIPALS_TOKENS))
    except (secret_files.TokenUnusableError, StoreError, NotPrivateError) as error:
        fail(str(error), CANNOT_START)


def _in_database(config: Config, work: Callable[[secret_files.PrincipalTokens], T]) -> T:
    if importlib.util.find_spec("psycopg") is None:
        fail(str(config.without_extra("database", "postgres")), USAGE)
    from actors.adapters.store.postgres.nodes.node_session import Document  # noqa: PLC0415 -- not for --help

    document = Document(config.database, secret_files.PRINCIPALS_TOKENS)
    try:
        return work(secret_files.PrincipalTokens(document))
    finally:
        document.close()


def _expiry(text: str | None, now: int) -> int:
    """The expiry for a lifetime such as "90d", in milliseconds since 1970; 0 (never) for None."""
    if text is None:
        return 0
    found = LIFETIME.fullmatch(text)
    if found is None:
        fail(f"--expires {text!r} must be hours or days, such as 12h or 90d", USAGE)
    return now + int(found[1]) * (DAY_MS if found[2] == "d" else DAY_MS // 24)


def _described(each: secret_files.Token) -> str:
    ends = f"until {_time(each.expires_at)}" if each.expires_at else "no expiry"
    return f"{each.role}, since {_time(each.created_at)}, {ends}"


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


FAILED = 1

_NAME = click.argument("name")


@click.command()
@_NAME
@click.option("--paste", is_flag=True, help="Use a browser on another machine, and paste the URL it is redirected to.")
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Port that the browser is redirected to. [any]")
@CONFIG
@DATA_DIR
def login(name: str, paste: bool, port: int, file: Path | None, data_dir: str | None) -> None:
    """Log in to an MCP server in a browser.

    NAME is the name of an [[mcp_servers]] table that has a url. The tokens are kept in the data directory, readable by
    this user only; a running server picks them up within a second, and renews them.
    """
    config = loaded(file, data_dir=data_dir)
    server = _server(config, name)
    with ending_at_once():
        if importlib.util.find_spec("mcp") is None:
            fail(str(config.without_extra("mcp_servers", "mcp")), CANNOT_START)
        from actors.adapters.mcp.login_flow import SECONDS, ClientRefusedError, LoginError, log_in  # noqa: PLC0415
    logins = _logins(config)
    registrations = secret_files.McpRegistrationFile(config.data_dir / secret_files.MCP_REGISTRATIONS)

    def show(address: str) -> None:
        print_text(f"Open this URL in a browser and log in:\n\n  {address}\n", err=True)
        if not paste:
            print_text(f"Waiting up to {SECONDS / 60:.0f} minutes for the browser on this machine …", err=True)

    def pasted() -> str:
        return str(click.prompt("Paste the URL your browser is redirected to (the page need not load)", err=True))

    def log_in_as(known: McpRegistration | None) -> LoggedIn:
        return asyncio.run(log_in(server, show, paste=pasted if paste else None, port=port, known=known))

    try:
        known = registrations.pop(name)  # removed, so that it is not used again if this login fails
        try:
            made = log_in_as(known)
        except ClientRefusedError:
            if known is None:
                raise
            print_text("The client registered earlier was rejected; registering a new one.", err=True)
            made = log_in_as(None)
        logins.put(name, made.login)
        if made.registration is not None:
            registrations.put(name, made.registration)
    except (LoginError, McpLoginsError) as error:
        fail(f"could not log in to {name}: {error}", FAILED)
    except (KeyboardInterrupt, click.Abort):
        fail(f"interrupted: not logged in to {name}", INTERRUPTED)
    print_text(f"logged in to {name}; `bedrock mcp` shows its tools")


@click.command()
@_NAME
@CONFIG
@DATA_DIR
def logout(name: str, file: Path | None, data_dir: str | None) -> None:
    """Log out of an MCP server.

    A running server ends its connections within a second. The provider is asked to revoke the tokens, if it supports
    that.
    """
    logins = _logins(loaded(file, data_dir=data_dir))
    try:
        while (found := logins.read().get(name)) is not None and not logins.replace(name, found, None):
            pass
    except McpLoginsError as error:
        fail(str(error), FAILED)
    if found is None:
        fail(f"not logged in to {name}", USAGE)
    print_text(f"logged out of {name}")
    if importlib.util.find_spec("mcp") is not None:
        from actors.adapters.mcp.login_flow import revoked  # noqa: PLC0415 -- not for --help

        if asyncio.run(revoked(found)):
            return
    print_text("the tokens were removed locally but may still be valid; log out at the provider as well", err=True)


def _server(config: Config, name: str) -> McpServer:
    try:
        servers = servers_from_tables(config.mcp_servers, config.environ)
    except ValueError as error:
        fail(str(config.refusal(str(error))), USAGE)
    found = next((server for server in servers if server.name == name), None)
    possible = ", ".join(server.name for server in servers if server.login is not None) or "none"
    if found is None:
        fail(f"the settings have no MCP server {name!r}; servers with a login: {possible}", USAGE)
    if found.login is None:
        why = "it is a program, has credentials in the settings, or has no https URL"
        fail(f"cannot log in to {name}: {why}; servers with a login: {possible}", USAGE)
    return found


def _logins(config: Config) -> secret_files.McpLoginFile:
    if not config.data_dir.is_dir():
        fail(f"{config.data_dir} does not exist; start the server once, or set --data-dir", CANNOT_START)
    try:
        close_to_others(config.data_dir)
    except NotPrivateError as error:
        fail(str(error), CANNOT_START)
    return secret_files.McpLoginFile(config.data_dir / secret_files.MCP_LOGINS)
