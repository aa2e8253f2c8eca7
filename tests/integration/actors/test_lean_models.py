"""A model that is slow to read is told little first, and offered the essential tools only."""

from typing import Any

import msgspec

from actors.core.states import ContextExhausted, Idle
from actors.messages import ContinueConversationCommand, TriggerContinuationCommand
from tests.integration.actors.conftest import Box, ScriptedModel


class LeanModel(ScriptedModel):
    info = msgspec.structs.replace(ScriptedModel.info, lean=True)


def test_a_lean_model_is_offered_the_essential_tools_and_a_short_prompt(make_world: Any) -> None:
    box = Box()
    box.tools["look"].spec = msgspec.structs.replace(box.tools["look"].spec, essential=True)
    asked = []
    for model in (ScriptedModel(), LeanModel()):
        talk = make_world(model=model, box=box).create()
        exchange = talk.asks("hello")
        asked.append(exchange.request)
        exchange.say("Hello.")
        talk.rest(Idle)
    full, lean = asked
    assert [spec.name for spec in full.tools] == ["bash", "look"]
    assert [spec.name for spec in lean.tools] == ["look"]
    assert len(lean.system) < len(full.system) / 3


def test_the_successor_of_a_lean_conversation_is_lean(make_world: Any) -> None:
    world = make_world(model=LeanModel())
    talk = world.create()
    talk.turn("hello", "Hello.")
    talk.ask(TriggerContinuationCommand())
    talk.answer("They said hello.", ContextExhausted)
    successor = talk.ask(ContinueConversationCommand(include_summary=True))
    assert len(successor.system_prompt) < 600
