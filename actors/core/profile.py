"""The profile of a conversation: what its creator chose for it, beside the settings that every conversation has."""

from __future__ import annotations

from msgspec import Struct


class Profile(Struct, frozen=True, omit_defaults=True):
    """What the creator of a conversation chose; the defaults are those of a conversation that chose nothing.

    Stored in a table of its own, because transitions rewrite the conversation's row, but seldom its profile.
    """

    instructions: str = ""
    """Instructions for the agent; "" if there are none."""
    replaces_prompt: bool = False
    """Whether the instructions stand instead of Bedrock's own prompt, not after it."""
    tools: tuple[str, ...] | None = None
    """The names of the built-in tools that are offered; None: all of them."""
