"""Reads the field `order_by` of list requests: the order in which conversations are listed."""

from __future__ import annotations

from actors.ports.store.conditions import LATEST_FIRST, Order, OrderKey

_KEYS = {"update_time": OrderKey.UPDATED, "create_time": OrderKey.CREATED, "title": OrderKey.TITLE}


def order_of(text: str) -> Order:
    """Return the order that a text such as `title` or `create_time desc` names; the default order for an empty text.

    The contract has a rule for this text, by which the request was checked.
    """
    name, _, direction = text.strip().partition(" ")
    return Order(_KEYS[name], direction.strip() == "desc") if name else LATEST_FIRST
