"""The data of approval rules, which decide whether a tool call runs, needs a person's approval, or is denied.

What a call would do is data, too: the tools' adapters parse the commands and paths of a call and put them into a
CallSubject, which arrives with the model's response. Replaying a log therefore gives the same decisions again.

Rules that deny are applied broadly, rules that allow narrowly: a call that cannot be fully analysed counts as a
possible match for a rule that denies, and never matches a rule that allows.
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
    """Who made a rule: a client, for one conversation, or the operator of the server."""

    CONVERSATION = "conversation"
    OPERATOR = "operator"


class ApprovalRule(Struct, frozen=True, omit_defaults=True):
    """A rule for tool calls. Exactly one of `tool`, `command`, `command_prefix`, `path` and `mcp_server` is set."""

    id: str
    """The id, unique among a conversation's rules of the same origin; "" for a rule that is only suggested."""
    action: Action
    tool: str = ""
    """The rule is for calls of the tool with this name."""
    command: str = ""
    """The rule is for this command: the whole text of a call, or one simple command with exactly these words."""
    command_prefix: str = ""
    """The rule is for simple commands that begin with these words."""
    path: str = ""
    """An absolute directory without symbolic links: the rule is for tools that read or write files beneath it."""
    mcp_server: str = ""
    """The rule is for calls of all tools of the MCP server with this name."""
    words: tuple[str, ...] = ()
    """The words of `command_prefix`, or of `command` if that is one simple command, without the shell's quoting."""
    created_at: int = 0
    """When the rule was made, in milliseconds since the epoch; 0 if unknown."""
    creator: str = ""
    """The principal (person or service) that made the rule; "" if unknown."""
    origin: Origin = Origin.CONVERSATION

    @property
    def subject(self) -> tuple[str, str, str, str, str]:
        """The fields that decide which calls match. Rules with the same subject and action are duplicates."""
        return self.tool, self.command, self.command_prefix, self.path, self.mcp_server


class ShellCommand(Struct, frozen=True, omit_defaults=True):
    """One simple command (a program with arguments) within the text of a shell call."""

    words: tuple[str, ...]
    """The words of the command without quotes, up to the first word that is known only when the command runs."""
    open: bool = False
    """Whether more words follow that are known only when the command runs, such as variables and patterns."""
    runs_others: bool = False
    """Whether the command may run others that `words` does not name; only in logs before `Rules.NOTHING_LOST`."""


class CallSubject(Struct, frozen=True, omit_defaults=True):
    """What a call would do, as far as the tool's adapter can tell before the call runs."""

    text: str = ""
    """The text of the whole command; "" for tools that run no command."""
    commands: tuple[ShellCommand, ...] = ()
    """All simple commands in the text; incomplete if `opaque` is set."""
    inner: tuple[ShellCommand, ...] = ()
    """Simple commands inside the arguments of other commands, or inside an opaque text; there may be more."""
    opaque: bool = False
    """Whether the text may run commands that could not be determined."""
    paths: tuple[str, ...] = ()
    """The absolute paths, without symbolic links, that the tool reads or writes."""
    trees: tuple[str, ...] = ()
    """The directories that the tool reads with everything beneath them; absolute, without symbolic links."""
    also_reads: tuple[str, ...] = ()
    """Further paths that the tool reads. A rule that allows these paths alone does not allow the call."""
    workspace: bool = False
    """Whether the call asks for the unrestricted mode where a person can grant the workspace mode instead."""


class Suggested(Struct, frozen=True, omit_defaults=True):
    """The suggested approval rules for one call that waits for a person."""

    tool_use_id: str
    rules: tuple[ApprovalRule, ...]
    """Rules that would allow calls like this one, the narrowest first. Their `id` is ""."""
    asked_by: ApprovalRule | None = None
    """The rule that made approval necessary; None if no rule did."""
    workspace: bool = False
    """Whether a person can grant the workspace mode instead of the mode that the call asks for."""
