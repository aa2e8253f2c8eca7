"""The operator's approval rules: [[approval_rules]] of the settings file."""

from pathlib import Path

import pytest

from actors.adapters.tools.call_subjects import prepared_rule
from actors.core.context import Action, Origin
from server.app.adapter_choice import operator_rules
from server.settings.config import load
from server.settings.setting_values import ConfigError


def written(directory: Path, text: str) -> Path:
    file = directory / "bedrock.toml"
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_rules_are_read_in_their_order(tmp_path: Path) -> None:
    text = """
        [[approval_rules]]
        action = "deny"
        command_prefix = "git push"

        [[approval_rules]]
        action = "allow"
        tool = "look"
    """
    deny, allow = operator_rules(load({}, {}, written(tmp_path, text)), prepared_rule)

    assert (deny.id, deny.action, deny.words, deny.origin) == ("1", Action.DENY, ("git", "push"), Origin.OPERATOR)
    assert (allow.id, allow.action, allow.tool) == ("2", Action.ALLOW, "look")
    assert operator_rules(load({}, {}), prepared_rule) == ()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('action = "never"\ntool = "bash"', r"approval_rules\[1\].action: must be one of allow, ask, deny"),
        ('tool = "bash"', r"approval_rules\[1\].action: required"),
        ('action = "deny"', "must have an action and exactly one of tool, command"),
        ('action = "deny"\ntool = "a"\npath = "/b"', "exactly one of"),
        ('action = "deny"\nwhere = "a"', r"approval_rules\[1\].where: unknown; known keys: action, tool"),
        ('action = "deny"\ntool = 5', r"approval_rules\[1\].tool: must be a non-blank string"),
        ('action = "deny"\ncommand = " "', r"approval_rules\[1\].command: must be a non-blank string"),
        ('action = "allow"\ncommand_prefix = "bash"', r"approval_rules\[1\].command_prefix: must not begin with bash"),
        ('action = "deny"\npath = "src"', r"approval_rules\[1\].path: must be the absolute path of a directory"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named(tmp_path: Path, table: str, said: str) -> None:
    file = written(tmp_path, f"[[approval_rules]]\n{table}\n")
    with pytest.raises(ConfigError, match=rf"bedrock\.toml: .*{said}"):
        operator_rules(load({}, {}, file), prepared_rule)


def test_what_is_no_list_of_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"approval_rules: must be \[\[approval_rules\]\] tables"):
        load({}, {}, written(tmp_path, 'approval_rules = "none"\n'))
