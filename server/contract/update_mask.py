"""Evaluates update masks (Google's AIP-134): the lists of the fields that an update request sets.

Without a mask, an update sets the fields that are not empty in the request; with the mask `*`, it sets all fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from bedrock import v1

ALL = "*"


def paths_to_set(request: v1.UpdateConversationRequest, settable: Collection[str]) -> list[str]:
    """Return the paths of the fields that an update request sets.

    `settable` are the fields that a request without a mask, or with the mask `*`, may set.
    """
    named = list(request.update_mask.paths)
    if not named:
        given = {field.name for field, _ in request.conversation.ListFields()}
        return [field for field in settable if field in given]
    return list(settable) if named == [ALL] else named


def key_of_label(path: str) -> str:
    """Return the key in a path such as `labels.key`. A key with a dot must be in backticks; any other key may be."""
    key = path.partition(".")[2]
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == "`" else key
