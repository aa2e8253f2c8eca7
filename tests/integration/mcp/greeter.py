"""A tool of the official library that asks a person; its annotations are read when it is registered."""

from typing import Annotated

from mcp.server.mcpserver import Elicit, Resolve
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
