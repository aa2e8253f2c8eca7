"""keyword_search: what a repository says about some terms, found by a worker process that can be killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from actors.core.context import ToolGroup, ToolTraits
from actors.ports import ToolContext, ToolOutput, ToolSpec
from actors.tools.launching import run_worker
from actors.tools.search import LIBRARIES, ripgrep
from actors.tools.workers import keyword_search

MAX_TERMS = 30

ALIASES = {"terms": "search_terms", "keywords": "search_terms"}
"""Names that models use for an argument from habit."""

SPEC = ToolSpec(
    name="keyword_search",
    description=(
        "Find where something is dealt with when you do not know what it is called. Searches the whole git repository "
        "around the working directory (or the directory, outside of one) for all terms, ignoring case, and shows ten "
        "lines around every match. Terms are regular expressions. One that finds too much is skipped, and what is "
        "found is cut, so be specific; use search for a pattern that you know."
    ),
    input_schema={
        "type": "object",
        "required": ["query", "search_terms"],
        "properties": {
            "query": {"type": "string", "minLength": 1, "description": "What you want to know, in a sentence."},
            "search_terms": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_TERMS,
                "items": {"type": "string", "minLength": 1},
                "description": "What may be written there: names, words, messages; the most important first.",
            },
        },
        "additionalProperties": False,
    },
    traits=ToolTraits("keyword_search", ToolGroup.READ, retry_safe=True),
)

HINT = "Use fewer or simpler terms, or search with `path`."


class KeywordSearchTool:
    """Searches a repository for terms (ports.Tool)."""

    @property
    def spec(self) -> ToolSpec:
        return SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Show what is around the terms; raises ToolTransientError if the worker is lost, or SandboxUnavailable."""
        asked = {"search_terms": arguments["search_terms"], "ripgrep": ripgrep()}
        stdin = json.dumps(asked).encode()
        return run_worker(keyword_search, (), context, what="The search", stdin=stdin, hint=HINT, libraries=LIBRARIES)
