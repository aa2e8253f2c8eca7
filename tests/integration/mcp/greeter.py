"""Tools of the official library that ask a person; their annotations are read when they are registered.

As a program, they are a server over stdin and stdout.
"""

from typing import Annotated

from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from pydantic import BaseModel


class Person(BaseModel):
    """The form of `greet`."""

    name: str


async def who() -> Elicit[Person]:
    """Ask for the name."""
    return Elicit("Who are you?", Person)


async def greet(person: Annotated[Person, Resolve(who)]) -> str:
    """Greet the person by the name that it is told."""
    return f"Hello {person.name}!"


async def welcome(ctx: Context) -> str:
    """Greet the person, whose name is asked for in the middle of the call."""
    answer = await ctx.elicit("Who are you?", Person)
    return f"Welcome {answer.data.name}!" if answer.action == "accept" else answer.action


if __name__ == "__main__":
    made = MCPServer("greeter")
    made.tool()(greet)
    made.tool()(welcome)
    made.run()
