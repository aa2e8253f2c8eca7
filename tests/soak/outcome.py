"""What a round did, and how its clients come to an end: the same for one server and for several nodes."""

from collections.abc import Sequence

from msgspec import Struct, field

from tests.soak.checks import Checked
from tests.soak.clients import SoakClient

END_SECONDS = 90.0
"""What a client has to finish what it is doing."""


class Outcome(Struct):
    """What one round did, and what was wrong."""

    number: int
    seconds: float = 0.0
    requests: int = 0
    """Of the model provider."""
    accepted: dict[str, int] = field(default_factory=dict)
    conversations: int = 0
    sub_agents: int = 0
    deleted: int = 0
    events: int = 0
    steps: int = 0
    wrong: list[str] = field(default_factory=list)

    def take(self, found: Checked) -> None:
        """Add what the checks have found."""
        self.accepted = {kind: count for kind, count in found.accepted.items() if count}
        self.conversations, self.sub_agents = found.conversations, found.sub_agents
        self.deleted, self.events, self.steps = found.deleted, found.events, found.steps
        self.wrong += found.wrong

    def end(self, clients: Sequence[SoakClient]) -> None:
        """Let the clients finish, and note those that do not."""
        for client in clients:
            client.stopping.set()
        for client in clients:
            client.join(END_SECONDS)
            if client.is_alive():
                self.wrong.append(f"the client {client.kind} did not come to an end")
