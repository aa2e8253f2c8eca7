"""The client for asyncio keeps the same promises as the blocking one."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import pytest
from bedrock import (
    Approval,
    AsyncClient,
    AsyncConversation,
    AsyncRun,
    AsyncStream,
    Client,
    Conversation,
    Event,
    Run,
    Stream,
    v1,
)
from bedrock.errors import Unavailable

from tests.support.fake_server import NAME, FakeBedrock, says, uses_tool


@pytest.fixture
@asynccontextmanager
async def client(address: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(address, token="secret") as client:
        yield client


async def test_a_message_is_sent_by_awaiting(client: AsyncClient, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "a", "There is a."))

    sent = await client.conversation("c1").send("Look")
    assert sent.disposition == "direct"
    assert sent.message.text == "Look"
    assert await sent.answer() == "There is a."
    assert sent.stop is not None
    assert len(fake.asked(v1.SendMessageRequest)) == 1


async def test_closing_the_client_ends_a_loop_in_another_task(address: str, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "", "", ask=True))

    client = AsyncClient(address)
    waiting = asyncio.Event()

    async def watch() -> None:
        async for event in client.conversation("c1").send("Hi", wait_for_others=True):
            if event.approval:
                waiting.set()

    task = asyncio.create_task(watch())
    await asyncio.wait_for(waiting.wait(), 10)
    await client.close()
    with pytest.raises(Unavailable, match="closed"):
        await asyncio.wait_for(task, 10)


async def test_a_cancelled_task_stays_cancelled(client: AsyncClient, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("ls", "", "", ask=True))

    waiting = asyncio.Event()

    async def watch() -> None:
        async with client.conversation("c1").send("Hi", wait_for_others=True) as sent:
            async for event in sent:
                if event.approval:
                    waiting.set()

    task = asyncio.create_task(watch())
    await asyncio.wait_for(waiting.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_question_is_asked_in_one_call(client: AsyncClient, fake: FakeBedrock) -> None:
    fake.answers.extend([uses_tool("rm x", "gone", "Done.", ask=True), says("Nothing else.")])

    async def allow(approval: Approval) -> bool:
        await asyncio.sleep(0)
        return approval.tool == "bash"

    answer = await client.ask("Remove x", on_approval=allow)
    assert (answer, answer.conversation) == ("Done.", NAME)
    assert await client.conversation(answer.conversation).ask("And?", on_approval=lambda _: False) == "Nothing else."
    with pytest.raises(ValueError, match=r"on_approval must be .*, not 'some'"):
        await client.ask("Hi", on_approval="some")  # type: ignore[arg-type]
    assert len(fake.asked(v1.CreateConversationRequest)) == 1


async def test_a_question_whose_task_is_cancelled_is_cancelled_too(client: AsyncClient, fake: FakeBedrock) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))

    asked = asyncio.Event()

    async def never(approval: Approval) -> bool:
        asked.set()
        return await asyncio.Future()

    task = asyncio.create_task(client.ask("Remove x", on_approval=never))
    await asyncio.wait_for(asked.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (cancel,) = fake.asked(v1.CancelConversationRequest)
    assert cancel.run == f"{NAME}/requestCycles/1"


async def test_a_question_whose_task_is_cancelled_while_it_is_sent_is_cancelled_too(
    client: AsyncClient, fake: FakeBedrock
) -> None:
    fake.answers.append(uses_tool("rm x", "gone", "Done.", ask=True))

    loop, left = asyncio.get_running_loop(), threading.Event()
    task = asyncio.create_task(client.ask("Remove x"))

    def accepted() -> None:
        loop.call_soon_threadsafe(task.cancel)
        left.wait(60)

    fake.accepted = accepted
    with pytest.raises(asyncio.CancelledError):
        await task
    left.set()
    (cancel,) = fake.asked(v1.CancelConversationRequest)
    assert cancel.run == f"{NAME}/requestCycles/1"


@pytest.mark.parametrize("leave", [lambda events: events, aclosing])
async def test_a_stream_ends_where_its_block_does(
    client: AsyncClient,
    fake: FakeBedrock,
    leave: Callable[[AsyncStream[Event]], AbstractAsyncContextManager[AsyncStream[Event]]],
) -> None:
    async with leave(client.conversation("c1").events()) as events:
        async for event in events:
            assert event.kind == "snapshot"
            break
    assert [event async for event in events] == []


async def test_the_log_is_read_page_after_page(client: AsyncClient, fake: FakeBedrock) -> None:
    conversation = client.conversation("c1")
    assert [(step.step, step.event_type) async for step in conversation.transitions()] == [
        (1, "user_message"),
        (2, "user_message"),
    ]
    assert [step.step async for step in conversation.transitions(newest_first=True)] == [2, 1]
    assert [step.step async for step in conversation.transitions(after_step=1)] == [2]
    asked = [(each.parent, each.after_step, each.descending) for each in fake.asked(v1.ListTransitionsRequest)]
    assert asked == [(NAME, 0, False), (NAME, 0, False), (NAME, 0, True), (NAME, 0, True), (NAME, 1, False)]


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [(Client, AsyncClient), (Conversation, AsyncConversation), (Run, AsyncRun), (Stream, AsyncStream)],
)
def test_both_clients_offer_the_same_methods(blocking: type, asynchronous: type) -> None:
    def offered(cls: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in vars(cls).items()
            if inspect.isfunction(member) and not name.startswith("_") and name != "aclose"
        }

    assert offered(blocking) == offered(asynchronous)
