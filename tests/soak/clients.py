"""What every client of the workload has in common: its random choices, its journal, and how it takes refusals."""

import random
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bedrock.errors import BedrockError, DataLoss, DeadlineExceeded, Internal, Unavailable
from msgspec import Struct

from tests.soak.journal import Journal
from tests.soak.provider import WHATS

T = TypeVar("T")


class Site(Struct, frozen=True):
    """Where the workload is: what clients need to know."""

    address: str
    token: str
    folder: Path
    """Working directory of conversations."""
    home: Path
    """HOME of programs."""
    round: int
    seed: int


class Refused(Exception):
    """The server said no, for a reason of the contract."""


class SoakClient(threading.Thread):
    """Acts until it is told to stop. Subclasses say how, in `act`."""

    kind = ""

    def __init__(self, site: Site, journals: Path) -> None:
        super().__init__(name=f"soak-{self.kind}", daemon=True)
        self.site = site
        self.random = random.Random(f"{site.seed}/{self.kind}/{site.round}")
        self.journal = Journal(journals / f"{self.kind}-{site.round}.jsonl")
        self.stopping = threading.Event()
        self._count = 0

    def act(self) -> None:
        """Do one thing, or a few."""
        raise NotImplementedError

    def open(self) -> None:
        """Before the first act, on this thread."""

    def close(self) -> None:
        """After the last one, on this thread."""

    def run(self) -> None:
        try:
            self.open()
            while not self.stopping.is_set():
                self._act()
        except BaseException as error:
            self.journal.write("broken", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            self.close()
            self.journal.close()

    def _act(self) -> None:
        try:
            self.act()
        except Refused:
            pass
        except (Internal, DataLoss) as error:
            self.journal.write("fault", error=f"{type(error).__name__}: {error}")
        except BedrockError:
            self.stopping.wait(0.05)  # the server is away, or the run ended in another way

    def token(self) -> str:
        """A word that no other message has."""
        self._count += 1
        return f"t-{self.kind}-{self.site.round}-{self._count}"

    def request_id(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def what(self) -> str:
        return self.random.choice(WHATS)

    def until_answered(self, call: Callable[[], T]) -> T:
        """Repeat a call that can be repeated until the server has an answer. Raises Refused, or a fault."""
        while True:
            try:
                return call()
            except (Unavailable, DeadlineExceeded):
                if self.stopping.wait(0.05):
                    raise
            except (Internal, DataLoss):
                raise
            except BedrockError as error:
                raise Refused(error.reason) from error
