"""An operation has one stem everywhere: the RPC SetMode, SetModeCommand, `set_mode`, SetModeResult, SetModeResponse."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import bedrock
import pytest
from bedrock import conversations
from bedrock.v1 import catalog_service_pb2, conversation_service_pb2

from actors import messages
from actors.conversation.command_dispatch import CommandDispatch
from server.auth.authorization import READING
from server.wire import commands

SERVICES = [
    service
    for file in (catalog_service_pb2, conversation_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
]
CHANGING = {method.name for service in SERVICES for method in service.methods} - READING
SHARED = {"UnarchiveConversation": "ArchiveConversation"}
"""Operations that are the same command with another value."""
OF_THE_SERVER = {"SetGeneratedTitle"}
"""Commands that no client sends."""
OF_SEVERAL_METHODS = {"ResolveApproval": {"approve", "deny"}}
"""Operations that the client divides."""
COMMANDS = CHANGING - SHARED.keys() | OF_THE_SERVER


def stems(module: Any, suffix: str) -> set[str]:
    """The names of the classes with this suffix that a module defines, without it."""
    return {name.removesuffix(suffix) for name in vars(module) if re.fullmatch(rf"[A-Z]\w+{suffix}", name)}


def snake(stem: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", stem).lower()


def functions(home: Any, annotated: Callable[[inspect.Signature], str], pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the stem in the annotation, and the name, of each function whose annotation is as given."""
    for name, function in vars(home).items():
        if inspect.isfunction(function) and (found := re.fullmatch(pattern, annotated(inspect.signature(function)))):
            yield found[1], name


def of_request(signature: inspect.Signature) -> str:
    return str(signature.parameters["request"].annotation) if "request" in signature.parameters else ""


def test_every_rpc_that_changes_something_is_a_command_of_its_name() -> None:
    assert stems(messages, "Command") == COMMANDS | {"Conversation", "Creating"}, "and what unions are called"
    assert stems(messages, "Result") <= COMMANDS


@pytest.mark.parametrize(
    ("home", "annotated", "pattern", "suffix"),
    [
        (commands, lambda signature: str(signature.return_annotation), r"requests\.(\w+)Command", ""),
        (commands, lambda signature: str(signature.return_annotation), r"v1\.(\w+)Response", "_response"),
        (CommandDispatch, of_request, r"messages\.(\w+)Command", ""),
    ],
    ids=["requests", "responses", "dispatch"],
)
def test_functions_are_named_like_the_rpc(
    home: Any, annotated: Callable[[inspect.Signature], str], pattern: str, suffix: str
) -> None:
    found = [(stem, name) for stem, name in functions(home, annotated, pattern) if stem in COMMANDS]
    assert len(found) > 4
    assert [name.lstrip("_") for _, name in found] == [snake(stem) + suffix for stem, _ in found]


@pytest.mark.parametrize("stem", sorted(CHANGING))
def test_the_client_has_a_method_of_the_name_or_of_its_verb(stem: str) -> None:
    """On a conversation `cancel` is enough."""
    methods = {*vars(bedrock.AsyncClient), *(name for name, _ in inspect.getmembers(bedrock.AsyncConversation))}
    verbs = {name for name in methods if f"{snake(stem)}_".startswith(name.rstrip("_") + "_")}
    assert verbs or methods >= OF_SEVERAL_METHODS[stem]


def test_the_clients_results_are_named_like_the_rpc() -> None:
    shown = {
        get_args(base)[0].__name__.removesuffix("Response"): kind.__name__
        for kind in vars(conversations).values()
        for base in getattr(kind, "__orig_bases__", ())
    }
    assert {"CancelConversation", "SetMode"} <= shown.keys() & CHANGING
    assert {stem: shown[stem] for stem in shown.keys() & CHANGING if shown[stem] != f"{stem}Result"} == {}
