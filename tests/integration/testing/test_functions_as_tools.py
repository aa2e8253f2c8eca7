"""Functions of a program as tools of its agent: with a real server, and a model that calls them."""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from bedrock import ClientTool, Conversation, RunInterrupted, ToolAnswer
from bedrock.errors import InvalidArgument, ToolNotOffered
from bedrock.testing import Bedrock
from bedrock.testing.plays import calls, says

from tests.support.patience import PATIENCE
from tests.support.pictures import png

pytest_plugins = ["bedrock.testing.plugin"]


@dataclass
class Order:
    number: int
    state: Literal["open", "shipped"] = "open"


def find_order(number: int, verbose: bool = False) -> Order:
    """Find an order by its number."""
    if number == 0:
        raise LookupError("there is no order 0")
    return Order(number, "shipped" if verbose else "open")


@pytest.fixture
def desk(bedrock: Bedrock, tmp_path: Path) -> Conversation:
    """A conversation that has the function, in a mode that offers it."""
    return bedrock.client.create(tmp_path, mode="unrestricted", tools=[], client_tools=[find_order])


def results(bedrock: Bedrock) -> list[str]:
    """What the model got of each call."""
    return [str(result["content"]) for asked in bedrock.model.requests for result in asked.results]


def test_the_model_gets_what_functions_return_and_raise(bedrock: Bedrock, tmp_path: Path) -> None:
    conversation = bedrock.client.create(tmp_path, mode="unrestricted", tools=[])

    @conversation.tool
    def look(of: str) -> ToolAnswer:
        """Show a thing."""
        return ToolAnswer(f"a picture of {of}", [png()])

    conversation.tool(read_only=True, group="read", name="find")(find_order)
    bedrock.model.then(calls(("find", {"number": 7}), ("find", {"number": 0}), ("find", {"number": "x"})))
    bedrock.model.then(calls(("look", {"of": "a cat"})), says("All done."))

    assert conversation.ask("Go.") == "All done."

    first = bedrock.model.requests[0]
    assert first.tools == ["look", "find"]
    assert first.body["tools"][1]["description"] == "Find an order by its number."
    assert first.body["tools"][1]["input_schema"]["required"] == ["number"]
    found, missing, wrong, seen = results(bedrock)
    assert '{"number":7,"state":"open"}' in found
    assert "LookupError: there is no order 0" in missing
    assert "does not match its schema" in wrong
    assert "a picture of a cat" in seen
    assert "base64" in seen
    declared = {tool.name: tool for tool in conversation.get().client_tools}
    assert (declared["find"].read_only, declared["find"].group, declared["look"].read_only) == (True, "read", False)


def test_a_function_that_the_mode_does_not_offer_is_refused_before_anything_is_made_unless_that_is_allowed(
    bedrock: Bedrock, tmp_path: Path
) -> None:
    def ship(number: int) -> str:
        """Ship an order."""
        return f"shipped {number}"

    with pytest.raises(ToolNotOffered, match="ship would not be offered: restricted mode") as refusal:
        bedrock.client.create(tmp_path, mode="restricted", client_tools=[ship])
    assert "choose another mode" in refusal.value.hint
    assert list(bedrock.client.conversations()) == []
    conversation = bedrock.client.create(tmp_path, mode="restricted", client_tools=[ship], allow_unoffered=True)
    (left_out,) = conversation.get().unoffered_tools
    assert (left_out.name, left_out.reason) == ("ship", "mode")
    assert conversation.set_mode("workspace").conversation.unoffered_tools == ()
    assert conversation.set_mode("restricted").conversation.unoffered_tools == (left_out,)
    with pytest.raises(ToolNotOffered):
        conversation.update(client_tools=[ClientTool("other")])
    assert (
        conversation.update(client_tools=[ClientTool("other")], allow_unoffered=True).unoffered_tools[0].name == "other"
    )
    logged = [json.loads(line) for line in bedrock.server.log().splitlines()]
    assert [line["message"] for line in logged] == [
        f"client tools not offered in restricted mode: {name}" for name in ("ship", "ship", "other")
    ]
    assert {f"conversations/{line['conversation']}" for line in logged} == {conversation.name}


