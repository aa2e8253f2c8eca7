"""Small documents in the database that all servers share, such as the list of tokens; replaced as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store.postgres.engine import address_of
from actors.adapters.store.postgres.nodes.node_session import NodeSession

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 5.0
"""Maximum time of a statement."""
_READ = "SELECT version, content FROM documents WHERE name = %(name)s"
_REPLACE = """
INSERT INTO documents (name, version, content) VALUES (%(name)s, 1, %(content)s)
ON CONFLICT (name) DO UPDATE SET version = documents.version + 1, content = excluded.content
WHERE documents.version = %(version)s RETURNING version
"""


class Document:
    """A document in the database, read and changed over its own connection. Any thread.

    Methods block, and raise StoreUnavailableError, or StoreUnusableError if the database is not suitable.
    """

    def __init__(self, url: str, name: str) -> None:
        """Parse the address, without connecting yet. Raises StoreUnusableError if it is invalid."""
        self.shown = f"{name} in {address_of(url).shown}"
        """The document's place, for messages."""
        self._name = name
        self._session = NodeSession(url, "bedrock documents", seconds=SECONDS)

    def read(self) -> bytes | None:
        """Return the content; None if there is no such document."""
        return self._found()[1]

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the content by the result of `change(content)`, unless that is None.

        If another program replaces the content meanwhile, `change` is called again with the new content.
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
