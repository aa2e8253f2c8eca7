"""Validates requests by the rules in the contract, and by the few that its options cannot express.

All violations in a request are reported together. Checks that need the server's state come later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bedrock import v1
from google.api.field_behavior_pb2 import OPTIONAL, field_behavior

from server.contract.errors import MalformedRequestError
from server.contract.filters.fields import meaning
from server.contract.filters.syntax import FilterError, parse
from server.contract.rules import rules_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from google.protobuf.message import Message

    from server.contract.rules import Violation

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


_BEHAVIOR: Any = field_behavior
_SETTINGS = rules_of(v1.Conversation.DESCRIPTOR).fields
UPDATABLE = tuple(
    field.name
    for field in v1.Conversation.DESCRIPTOR.fields
    if list(field.GetOptions().Extensions[_BEHAVIOR]) == [OPTIONAL] and field.name not in {"mode", "etag"}
)
"""The names of the fields of a conversation that UpdateConversation may set; a mode has a call of its own."""

for _name in dir(v1):
    if _name.endswith("Request"):
        rules_of(getattr(v1, _name).DESCRIPTOR)  # so that a rule that cannot be judged ends the start, not a call


def check(request: Message) -> None:
    """Raise MalformedRequestError, with the first violation in each field, if fields of the request are invalid."""
    found: dict[str, str] = {}
    for field, text in _update(request) if isinstance(request, v1.UpdateConversationRequest) else _violations(request):
        found.setdefault(field, text)
    if found:
        raise MalformedRequestError(*found.items())


def _violations(request: Message) -> Iterator[Violation]:
    found = list(rules_of(request.DESCRIPTOR).violations(request))
    if isinstance(request, v1.ListConversationsRequest | v1.WatchConversationsRequest) and "filter" not in dict(found):
        try:
            parse(request.filter, meaning)  # a grammar, which no option can express
        except FilterError as error:
            yield "filter", str(error)
    yield from found


def _update(request: v1.UpdateConversationRequest) -> Iterator[Violation]:
    """Yield the violations in the fields that an update sets: no option can express what a mask selects.

    Other fields are ignored, so that a client may send a whole conversation in order to change a single field.
    """
    wanted, whole = request.conversation, rules_of(request.DESCRIPTOR).fields["conversation"]
    yield from ((f"conversation.{path}", text) for path, text in filter(None, (each(wanted) for each in whole.checks)))
    for each in paths_to_set(request, UPDATABLE):
        field, _, inner = each.partition(".")
        part = getattr(wanted, field) if field in {"budget", "generation"} else None
        found: Iterable[Violation] = ()
        if each in UPDATABLE:
            found = _SETTINGS[each].of_the_value(getattr(wanted, each)) if each in _SETTINGS else ()
        elif field == "labels" and inner:
            label = {(key := key_of_label(each)): wanted.labels.get(key, "")}
            found = ((each, text) for _, text in _SETTINGS[field].of_the_value(label))
        elif part is not None and inner in part.DESCRIPTOR.fields_by_name:
            found = ((each, text) for _, text in rules_of(part.DESCRIPTOR).fields[inner].violations(part))
        else:
            paths = f"{', '.join(UPDATABLE)}, labels.KEY, budget.FIELD, generation.FIELD, or {ALL} alone"
            yield "update_mask", f"{each!r} cannot be updated; these can: {paths}"
        yield from ((f"conversation.{path}", text) for path, text in found)
