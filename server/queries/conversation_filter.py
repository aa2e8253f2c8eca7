"""Converts the filter and the order in a request to a selection of conversations. Blocks; runs in a `ReadPool`."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from actors.ports.store.conditions import (
    Condition,
    IsWithin,
    Selection,
    TextEquals,
    TextField,
    conjuncts,
    leaves,
    rewritten,
)
from server.contract.filters.fields import meaning
from server.contract.filters.order_by import order_of
from server.contract.filters.syntax import parse

if TYPE_CHECKING:
    from actors.ports import ConversationReader


def selection_of(
    store: ConversationReader, principal: str, text: str, order_by: str, *, parent: str | None = None
) -> Selection:
    """Return the selection of conversations for a filter (`text`) and an order, which must be valid.

    If `parent`, the id of a conversation, is given, only its sub-agents are selected; otherwise the filter alone
    decides. Paths and names of conversations in the filter are resolved now, because a path may contain a symbolic
    link, and a name may contain a slug.
    """
    where = rewritten(parse(text, meaning), partial(_looked_up, store, principal))
    order = order_of(order_by)
    if parent is not None:
        return Selection(principal, where, order, parent)
    parent = next(filter(None, map(_parent, conjuncts(where))), None)
    mixed = parent is None and any(map(_about_parent, leaves(where)))
    return Selection(principal, where, order, parent, sub_agents=mixed)


def _looked_up(store: ConversationReader, principal: str, condition: Condition) -> Condition:
    match condition:
        case TextEquals(TextField.DIRECTORY, path):
            return TextEquals(TextField.DIRECTORY, os.path.realpath(path))
        case IsWithin(path):
            return IsWithin(os.path.realpath(path))
        case TextEquals(TextField.PARENT | TextField.FORKED_FROM as field, name) if name:
            return TextEquals(field, store.find_slug(principal, name) or name)
        case _:
            return condition


def _about_parent(condition: Condition) -> bool:
    return isinstance(condition, TextEquals) and condition.field is TextField.PARENT


def _parent(condition: Condition) -> str:
    """Return the id of the parent conversation that a condition demands; "" if the condition demands none."""
    return condition.value if isinstance(condition, TextEquals) and condition.field is TextField.PARENT else ""
