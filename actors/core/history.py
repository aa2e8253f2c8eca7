"""The history of a conversation: is its chain valid, and what does a provider see of it."""

from __future__ import annotations

from msgspec import Struct

from actors.core.content import Content


class Turn(Struct, frozen=True):
    """One turn as a provider takes it; adapters turn its blocks into their own JSON."""

    role: str
    """"user" or "assistant"."""
    content: tuple[Content, ...]
    """User turns: tool results first, then text and images. Assistant turns: as the model wrote them."""
