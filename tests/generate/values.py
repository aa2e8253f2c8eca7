"""Write the client's plain values, clients/bedrock/_shared/values.py and types.py, from the contract.

`python -m tests.generate.values [--check]`, after the stubs. A class has a field for each of its message, with the
comment of the contract. Methods are written by hand, in value_methods.py.
"""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache, reduce
from pathlib import Path
from typing import Any

from bedrock import v1
from google.api import field_behavior_pb2
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from tests.generate.contract import Enum, Message, read_contract

METHODS = Path(__file__).with_name("value_methods.py")
CLIENT = Path(__file__).parents[2] / "clients/bedrock"

READ = (
    "Image Attachment ToolCall ToolResult ContentBlock RunError Message QueuedMessage ApprovalRule "
    "PendingApproval.ModeUpgrade=ModeUpgrade PendingApproval=Approval Question "
    "SubAgent=PendingSubAgent Event.SubAgentsChanged.Report=SubAgentReport Event.SubAgentsChanged "
    "ConversationState.LlmRequesting=LlmRequestingDetail ConversationState.AwaitingApproval=AwaitingApprovalDetail "
    "ConversationState.ToolExecuting=ToolExecutingDetail "
    "ConversationState.AwaitingSubAgents=AwaitingSubAgentsDetail ConversationState.Completed=CompletedDetail "
    "ConversationState.Failed=FailedDetail ConversationState ToolCallGroup AiBlock ResolutionStep InferenceRound "
    "RequestCycle Model Tool "
    "BrowseDirectoryResponse.Entry=DirectoryEntry BrowseDirectoryResponse=DirectoryListing "
    "GetServerInfoResponse.Sandbox GetServerInfoResponse.Limits McpServer.ToolLeftOut=McpToolLeftOut "
    "GetServerInfoResponse=ServerInfo Quota Node AuditEntry.Decision=AuditDecision AuditEntry UnofferedTool "
    "Conversation=ConversationInfo WatchConversationsResponse=ConversationListEvent "
    "CancelConversationResponse=CancelConversationResult SetModeResponse=SetModeResult "
    "ReplayConversationResponse=ReplayStep Transition "
    "Event.TextDelta Event.ToolOutputDelta Event.ClientToolCallChanged Event.QuestionChanged Event.CaughtUp "
    "Event.RunStopped Event.Retrying Event.StreamDiscarded Event.ToolTreeReaped Event.BackgroundJobChanged "
    "Event.ApprovalChanged Event.StateChanged Event.Snapshot Event"
).split()
"""Values that a server answers with, each before those that contain it."""
MADE = (
    "Usage ContextUsage Budget Instructions ToolSelection Generation ClientTool McpServer.Stdio=McpStdio "
    "McpServer.Http=McpHttp McpServer"
).split()
"""Values that callers make, too: their fields have defaults."""
GIVEN = {"ClientTool.name", "McpServer.name", "McpStdio.command", "McpHttp.url"}
"""But for these fields."""
LEFT_OUT = {
    "ConversationListEvent.caught_up",
    "ConversationListEvent.heartbeat",
    "DirectoryListing.next_page_token",
    "Event.deleted",
    "Event.heartbeat",
    "Image.data",
}
ALWAYS_SET = (
    "ApprovalChanged.approval AuditEntry.time CancelConversationResult.state ClientTool.timeout "
    "ClientToolCallChanged.call ClientToolCallChanged.deadline ConversationInfo.aside_usage "
    "ConversationInfo.context_usage ConversationInfo.create_time ConversationInfo.state "
    "ConversationInfo.total_usage ConversationInfo.update_time ConversationState.enter_time Event.time "
    "FailedDetail.error Limits.default_sub_agent_timeout Limits.max_sub_agent_timeout Limits.heartbeat_interval "
    "Limits.watcher_stall_timeout Message.create_time PendingSubAgent.deadline Question.create_time "
    "Question.deadline QuestionChanged.question QueuedMessage.message RequestCycle.start_time Retrying.retry_time "
    "Retrying.error ServerInfo.limits ServerInfo.sandbox SetModeResult.conversation Snapshot.conversation "
    "StateChanged.state ToolExecutingDetail.current ToolTreeReaped.duration Transition.time"
).split()
"""Messages in fields that are never None."""
MAY_BE_EMPTY = (
    "ApprovalChanged.decision ClientTool.group ConversationState.kind Generation.reasoning_effort "
    "McpServer.state Message.delivery Message.error_kind Message.system_kind RequestCycle.stop_reason ToolCall.group "
    "UnofferedTool.reason"
).split()
"""Enums in fields that may say nothing."""
MAY_BE_NONE = {"Question.requested_schema"}
"""Structs in fields that may be None."""

