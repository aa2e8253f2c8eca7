"""An order desk: a web service whose agent can do what three functions of this program do, and answers in JSON.

pip install phoenix-bedrock fastapi uvicorn
bedrock serve              # without the key of a provider, a scripted model plays the agent
uvicorn order_desk:app     # in the directory of this file
curl localhost:8000/questions -H 'content-type: application/json' -d '{"question": "Where is order 7?"}'
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from bedrock import AsyncClient
from fastapi import Body, FastAPI
from msgspec import Meta
from pydantic import BaseModel

INSTRUCTIONS = "You answer questions of customers about their orders. Cancel an order only if you are asked to."
State = Literal["open", "shipped", "cancelled"]
Number = Annotated[int, Meta(description="The number of an order.", examples=[7])]
orders: dict[int, State] = {7: "open", 8: "shipped"}


def list_orders(state: State) -> list[int]:
    """List the numbers of the orders in a state."""
    return [number for number, found in orders.items() if found == state]


def find_order(number: Number) -> dict[str, object]:
    """Find an order by its number."""
    return {"number": number, "state": orders[number]}


def cancel_order(number: Number) -> str:
    """Cancel an order that is open."""
    if orders[number] != "open":
        raise ValueError(f"order {number} is {orders[number]}")
    orders[number] = "cancelled"
    return "cancelled"


class Reply(BaseModel):
    """The agent's answer: a text for the customer, and the numbers of its orders."""

    text: str
    orders: list[int]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Keep one connection to Bedrock for all requests."""
    async with AsyncClient() as app.state.bedrock:
        yield


app = FastAPI(title="Order desk", lifespan=lifespan)
TOOLS = [list_orders, find_order, cancel_order]


@app.post("/questions")
async def ask(question: Annotated[str, Body(embed=True)]) -> Reply:
    """Answer a customer's question, in its own conversation."""
    # restricted mode, the default, would leave out `cancel_order`, because it changes something
    options = {"instructions": INSTRUCTIONS, "tools": [], "client_tools": TOOLS, "mode": "unrestricted"}
    conversation = await app.state.bedrock.create(**options)
    answer = await conversation.ask(question, output_schema=Reply.model_json_schema(), timeout=120)
    return Reply.model_validate(answer.output)
