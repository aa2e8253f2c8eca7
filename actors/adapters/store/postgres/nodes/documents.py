"""Small documents in the database that all servers share, such as the list of tokens.

A change replaces a whole document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.adapters.store.postgres.engine import address_of
from actors.adapters.store.postgres.nodes.node_session import NodeSession

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 5.0
"""Time limit of a statement in seconds."""
_READ = "SELECT version, content FROM documents WHERE name = %(name)s"
_REPLACE = """
INSERT INTO documents (name, version, content) VALUES (%(name)s, 1, %(content)s)
ON CONFLICT (name) DO UPDATE SET version = documents.version + 1, content = excluded.content
WHERE documents.version = %(version)s RETURNING version
"""


class Document:
    """A document in the database, read and changed over a connection of its own. Safe to call from any thread.

    `read` and `update` block, and raise StoreUnavailableError, or StoreUnusableError if the database is not suitable.
    """

    def __init__(self, url: str, name: str) -> None:
        """Parse the database URL, without connecting yet. Raises StoreUnusableError if the URL is invalid."""
        self.shown = f"{name} in {address_of(url).shown}"
        """The name of the document and the database URL without the password, for messages."""
        self._name = name
        self._session = NodeSession(url, "bedrock documents", seconds=SECONDS)

    def read(self) -> bytes | None:
        """Return the content; None if the document does not exist."""
        return self._found()[1]

    def update(self, change: Callable[[bytes | None], bytes | None]) -> None:
        """Replace the content by the result of `change(content)`; keep it if `change` returns None.

        `change` gets None if the document does not exist. If another program replaces the content meanwhile,
        `change` is called again with the new content.
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
