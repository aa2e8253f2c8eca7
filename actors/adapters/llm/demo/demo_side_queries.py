"""The demo model's answers to small extra requests (for titles and excerpts). Pure functions."""

from __future__ import annotations

import re

from actors.adapters.llm.demo.script import SHOWN_LINES, Scene
from actors.core.content import text_of
from actors.ports import ModelRequest, Purpose

_TITLE_WORDS = 5
_MATCH = re.compile(r"^[^\n:]+:\d+:.*$", re.MULTILINE)
"""Matches an output line of the keyword_search tool that shows a match."""


def side_query_scene(request: ModelRequest) -> Scene:
    """Return the answer to a request for a title or for excerpts; the same request always gets the same answer."""
    said = "".join(text_of(turn.content) for turn in request.turns)
    return _excerpts(said) if request.purpose is Purpose.EXCERPTS else _title(said)


def _title(said: str) -> Scene:
    words = said.split()
    return Scene(f"Demo: {' '.join(words[:_TITLE_WORDS])}{' …' if len(words) > _TITLE_WORDS else ''}")


def _excerpts(said: str) -> Scene:
    """Return the first lines that show a match as excerpts, because a script cannot judge which lines are useful."""
    matches = _MATCH.findall(said.partition("Found:\n")[2])
    return Scene("\n".join(matches[:SHOWN_LINES]) or "Nothing relevant was found.", tempo=0.1)
