"""The environments of the peers: for each a Python that it supports, and the versions of its requirements file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.results import driven
from tests.peers import installed
from tests.peers.install import InstallError, python_environment
from tests.pythons import VERSIONS, find

if TYPE_CHECKING:
    from tests.bench.results import Turns

REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True)
class Peer:
    """A program that runs the same turns."""

    label: str
    name: str
    """Of its driver, and of its file of requirements."""
    oldest: tuple[int, int] = (3, 11)
    newest: tuple[int, int] = (3, 14)

    @property
    def full_name(self) -> str:
        return f"{self.label} {self.version}"

    @property
    def folder(self) -> Path:
        return installed.PEERS / f"bench-{self.name}"

    @property
    def packages(self) -> list[str]:
        lines = (REQUIREMENTS / f"{self.name}.txt").read_text(encoding="utf-8").splitlines()
        return [line for line in lines if not line.startswith("#")]

    @property
    def version(self) -> str:
        """Return the version that is measured, as the head of its requirements has it."""
        head = (REQUIREMENTS / f"{self.name}.txt").read_text(encoding="utf-8").splitlines()[0]
        return head.split()[1].partition("==")[2].rstrip(",")

    def install(self) -> None:
        """Make its environment, unless it is there. Raises InstallError."""
        python = self._python()
        if python is None:
            supported = f"{'.'.join(map(str, self.oldest))} to {'.'.join(map(str, self.newest))}"
            raise InstallError(f"needs Python {supported}")
        python_environment(self.full_name, self.packages, self.folder, python)

    def why_missing(self) -> str:
        """Install it, and return why that failed; "" if it is there."""
        try:
            self.install()
        except InstallError as error:
            why = str(error).splitlines()[-1]
            return why if why.startswith("needs ") else f"needs an installation: {why}"
        return ""

    def run(self, url: str, conversations: int, turns: int, *, database: str = "") -> Turns:
        """Return what the turns took.

        `database`: the URL of the one that it stores in, if it needs one.
        """
        python = self.folder / "bin" / "python"
        return driven(python, f"tests.bench.peers.{self.name}_driver", url, conversations, turns, database=database)

    def _python(self) -> Path | None:
        if self.oldest <= sys.version_info[:2] <= self.newest:
            return Path(sys.executable)
        return next((found for each in VERSIONS if self.oldest <= each <= self.newest and (found := find(each))), None)


PEERS = (Peer("LangGraph + SQLite", "langgraph"),)

LANGGRAPH_POSTGRES = Peer("LangGraph + PostgreSQL", "langgraph_postgres")
"""Compared with nodes, which keep everything in PostgreSQL, too."""