def test_a_message_is_not_sent_while_the_mode_does_not_offer_a_function(bedrock: Bedrock, tmp_path: Path) -> None:
    conversation = bedrock.client.create(tmp_path, mode="restricted", tools=[])

    @conversation.tool
    def ship() -> str:
        """Ship an order."""
        return "shipped"

    async def main() -> None:
        async with bedrock.async_client() as client:
            other = client.conversation(conversation.name)
            other.tool(ship)
            with pytest.raises(ToolNotOffered, match="ship would not be offered"):
                await other.serve_tools()

    for _ in range(2):
        with pytest.raises(ToolNotOffered, match="ship would not be offered"):
            conversation.send("Go.")
    asyncio.run(main())
    assert list(conversation.messages()) == []
    conversation.tool(allow_unoffered=True)(ship)
    bedrock.model.then(says("I cannot."))
    assert conversation.ask("Go.") == "I cannot."
    conversation.set_mode("unrestricted")
    bedrock.model.then(calls(("ship", {})), says("Done."))
    assert conversation.ask("And now?") == "Done."


@pytest.mark.parametrize("length", [(256 << 10) + 1, 33 << 20], ids=["no answer", "no request"])
@pytest.mark.parametrize("how", ["result", "error"])
def test_an_answer_that_is_too_large_is_an_error_for_the_model_and_nothing_waits(
    bedrock: Bedrock, tmp_path: Path, length: int, how: str
) -> None:
    def fetch() -> str:
        """Fetch all."""
        if how == "error":
            raise ValueError("x" * length)
        return "x" * length

    conversation = bedrock.client.create(tmp_path, mode="unrestricted", tools=[], client_tools=[fetch])
    bedrock.model.then(calls(("fetch", {})), says("Too much."))
    assert conversation.ask("Go.") == "Too much."
    (got,) = results(bedrock)
    assert re.search(r"was rejected: .*(at most 262144 bytes|larger than max)|^.{,2000}$", got), got[:200]


def test_the_refusal_of_an_answer_says_that_its_call_waits_on(bedrock: Bedrock, tmp_path: Path) -> None:
    conversation = bedrock.client.create(
        tmp_path, mode="unrestricted", tools=[], client_tools=[ClientTool("fetch", "Fetches all.")]
    )
    bedrock.model.then(calls(("fetch", {})), says("Thank you."))
    run = conversation.send("Go.")
    call = next(event.client_tool_call_changed for event in run if event.client_tool_call_changed).call
    with pytest.raises(InvalidArgument, match="the call is still waiting: answer with less output or with an error"):
        conversation.submit_tool_result(call, "x" * ((256 << 10) + 1))
    conversation.submit_tool_result(call, "x")
    assert run.answer() == "Thank you."


def test_on_an_event_loop_plain_functions_have_threads_and_others_are_awaited(bedrock: Bedrock, tmp_path: Path) -> None:
    threads: list[threading.Thread] = []

    def plain(number: int) -> int:
        threads.append(threading.current_thread())
        return number + 1

    async def awaited(number: int) -> str:
        threads.append(threading.current_thread())
        await asyncio.sleep(0)
        return f"<{number}>"

    async def main() -> str:
        async with bedrock.async_client() as client:
            conversation = await client.create(tmp_path, mode="unrestricted", client_tools=[plain])
            conversation.tool(awaited)
            return await conversation.ask("Go.")

    bedrock.model.then(calls(("plain", {"number": 1}), ("awaited", {"number": 2})), says("Done."))
    assert asyncio.run(main()) == "Done."
    here = threading.current_thread()
    assert [thread is here for thread in threads] == [False, True]
    assert ["2" in results(bedrock)[0], "<2>" in results(bedrock)[1]] == [True, True]


