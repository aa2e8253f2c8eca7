"""The turns as a LangGraph: nodes for the model and the tools, checkpoints in SQLite, text streamed to a reader."""

from __future__ import annotations

import asyncio
import operator
import tempfile
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph

from tests.bench.driver import Driver, calls_in, question, result_of
from tests.bench.peers.async_requests import ask, client


class State(TypedDict):
    """The state that is checkpointed."""

    messages: Annotated[list[dict[str, Any]], operator.add]


async def main() -> None:
    driver = Driver()
    with tempfile.TemporaryDirectory(prefix="bedrock-bench-") as folder:
        async with client() as using, AsyncSqliteSaver.from_conn_string(str(Path(folder) / "graph.db")) as saver:

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


if __name__ == "__main__":
    asyncio.run(main())
