"""Who sent a command, and what decided about a call, is in the log of the conversation, and in its hash chain."""

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.adapters.store.sqlite.store import open_store
from actors.core.content import ToolUse
from actors.core.context import Action, ApprovalPolicy, ApprovalRule
from actors.core.states import AwaitingToolApproval, Idle
from actors.messages import CreateApprovalRuleCommand, DeleteConversationCommand, ResolveApprovalCommand
from actors.ports import ToolOutput
from actors.ports.records import AuditFilter, CommandOrigin, command_origin
from tests.integration.actors.conftest import Talk

World = Any


@pytest.fixture
def world(make_world: Callable[..., World], tmp_path: Path) -> Iterator[World]:
    store = open_store(tmp_path / "data")
    made = make_world(store)
    yield made
    made.close()
    store.close()


@contextmanager
def asking(method: str) -> Generator[None]:
    """Ask as ann, by this method."""
    token = command_origin.set(CommandOrigin("ann", "user", "t1", "unix:", method))
    try:
        yield
    finally:
        command_origin.reset(token)


def trail(world: World) -> list[tuple[str, str, list[tuple[str, str, str, tuple[str, ...]]]]]:
    return [
        (
            entry.origin.principal,
            entry.origin.method,
            [(each.call, each.verdict, each.decided_by, each.rules) for each in entry.decisions],
        )
        for entry in world.services.store.audit(AuditFilter(), limit=99)
    ]


def bash(call_id: str, command: str) -> ToolUse:
    return ToolUse(call_id, "bash", json.dumps({"cmd": command}))


def test_a_command_is_logged_with_who_sent_it_and_what_follows_with_nobody(world: World) -> None:
    with asking("CreateConversation"):
        talk: Talk = world.create()
    with asking("SendMessage"):
        talk.send("go")
    talk.exchange().call(bash("t1", "ls"))
    talk.tool().finish.put(ToolOutput("done"))
    talk.exchange().say("done")
    talk.until(lambda: isinstance(talk.state, Idle))
    assert trail(world) == [("ann", "CreateConversation", []), ("ann", "SendMessage", [])]
    assert world.services.store.verify(talk.id) == ()
    with asking("DeleteConversation"):
        talk.ask(DeleteConversationCommand())
    assert trail(world) == [("ann", "DeleteConversation", [])]


def test_what_decides_about_a_call_is_logged(world: World) -> None:
    talk: Talk = world.create(approval_policy=ApprovalPolicy.ASK_WRITES)
    talk.asks("go").call(bash("t1", "make test"))
    talk.until(lambda: isinstance(talk.state, AwaitingToolApproval))
    with asking("ResolveApproval"):
        talk.ask(ResolveApprovalCommand("t1", approve=True, principal="ann"))
    talk.tool().finish.put(ToolOutput("done"))
    exchange = talk.exchange()
    with asking("CreateApprovalRule"):
        made = talk.ask(CreateApprovalRuleCommand(ApprovalRule("", Action.ALLOW, tool="bash"), "ann"))
    rule = f"conversations/{talk.id}/approvalRules/{made.id}"
    exchange.call(bash("t2", "make test"), ToolUse("t3", "look", "{}"))
    for tool in ("bash", "look"):
        talk.tool(tool).finish.put(ToolOutput("done"))
    exchange = talk.exchange()
    with asking("CreateApprovalRule"):
        made = talk.ask(CreateApprovalRuleCommand(ApprovalRule("", Action.DENY, tool="bash"), "ann"))
    denial = f"conversations/{talk.id}/approvalRules/{made.id}"
    exchange.call(bash("t4", "make test"), ToolUse("t5", "look", "{}"))
    talk.exchange().say("done")
    talk.until(lambda: isinstance(talk.state, Idle))
    assert trail(world) == [
        ("", "", [("t1", "ask", "policy", ())]),
        ("ann", "ResolveApproval", [("t1", "approved", "person", ())]),
        ("ann", "CreateApprovalRule", []),
        ("", "", [("t2", "run", "rules", (rule,)), ("t3", "run", "policy", ())]),
        ("ann", "CreateApprovalRule", []),
        ("", "", [("t4", "deny", "rules", (denial,))]),
    ]
    assert talk.world.services.store.verify(talk.id) == ()


def test_a_cancel_that_is_stored_late_is_still_the_one_of_its_caller(shaky: Any) -> None:
    talk: Talk = shaky.create()
    exchange = talk.asks("go")
    shaky.store.down = True
    with asking("CancelConversation"):
        assert not talk.cancel().recorded
    shaky.store.down = False
    talk.until(lambda: isinstance(talk.state, Idle))
    assert trail(shaky) == [("ann", "CancelConversation", [])]
    assert exchange.cancel.cancelled