def test_a_program_serves_tools_for_messages_of_others_also_one_that_waited_already(
    bedrock: Bedrock, desk: Conversation
) -> None:
    bedrock.model.then(calls(("find_order", {"number": 4})), says("Four."))
    run = bedrock.client.conversation(desk.name).send("Which?")
    assert bedrock.wait_for_state(desk, "tool_executing").tool_executing
    with bedrock.server.client() as other:
        served = other.conversation(desk.name)
        served.tool(find_order)
        serving = threading.Thread(target=served.serve_tools)
        serving.start()
        assert run.answer() == "Four."
        desk.delete(force=True)
        serving.join(PATIENCE)
        assert not serving.is_alive(), "it ends with the conversation"
    assert '"number":4' in results(bedrock)[0]


def test_two_loops_of_one_program_call_a_function_once(bedrock: Bedrock, tmp_path: Path) -> None:
    called: list[int] = []

    def count(number: int) -> None:
        called.append(number)

    conversation = bedrock.client.create(tmp_path, mode="unrestricted", client_tools=[count])
    serving = threading.Thread(target=conversation.serve_tools)
    serving.start()
    bedrock.model.then(*(calls(("count", {"number": number})) for number in range(5)), says("Done."))
    assert conversation.ask("Go.") == "Done."
    conversation.delete(force=True)
    serving.join(PATIENCE)
    assert called == [0, 1, 2, 3, 4]


def test_a_call_that_is_answered_already_is_left_alone(bedrock: Bedrock, tmp_path: Path) -> None:
    called: list[str] = []

    def ship() -> None:
        called.append("shipped twice")

    conversation = bedrock.client.create(tmp_path, mode="unrestricted", client_tools=[ship])
    bedrock.model.then(calls(("ship", {})), says("Done."))
    for event in conversation.send("Go."):
        changed = event.client_tool_call_changed
        if changed and changed.status == "pending":
            conversation.submit_tool_result(changed.call, "shipped by hand")
    assert called == []
    assert "shipped by hand" in results(bedrock)[0]


def test_a_result_that_comes_after_a_cancel_changes_nothing(bedrock: Bedrock, tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow() -> str:
        entered.set()
        assert leave.wait(PATIENCE)
        return "too late"

    conversation = bedrock.client.create(tmp_path, mode="unrestricted", client_tools=[slow])
    bedrock.model.then(calls(("slow", {})))
    ended: list[BaseException] = []
    asking = threading.Thread(target=ended_with(conversation, ended))
    asking.start()
    assert entered.wait(PATIENCE)
    bedrock.client.conversation(conversation.name).cancel()
    leave.set()
    asking.join(PATIENCE)
    assert isinstance(ended[0], RunInterrupted)
    assert not any("too late" in message.text for message in conversation.messages())


def ended_with(conversation: Conversation, ended: list[BaseException]) -> Callable[[], Any]:
    def ask() -> None:
        try:
            conversation.ask("Go.")
        except RunInterrupted as error:
            ended.append(error)

    return ask


def test_a_server_that_is_killed_meanwhile_withdraws_the_call_and_the_program_goes_on(
    bedrock: Bedrock, tmp_path: Path
) -> None:
    answers = iter([True, False])

    def check() -> str:
        if next(answers):
            bedrock.server.kill()
            bedrock.server.start()
        return "checked"

    conversation = bedrock.client.create(tmp_path, mode="unrestricted", client_tools=[check])
    bedrock.model.then(calls(("check", {})))
    with pytest.raises(RunInterrupted):
        conversation.ask("Go.")
    bedrock.model.then(calls(("check", {})), says("Done."))
    assert conversation.ask("Again.") == "Done."
    assert "checked" in results(bedrock)[-1]
    withdrawn = [text for asked in bedrock.model.requests[1].messages for text in bedrock.model.requests[1].said(asked)]
    assert "Interrupted by server restart" in withdrawn
