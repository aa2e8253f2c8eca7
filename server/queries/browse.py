"""Serves BrowseDirectory, which lists a directory of this machine. Blocks; runs on a thread of `ReadPool`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1

from actors.core.errors import Reason
from server.contract import limits
from server.contract.errors import MalformedRequestError
from server.contract.pagination import page_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.ports import Workspace


class NotBrowsableError(MalformedRequestError):
    """The path cannot be listed. The text says why."""

    reason = Reason.WORKING_DIRECTORY_INVALID.value

    def __init__(self, text: str) -> None:
        super().__init__(("path", text))


def browse_directory(
    workspace: Workspace, request: v1.BrowseDirectoryRequest, within: Sequence[str] | None = None
) -> v1.BrowseDirectoryResponse:
    """List a directory. The path "" means the home directory of the server's user, or the first directory of `within`.

    Only the directories in `within`, and those beneath them, can be listed; None allows all. Raises
    MalformedRequestError for another path, and for a wrong page token.
    """
    try:
        listing = workspace.list_directory(request.path, within)
    except ValueError as error:
        raise NotBrowsableError(str(error)) from None
    shown = [v1.BrowseDirectoryResponse.Entry(name=each.name, directory=each.directory) for each in listing.entries]
    entries, more = page_of(shown, _key, request, limits.CATALOG_PAGE, "entries", request.path)
    return v1.BrowseDirectoryResponse(
        path=listing.path, entries=entries, truncated=listing.truncated, next_page_token=more
    )


def _key(entry: v1.BrowseDirectoryResponse.Entry) -> str:
    """Return the key that sorts the entries of a directory: directories first, then by name."""
    return f"{0 if entry.directory else 1}{entry.name}"
