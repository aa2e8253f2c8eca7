"""Approval rules: which tool calls run without a question, which ones always ask, and which never run.

A rule is data, and so is what a call is about: the tools' adapters parse the commands and paths of a call and put them
into a CallSubject, which arrives with the response. So a log is judged again exactly as it was judged.

A denial is read widely, an allowance narrowly: what cannot be seen through might be what a rule denies, and is never
what a rule allows.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Action(StrEnum):
    """What a rule does with the calls that it matches."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Origin(StrEnum):
    """Where a rule comes from."""

    CONVERSATION = "conversation"
    OPERATOR = "operator"


class ApprovalRule(Struct, frozen=True, omit_defaults=True):
    """A rule for tool calls. Exactly one of `tool`, `command`, `command_prefix`, `path` and `mcp_server` is set."""

    id: str
    """Unique among the rules of its origin in a conversation; "" for a suggestion."""
    action: Action
    tool: str = ""
    """The name of a tool."""
    command: str = ""
    """An exact command: the whole text of a call, or one simple command with exactly these words."""
    command_prefix: str = ""
    """The beginning of a simple command, whole words."""
    path: str = ""
    """An absolute directory without links: what tools with a path read and write beneath it."""
    mcp_server: str = ""
    """The name of an MCP server."""
    words: tuple[str, ...] = ()
    """The words of `command_prefix`, or of `command` if that is one simple command, without the shell's quoting."""
    created_at: int = 0
    """In milliseconds since the epoch; 0 if unknown."""
    creator: str = ""
    """The principal that made the rule; "" if unknown."""
    origin: Origin = Origin.CONVERSATION

    @property
    def subject(self) -> tuple[str, str, str, str, str]:
        """What the rule is about: two rules with the same subject and action are equal."""
        return self.tool, self.command, self.command_prefix, self.path, self.mcp_server


class ShellCommand(Struct, frozen=True, omit_defaults=True):
    """A simple command within the text of a call."""

    words: tuple[str, ...]
    """Its words without quotes, up to the first one that is not known before it runs."""
    open: bool = False
    """Whether further words follow that are not known before it runs: variables, patterns."""
    runs_others: bool = False
    """Whether it may run commands that its words do not show, as shells, interpreters and wrappers do."""


class CallSubject(Struct, frozen=True, omit_defaults=True):
    """What a call is about, as the adapter of its tool read it before it runs."""

    text: str = ""
    """The whole command; "" for tools without one."""
    commands: tuple[ShellCommand, ...] = ()
    """All simple commands in it, unless it is `opaque`."""
    inner: tuple[ShellCommand, ...] = ()
    """What was found in an opaque text, and in what other commands run; there may be more."""
    opaque: bool = False
    """Whether it cannot be told which commands it runs."""
    paths: tuple[str, ...] = ()
    """The absolute paths without links that the tool reads or writes."""
    trees: tuple[str, ...] = ()
    """The directories that it reads with everything beneath them, likewise."""
    also_reads: tuple[str, ...] = ()
    """Paths that it reads beside what else it does, likewise: permission to read them does not permit the call."""


class Suggested(Struct, frozen=True, omit_defaults=True):
    """The rules about one call that waits for a person."""

    tool_use_id: str
    rules: tuple[ApprovalRule, ...]
    """Those by which calls like it may be allowed, the narrowest first; without ids."""
    asked_by: ApprovalRule | None = None
    """The rule that made the call ask; None if none did."""
