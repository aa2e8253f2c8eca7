"""Update masks (AIP-134): an update sets the fields in its mask; without a mask the non-empty ones, with `*` all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from bedrock import v1

ALL = "*"


def paths_to_set(request: v1.UpdateConversationRequest, settable: Collection[str]) -> list[str]:
    """Return the paths that the update sets, out of `settable` unless the mask names others."""
    named = list(request.update_mask.paths)
    if not named:
        given = {field.name for field, _ in request.conversation.ListFields()}
        return [field for field in settable if field in given]
    return list(settable) if named == [ALL] else named


def key_of_label(path: str) -> str:
    """Return the key in the path of a label. It may be quoted in backticks, which a key with a dot needs."""
    key = path.partition(".")[2]
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == "`" else key
