"""Servers that share one PostgreSQL: nodes of a cluster, each a process."""

import json
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.support.postgres import PostgresServer
from tests.support.server_process import ServerProcess, Servers

LEASE_SECONDS = 5.0
"""Short, but longer than a busy machine keeps a process waiting."""


def free_address() -> str:
    """Return an address of this machine that nobody listens on."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{tried.getsockname()[1]}"


class Networks(Protocol):
    """Gives each node an address of its own."""

    def address(self, name: str) -> str:
        """Return where a node listens."""
        ...

    def within(self, name: str) -> str:
        """Return the command that runs another one where that address is."""
        ...


class Nodes:
    """Starts nodes by name, and looks at each of them at the end as `Servers` does. Close it."""

    def __init__(
        self,
        folder: Path,
        *,
        env: dict[str, str],
        made_by: Callable[[str], object] | None = None,
        networks: Networks | None = None,
        room: int = 0,
        programs_in: Path | None = None,
    ) -> None:
        """Start the database, with the content that `made_by` gives to an empty one (its URL).

        `env`: further variables of the environment of each node. `networks`: where each has an address of its own.
        `room`: MiB of the database's disk, without end if 0. `programs_in`: where those of its PostgreSQL are.
        """
        self.database = PostgresServer(durable=True, room=room, programs_in=programs_in)
        self.database_name = self.database.create(made_by)
        self.clients_token = secrets.token_hex(32)
        """The same at each node, so that a client may call any."""
        token = folder / "nodes.token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.table: dict[str, float | str] = {"lease_seconds": LEASE_SECONDS, "token_file": str(token)}
        """What else is in the table [cluster] of those that are started from now on."""
        self.folder = folder
        self.env = {"BEDROCK_DATABASE": self.database.url(self.database_name)} | env
        self._networks = networks
        self._servers = Servers(ServerProcess)
        self._addresses: dict[str, str] = {}

    def start(self, name: str, settings: str = "", *, workspace: str = "", **env: str) -> ServerProcess:
        """Start a node, in the folder and at the address that it had before. `settings`: more of its file.

        `workspace`: a directory that not all nodes have.
        """
        address = self.address(name)
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "data").mkdir(mode=0o700, exist_ok=True)
        token = folder / "data" / "token"
        token.touch(mode=0o600)
        token.write_text(self.clients_token)
        file = folder / "bedrock.toml"
        within = ""
        if self._networks is not None:
            within, settings = self._networks.within(name), f"insecure_behind_proxy = true\n{settings}"
        table = self.table | ({"workspaces": [workspace]} if workspace else {})
        file.write_text(
            f'{settings}[cluster]\nname = "{name}"\naddress = "{address}"\n'
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        )
        file.chmod(0o600)
        return self._servers(folder, "--config", str(file), listen=address, within=within, **(self.env | env))

    def address(self, name: str) -> str:
        """Return where a node listens, or will."""
        if self._networks is not None:
            return self._networks.address(name)
        return self._addresses.setdefault(name, free_address())

    def start_alone(self, name: str, **env: str) -> ServerProcess:
        """Start a server that has the database to itself."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return self._servers(folder, **(self.env | env))

    def close(self) -> None:
        """Stop the nodes, then the database."""
        try:
            self._servers.close()
        finally:
            self.database.close()
