"""Converts between protobuf enum values and their short names, such as ``DELIVERY_STEER`` and ``"steer"``."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

E = TypeVar("E", bound=int)


def enum_value(enum: _EnumTypeWrapper[E], value: str | None) -> E:
    """Return the enum value that has a short name.

    Args:
        enum: The enum, e.g. ``v1.Delivery``.
        value: A short name such as "follow_up", or None for the value 0, which means "not given".

    Raises:
        ValueError: The enum has no such name; the error text lists the names that exist.
    """
    if value is None:
        return cast("E", 0)
    known = {name: number for number, name in _short_names(enum.DESCRIPTOR).items() if number}
    if value in known:
        return cast("E", known[value])
    raise ValueError(f"{value!r} is no {enum.DESCRIPTOR.name}; choose one of: {', '.join(known)}")


def enum_name(enum: _EnumTypeWrapper[E], value: E) -> str:
    """Return the short name of an enum value, e.g. "follow_up"; see `number_name`."""
    return number_name(enum.DESCRIPTOR, value)


def number_name(enum: EnumDescriptor, number: int) -> str:
    """Return the short name of an enum value given by its number, e.g. "follow_up" for 3.

    Returns "" for zero, which means "not set", and the digits of the number for a value that this version does not
    define.
    """
    return _short_names(enum).get(number, str(number))


def resource_name(collection: str, name: str) -> str:
    """Return the full resource name for an id, a slug, or a name that is already full.

    Raises:
        ValueError: The name is empty.
    """
    if not name:
        raise ValueError(f"the name of one of the {collection} is empty")
    return name if name.startswith(collection + "/") else f"{collection}/{name}"


@cache
def _short_names(enum: EnumDescriptor) -> dict[int, str]:
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
    names = {number: value.name.removeprefix(prefix).lower() for number, value in enum.values_by_number.items()}
    return {**names, 0: ""}
