"""Clients that a cluster has besides those of the soak: one that notices pauses, and one whose tools never end."""

import time
from contextlib import suppress
from pathlib import Path

from bedrock import Client
from bedrock.errors import BedrockError
from msgspec import Struct

from tests.soak.clients import Site, SoakClient

PROBE_SECONDS = 0.2
"""Between two probes."""
ANSWER_SECONDS = 2.0
"""After which a probe is given up and made again."""
STAY_SECONDS = (2.0, 6.0)


class Pause(Struct, frozen=True):
    """Between two commands that one conversation carried out, on the monotonic clock."""

    begin: float
    end: float


class Probe(SoakClient):
    """Gives its conversation a title again and again; notes how long that took."""

    def __init__(self, site: Site, journals: Path, name: str, created_at: str) -> None:
        """`name`, and `created_at`, the address: of the node that owns the conversation at first."""
        self.kind = f"probe_{name}"
        super().__init__(site, journals)
        self.pauses: list[Pause] = []
        with Client(created_at, token=site.token) as client:
            self._name = client.create(site.folder).name
        self.journal.write("created", conversation=self._name)

    def open(self) -> None:
        self._client = Client(self.site.address, token=self.site.token, timeout=ANSWER_SECONDS)
        self._conversation = self._client.conversation(self._name)
        self._last = time.monotonic()

    def close(self) -> None:
        self._client.close()

    def act(self) -> None:
        title = self.token()
        self.journal.write("titling", conversation=self._name, title=title)
        self.until_answered(lambda: self._conversation.update(title=title))
        now = time.monotonic()
        self.journal.write("titled", conversation=self._name, title=title)
        self.pauses.append(Pause(self._last, now))
        self._last = now
        self.stopping.wait(PROBE_SECONDS)


class StayingClient(SoakClient):
    """Starts tools at one node that never end, some of them away from their group, and cancels them after a while."""

    def __init__(self, site: Site, journals: Path, name: str, address: str) -> None:
        """`name` and `address`: of the node."""
        self.kind = f"staying_{name}"
        super().__init__(site, journals)
        self._address = address

    def open(self) -> None:
        self._there = Client(self._address, token=self.site.token, timeout=ANSWER_SECONDS)
        self._anywhere = Client(self.site.address, token=self.site.token, timeout=ANSWER_SECONDS)

    def close(self) -> None:
        self._there.close()
        self._anywhere.close()

    def act(self) -> None:
        request_id, token, message_id = self.request_id(), self.token(), self.request_id()
        made = self.until_answered(
            lambda: self._there.create(self.site.folder, mode="unrestricted", request_id=request_id)
        )
        conversation = self._anywhere.conversation(made.name)
        self.journal.write("created", conversation=made.name)
        self.journal.write("sending", conversation=made.name, token=token)
        run = self.until_answered(lambda: conversation.send(f"#do stay {token}", request_id=message_id))
        self.journal.write("accepted", conversation=made.name, token=token, message=run.message.name, delivery="direct")
        self.stopping.wait(self.random.uniform(*STAY_SECONDS))
        with suppress(BedrockError):
            self.until_answered(conversation.cancel)
