"""The fields that an update sets, as AIP-134 has it: those of its mask, without one all that are set, with `*` all."""

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
    """Return the key in the path of one label; it may stand in backticks, as one with a dot must."""
    key = path.partition(".")[2]
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == "`" else key
