"""Enum values by their short names: ``"steer"`` for ``DELIVERY_STEER`` and the other way round."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

E = TypeVar("E", bound=int)


def enum_value(enum: _EnumTypeWrapper[E], value: str | None) -> E:
    """Return the value of `enum` that `value` names.

    Args:
        enum: The enum, e.g. ``v1.Delivery``.
        value: A short name such as "follow_up", or None for the value that means "not given".

    Raises:
        ValueError: There is no such name; the text lists those that exist.
    """
    if value is None:
        return cast("E", 0)
    known = {name.removeprefix(_prefix(enum)).lower(): number for name, number in enum.items() if number}
    if value in known:
        return known[value]
    raise ValueError(f"{value!r} is no {enum.DESCRIPTOR.name}; choose one of: {', '.join(known)}")


def enum_name(enum: _EnumTypeWrapper[E], value: E) -> str:
    """Return the short name of an enum value, e.g. "follow_up"; empty if it is zero, or newer than this version."""
    descriptor = enum.DESCRIPTOR.values_by_number.get(value) if value else None
    return "" if descriptor is None else descriptor.name.removeprefix(_prefix(enum)).lower()


def resource_name(collection: str, name: str) -> str:
    """Return the full resource name for an id, a slug, or a name that is full already.

    Raises:
        ValueError: The name is empty.
    """
    if not name:
        raise ValueError(f"the name of one of the {collection} is empty")
    return name if name.startswith(collection + "/") else f"{collection}/{name}"


def _prefix(enum: _EnumTypeWrapper[E]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", enum.DESCRIPTOR.name).upper() + "_"
