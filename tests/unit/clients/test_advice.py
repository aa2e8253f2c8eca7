"""What is printed about an error is in terms of what was typed, not of calls."""

import inspect
import re

import pytest
from bedrock import errors, v1
from bedrock.cli.exit_codes import CommandError, what_happened, what_to_do

from actors.core.errors import REFUSAL_TEXTS, Reason
from server.contract.errors import MalformedRequestError
from server.contract.validation import check

ALL = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, errors.BedrockError)]


@pytest.mark.parametrize("in_chat", [False, True])
@pytest.mark.parametrize("kind", [each for each in ALL if each is not errors.ApprovalNeeded])
def test_no_advice_names_an_argument_or_a_method(kind: type[errors.BedrockError], in_chat: bool) -> None:
    advice = what_to_do(kind("refused"), in_chat=in_chat)
    assert not re.search(r"\w=|`(unarchive|approve|deny|ask)`|ask for events|request cycle", advice)


def test_a_chat_says_what_its_keys_do_while_the_agent_is_busy() -> None:
    assert "Esc" in what_to_do(errors.AgentBusy("busy"), in_chat=True)
    assert "bedrock cancel" in what_to_do(errors.AgentBusy("busy"))


def test_a_mistyped_name_is_reported_as_it_was_typed() -> None:
    error = errors.NotFound("gone", resource="conversations/nope")
    assert what_happened(error) == "conversation 'nope' not found"
    assert "bedrock list" in what_to_do(error)
    model = errors.NotFound("models/x does not exist", resource="models/x")
    assert (what_happened(model), what_to_do(model)) == ("model 'x' not found", "See `bedrock models`.")
    rule = errors.NotFound("gone", resource="conversations/c1/approvalRules/r1")
    assert (what_to_do(rule, name="mine"), what_to_do(rule, in_chat=True)) == ("See `bedrock rules mine`.", "")
    run = errors.InvalidArgument("request_cycle: none", fields={"request_cycle": "none"})
    assert what_to_do(run, name="mine") == "`bedrock cycles mine` lists its runs."
    other = errors.NotFound("no such message", resource="conversations/c1/messages/m1")
    assert (what_happened(other), what_to_do(other)) == (other.message, "")


def test_a_name_that_cannot_be_one_is_not_explained_by_the_contract() -> None:
    with pytest.raises(MalformedRequestError, match="ListConversations") as refused:
        check(v1.GetConversationRequest(name="conversations/no/such"))
    told = CommandError.of(errors.InvalidArgument(str(refused.value), fields=dict(refused.value.violations)))
    assert (told.message, told.hint) == ("that is not the slug or id of a conversation", "See `bedrock list`.")


def test_who_was_too_late_can_look() -> None:
    late = errors.UnknownOrDecided("waits no more")
    assert (what_to_do(late, name="mine"), what_to_do(late, in_chat=True)) == ("See `bedrock show mine`.", "")


@pytest.mark.parametrize("kind", [errors.Terminal, errors.ContextExhausted])
def test_a_conversation_that_has_ended_may_have_a_successor(kind: type[errors.BedrockError]) -> None:
    ended = kind("it has ended")
    assert "`bedrock continue mine`" in what_to_do(ended, name="mine")
    assert "/continue" in what_to_do(ended, in_chat=True)


def test_advice_that_the_message_gives_is_not_repeated() -> None:
    error = errors.NotExhausted("the context is not full: send a message instead")
    assert what_to_do(error, in_chat=True) == ""


@pytest.mark.parametrize("in_chat", [False, True])
def test_a_store_that_cannot_write_is_a_matter_of_the_server(in_chat: bool) -> None:
    """What the message says to programs is nothing that a person can do."""
    error = errors.Unavailable(REFUSAL_TEXTS[Reason.STORE_UNAVAILABLE], reason="STORE_UNAVAILABLE")
    assert what_happened(error) == "the store cannot confirm the change now"
    assert "full disk" in what_to_do(error, in_chat=in_chat)