WORDS = (
    "Mode ApprovalPolicy FollowUpPolicy Delivery Disposition ApprovalDecision ApprovalRule.Action=RuleAction "
    "AuditEntry.Outcome=AuditOutcome AuditEntry.Verdict=AuditVerdict AuditEntry.Decider=AuditDecider "
    "ApprovalRule.Origin=RuleOrigin QueuedMessage.Fate ListRequestCyclesRequest.View=CycleView "
    "McpServer.State=McpServerState ReasoningEffort UnofferedTool.Reason=UnofferedReason "
    "Event.BackgroundJobChanged.Status=JobStatus ConversationState.LlmRequesting.Phase=RequestPhase Role "
    "StopReason ToolOutcome Event.ClientToolCallChanged.Status=CallStatus Question.Status=QuestionStatus "
    "Tool.Audience=ToolAudience ToolGroup Model.Protocol=ModelProtocol "
    "GetServerInfoResponse.Sandbox.Tier=SandboxTier StateKind ErrorKind SystemMessageKind ContextState"
).split()

SCALARS = {
    FieldDescriptor.CPPTYPE_STRING: ("str", '""'),
    FieldDescriptor.CPPTYPE_DOUBLE: ("float", "0.0"),
    FieldDescriptor.CPPTYPE_BOOL: ("bool", "False"),
    FieldDescriptor.CPPTYPE_INT32: ("int", "0"),
    FieldDescriptor.CPPTYPE_INT64: ("int", "0"),
}
KNOWN = {"Timestamp": "datetime", "Struct": "dict[str, Any]", "Value": "Any"}

SUMMARY = 108
"""Maximum characters of the first line of a class's docstring."""
HEAD = "# Generated from protos/ by `make protos`; edit the contract.\n"
TYPES = '''\
"""Literal types for the names of modes, policies, states and so on, so that type checkers report misspelt names.

A name is that of an enum value of the gRPC API in lower case and without its prefix: ``"ask_writes"`` is
``APPROVAL_POLICY_ASK_WRITES``. The files in ``protos/bedrock/v1`` describe the values. The empty string means that a
value is not set. A value that only newer versions of the API have is given as its number in digits.
"""

from __future__ import annotations

from typing import Literal

'''
VALUES = '''"""Values that a server answers with, and some that callers make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Literal, cast

from bedrock import v1
from bedrock._shared.wrapper import Value, Wrapper
from bedrock.types import *

'''


def named(entries: list[str]) -> dict[str, str]:
    """Return the names in Python by the names in the contract."""
    pairs = (entry.partition("=") for entry in entries)
    return {name: own or name.rpartition(".")[2] for name, _, own in pairs}


def words(enum: EnumDescriptor) -> list[str]:
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return [value.name.removeprefix(prefix).lower() for value in enum.values if value.number]


def types() -> str:
    """Return the text of types.py."""
    literals = {own: words(_found(name).DESCRIPTOR) for name, own in named(WORDS).items()}
    event, listed = v1.Event.DESCRIPTOR, v1.WatchConversationsResponse.DESCRIPTOR
    kinds = [each.name for each in event.oneofs_by_name["event"].fields if each.name != "heartbeat"]
    literals["EventKind"] = [*kinds, "reasoning_delta"]
    literals["ListEventKind"] = [each.name for each in listed.oneofs_by_name["event"].fields]
    lines = [f"{name} = Literal{values!r}" for name, values in literals.items()]
    return TYPES + "\n".join(lines) + "\n"


@cache
def methods() -> dict[str, str]:
    """Return what is written by hand, by the name of the class: its methods or, of a dataclass, all of it."""
    source = METHODS.read_text(encoding="utf-8")
    lines, found = source.split("\n"), {}
    for each in ast.parse(source).body:
        if isinstance(each, ast.ClassDef):
            first = each.decorator_list[0].lineno - 1 if each.decorator_list else each.lineno
            found[each.name] = "\n".join(lines[first : each.end_lineno]) + "\n"
    return found


