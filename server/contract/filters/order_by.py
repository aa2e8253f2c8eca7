"""Parses the field `order_by` of list requests: the order in which conversations are listed."""

from __future__ import annotations

import re

from actors.ports.store.conditions import LATEST_FIRST, Order, OrderKey
from server.contract.filters.syntax import FilterError

KEYS = {"update_time": OrderKey.UPDATED, "create_time": OrderKey.CREATED, "title": OrderKey.TITLE}
_ORDER = re.compile(rf"( *({'|'.join(KEYS)})( +(asc|desc))?)? *")


def order_of(text: str) -> Order:
    """Return the order that a text such as `title` or `create_time desc` names; the default order for an empty text.

    Raises FilterError for any other text.
    """
    found = _ORDER.fullmatch(text)
    if found is None:
        raise FilterError(0, f"expected one of {', '.join(KEYS)}, with asc or desc after it if you like")
    _, name, _, direction = found.groups()
    return Order(KEYS[name], direction == "desc") if name else LATEST_FIRST
