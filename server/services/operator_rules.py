"""Reads the approval rules that the operator sets for all conversations: [[approval_rules]] in the settings file."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from actors.core.context import Action, ApprovalRule, Origin
from actors.ports import InvalidApprovalRuleError
from server.config import Config

SUBJECTS = ("tool", "command", "command_prefix", "path", "mcp_server")


def operator_rules(config: Config, prepared: Callable[[ApprovalRule], ApprovalRule]) -> tuple[ApprovalRule, ...]:
    """Return the operator's approval rules, in the order of the settings file.

    `prepared` is `Toolbox.prepared_rule`, which splits a command into words and resolves a path. Raises ConfigError for
    an invalid rule.
    """
    rules: list[ApprovalRule] = []
    for number, table in enumerate(config.approval_rules, 1):
        place = f"approval_rules[{number}]"
        try:
            rules.append(prepared(_rule(str(number), dict(table))))
        except InvalidApprovalRuleError as invalid:
            raise config.refusal(f"{place}.{invalid.field}: {invalid}") from None
        except ValueError as error:
            raise config.refusal(f"{place}: {error}") from None
    return tuple(rules)


def _rule(rule_id: str, table: dict[str, object]) -> ApprovalRule:
    name = table.pop("action", None)
    action = next((each for each in Action if each == name), None)
    if action is None:
        raise ValueError(f"action must be one of {', '.join(Action)}")
    if len(table) != 1 or not table.keys() <= set(SUBJECTS):
        raise ValueError(f"must have an action and exactly one of {', '.join(SUBJECTS)}")
    texts = {subject: text for subject, text in table.items() if isinstance(text, str) and text.strip()}
    if not texts:
        raise ValueError(f"{', '.join(table)} must be a text")
    return replace(ApprovalRule(rule_id, action, origin=Origin.OPERATOR), **texts)
