"""Approval rules of the operator, from the settings file to the agent and to clients."""

from pathlib import Path

import pytest
from bedrock.errors import NotFound

from tests.support.chat import Chat
from tests.support.fake_provider import FakeProvider, calls, says
from tests.support.server_process import Servers, provider

SETTINGS = """
[[approval_rules]]
action = "deny"
command_prefix = "git push"

[[approval_rules]]
action = "allow"
command = "echo tool ran"
"""


def test_the_operator_decides_in_advance_and_no_conversation_undoes_a_denial(
    start_server: Servers, fake_provider: FakeProvider, tmp_path: Path
) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    settings.chmod(0o600)
    server = start_server(tmp_path, "--config", str(settings), **provider(fake_provider.url))
    with server.client() as client:
        part = fake_provider.part(
            calls(("bash", {"cmd": "echo 'tool' ran"})), calls(("bash", {"cmd": "cd . && git  pu\\sh"})), says("I see.")
        )
        chat = Chat(client, part, tmp_path, approval_policy="ask_all")
        allowed = chat.conversation.create_approval_rule("allow", command_prefix="git push")
        assert chat.ask("Go.") == "I see."
        assert "tool ran" in str(part.exchanges[1].results)
        (denied,) = part.exchanges[2].results
        assert "a rule of the server denies commands that begin with 'git push'" in str(denied)

        rules = list(chat.conversation.approval_rules())
        assert [(rule.name, rule.origin, rule.action) for rule in rules] == [
            ("approvalRules/1", "operator", "deny"),
            ("approvalRules/2", "operator", "allow"),
            (allowed.name, "conversation", "allow"),
        ]
        assert [chat.conversation.approval_rule(rule) for rule in rules] == rules
        assert allowed.create_time
        chat.conversation.delete_approval_rule(allowed)
        for gone in (allowed, "approvalRules/9", "r1"):
            with pytest.raises(NotFound) as missing:
                chat.conversation.approval_rule(gone)
            assert missing.value.resource.endswith(str(getattr(gone, "name", gone)))
        with pytest.raises(NotFound) as missing:
            chat.conversation.delete_approval_rule(allowed)
        assert missing.value.resource == allowed.name
        chat.assert_valid()