class _Values:
    def __init__(self) -> None:
        self._classes = named(READ) | named(MADE)
        self._words = {str(_found(name).DESCRIPTOR.full_name): own for name, own in named(WORDS).items()}
        self._comments: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        for file in read_contract():
            for message in file.messages:
                self._note(message)
            self._note_enums(file.enums)

    def _note(self, message: Message) -> None:
        self._comments[message.name] = message.comment
        self._comments |= {f"{message.name}.{field.name}": field.comment for field in message.fields}
        self._note_enums(message.enums)
        for inner in message.messages:
            self._note(inner)

    def _note_enums(self, enums: tuple[Enum, ...]) -> None:
        for enum in enums:
            prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
            self._constants |= {each.name: f'"{each.name.removeprefix(prefix).lower()}"' for each in enum.values}

    def text(self) -> str:
        """Return the text of values.py."""
        written = "\n\n".join(text for name, text in methods().items() if name not in self._classes.values())
        return VALUES + "".join(self._class(name, own) for name, own in self._classes.items()) + written

    def _class(self, name: str, own: str) -> str:
        made = own in named(MADE).values()
        lines = ["@dataclass(frozen=True, slots=True)", f"class {own}({'Value' if made else 'Wrapper'}[v1.{name}]):"]
        lines += self._docstring(self._comments[name], summary=True)
        descriptors = _found(name).DESCRIPTOR.fields
        for descriptor in sorted(descriptors, key=_is_answered) if made else descriptors:
            if f"{own}.{descriptor.name}" not in LEFT_OUT:
                lines.append(f"    {descriptor.name}: {self._field(own, descriptor, made=made)}")
                lines += self._docstring(self._comments[f"{name}.{descriptor.name}"])
        return "\n".join(lines) + "\n" + methods().get(own, "") + "\n\n"

    def _field(self, own: str, descriptor: FieldDescriptor, *, made: bool) -> str:
        place = f"{own}.{descriptor.name}"
        hint, default = self._type(descriptor)
        if descriptor.is_repeated and not hint.startswith("dict"):
            hint, default = f"tuple[{hint}, ...]", "()"
        elif place in MAY_BE_EMPTY:
            hint = f'{hint} | Literal[""]'
        elif self._may_be_none(descriptor, hint) and place not in ALWAYS_SET:
            hint, default = f"{hint} | None", "None"
        defaults = made and place not in GIVEN
        if place in MAY_BE_NONE:
            hint += " | None"
        if hint.startswith("dict") or hint == "Any":
            return f"{hint} = field({'default_factory=dict, ' if defaults else ''}hash=False)"
        return f"{hint} = {default}" if defaults else hint

    def _may_be_none(self, descriptor: FieldDescriptor, hint: str) -> bool:
        choice = descriptor.containing_oneof
        optional = choice is not None and choice.name == f"_{descriptor.name}"
        return optional or (descriptor.message_type is not None and not hint.startswith(("dict", "Any")))

    def _type(self, descriptor: FieldDescriptor) -> tuple[str, str]:
        """Return the type of one value of a field, and its default."""
        message, enum = descriptor.message_type, descriptor.enum_type
        if enum is not None:
            return self._words[enum.full_name], '""'
        if message is None:
            return SCALARS[descriptor.cpp_type]
        if message.GetOptions().map_entry:
            return f"dict[str, {self._type(message.fields_by_name['value'])[0]}]", "{}"
        if message.name == "Duration":
            return "timedelta", "timedelta()"
        return KNOWN.get(message.name) or self._classes[_short(message)], "None"

    def _docstring(self, comment: str, *, summary: bool = False) -> Iterator[str]:
        comment = re.sub(r"`?\b([A-Z]+_[A-Z_]+)\b`?", lambda found: self._constants.get(found[1], found[0]), comment)
        first, *rest = (" ".join(each.split()) for each in re.split(r"\n\s*\n", comment))
        if summary and len(first) > SUMMARY:
            begun, _, more = first.partition(". ")
            if len(begun) > SUMMARY:
                begun, _, more = first.partition(", ")
                more = more[0].upper() + more[1:]
            first, rest = begun.removesuffix(".") + ".", [more, *rest] if more else rest
        text = "\n\n".join(textwrap.fill(each, 110) for each in (first, *rest))
        quotes = '"""'
        tail = "\n" if "\n" in text else " " if text.endswith('"') else ""
        yield from textwrap.indent(f"{quotes}{text}{tail}{quotes}", "    ").split("\n")


def _is_answered(descriptor: FieldDescriptor) -> bool:
    """Return whether only the server sets a field: callers, who may give values by position, come first."""
    behaviour: list[int] = descriptor.GetOptions().Extensions[field_behavior_pb2.field_behavior]
    return field_behavior_pb2.OUTPUT_ONLY in behaviour


def _found(name: str) -> Any:
    """Return the message class or the enum of a name of the contract, such as `Event.TextDelta`."""
    return reduce(getattr, name.split("."), v1)


def _short(message: Descriptor) -> str:
    return str(message.full_name).removeprefix("bedrock.v1.")


def formatted(text: str, path: Path) -> str:
    """Return the text of a module as ruff formats it, without the names that it does not use."""
    for command in ("check --select F401,F403,F405,I --fix --exit-zero", "format"):
        arguments = [sys.executable, "-m", "ruff", *command.split(), "--quiet", "--stdin-filename", str(path), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> int:
    """Write the modules or, with --check, say which are out of date."""
    imported = ", ".join([*named(WORDS).values(), "EventKind", "ListEventKind"])
    values = _Values().text().replace("types import *", f"types import {imported}")
    texts = {"types.py": types(), "_shared/values.py": values}
    stale = 0
    for name, text in texts.items():
        path = CLIENT / name
        wanted = formatted(HEAD + text, path)
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            stale = 1
            if "--check" not in sys.argv:
                path.write_text(wanted, encoding="utf-8")
            else:
                print(f"clients/bedrock/{name} is out of date: make protos")
    return stale if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
