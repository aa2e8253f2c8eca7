"""BrowseDirectory: list a directory of this machine. Blocks, on a reading thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock import v1

from actors.core.errors import Reason
from server.contract.errors import MalformedRequestError

if TYPE_CHECKING:
    from actors.ports import Workspace


class NotBrowsableError(MalformedRequestError):
    """The path cannot be listed."""

    reason = Reason.WORKING_DIRECTORY_INVALID.value

    def __init__(self, text: str) -> None:
        super().__init__(("path", text))


def browse_directory(workspace: Workspace, path: str) -> v1.BrowseDirectoryResponse:
    """List a directory; "" is the home directory of the server's user. Raises NotBrowsableError."""
    try:
        listing = workspace.list_directory(path)
    except ValueError as error:
        raise NotBrowsableError(str(error)) from None
    shown = [v1.BrowseDirectoryResponse.Entry(name=each.name, directory=each.directory) for each in listing.entries]
    return v1.BrowseDirectoryResponse(path=listing.path, entries=shown, truncated=listing.truncated)
