"""Small documents that all servers share and their programs change, each as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store.postgres.engine import address_of
from actors.adapters.store.postgres.nodes.node_session import NodeSession

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 5.0
"""How long a statement may take."""
_READ = "SELECT version, content FROM documents WHERE name = %(name)s"
_REPLACE = """
INSERT INTO documents (name, version, content) VALUES (%(name)s, 1, %(content)s)
ON CONFLICT (name) DO UPDATE SET version = documents.version + 1, content = excluded.content
WHERE documents.version = %(version)s RETURNING version
"""


class Document:
    """A document in the database, with a connection of its own. Any thread.

    Methods block, and raise StoreUnavailableError, or StoreUnusableError if this database cannot serve.
    """

    def __init__(self, url: str, name: str) -> None:
        """Raise StoreUnusableError if the address cannot be read. Nothing is connected yet."""
        self.shown = f"{name} in {address_of(url).shown}"
        """Where it is, for people."""
        self._name = name
        self._session = NodeSession(url, "bedrock documents", seconds=SECONDS)

    def read(self) -> bytes | None:
        """Return the content; None if there is no such document."""
        return self._found()[1]

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the content by what `change` makes of it, unless that is None.

        `change` is called again with the new content if somebody else has replaced it meanwhile.
        """
        while True:
            version, before = self._found()
            content = change(before)
            if content is None:
                return
            values = {"name": self._name, "version": version, "content": content}
            if self._session.rows(_REPLACE, values):
                return

    def _found(self) -> tuple[int, bytes | None]:
        for version, content in self._session.rows(_READ, {"name": self._name}):
            return int(version), bytes(content)
        return 0, None

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._session.close()
