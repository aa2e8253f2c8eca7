"""What the demo model answers to small requests beside a conversation. Pure."""

from __future__ import annotations

import re

from actors.adapters.llm.demo.script import SHOWN_LINES, Scene
from actors.core.content import text_of
from actors.ports import ModelRequest, Purpose

_TITLE_WORDS = 5
_MATCH = re.compile(r"^[^\n:]+:\d+:.*$", re.MULTILINE)
"""A line that matches, as keyword_search has it."""


def side_query_scene(request: ModelRequest) -> Scene:
    """The answer to an aside; the same one always gets the same."""
    said = "".join(text_of(turn.content) for turn in request.turns)
    return _excerpts(said) if request.purpose is Purpose.EXCERPTS else _title(said)


def _title(said: str) -> Scene:
    words = said.split()
    return Scene(f"Demo: {' '.join(words[:_TITLE_WORDS])}{' …' if len(words) > _TITLE_WORDS else ''}")


def _excerpts(said: str) -> Scene:
    """The first lines that match: to one that knows only a script all are equally useful."""
    matches = _MATCH.findall(said.partition("Found:\n")[2])
    return Scene("\n".join(matches[:SHOWN_LINES]) or "Nothing relevant was found.", tempo=0.1)
