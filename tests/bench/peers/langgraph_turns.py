"""The turns as a LangGraph: nodes for the model and the tools, text streamed to a reader."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph

from tests.bench.driver import Driver, calls_in, question, result_of
from tests.bench.peers.async_requests import ask, client

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver


class State(TypedDict):
    """The state that is checkpointed."""

    messages: Annotated[list[dict[str, Any]], operator.add]


async def take_turns(driver: Driver, saver: BaseCheckpointSaver[Any]) -> None:
    """Take the turns; the saver keeps the checkpoints."""
    async with client() as using:

        async def model(state: State) -> dict[str, Any]:
            return {"messages": [await ask(using, driver.messages_url, state["messages"], get_stream_writer())]}

        async def tools(state: State) -> dict[str, Any]:
            results = [result_of(call) for call in calls_in(state["messages"][-1])]
            return {"messages": [{"role": "user", "content": results}]}

        def after_model(state: State) -> str:
            return "tools" if calls_in(state["messages"][-1]) else END

        graph = StateGraph(State)
        graph.add_node("model", model)
        graph.add_node("tools", tools)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", after_model)
        graph.add_edge("tools", "model")
        compiled = graph.compile(checkpointer=saver)

        async def conversation(number: int) -> None:
            place = {"configurable": {"thread_id": str(number)}}
            for _ in range(driver.turns):
                with driver.timed():
                    asked = {"messages": [question()]}
                    async for _ in compiled.astream(asked, place, stream_mode="custom"):
                        pass

        await driver.on_tasks(conversation)
