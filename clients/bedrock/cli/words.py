"""What people are told instead of the words of the contract."""

from __future__ import annotations

import re

_ASKING = re.compile(r"\s*[^.:\[]*\bcall request_mode_upgrade\b[^.]*\.")


def for_people(text: str) -> str:
    """What the server tells an agent, without the sentences that tell it to ask for another mode."""
    return _ASKING.sub("", text)


def interruption(detail: str) -> str:
    """Why a run was interrupted."""
    return {
        "": "cancelled",
        "restart": "interrupted by a restart of the server",
        "not_run": "discarded before it began",
        "round_cap": "stopped: as many requests to the model as one run may make",
        "budget": "stopped: the budget is spent",
        "context_exhausted": "stopped: the context is used up; go on with `bedrock continue`",
        "cancel_timeout": "cancelled; some sub-agents did not end in time",
    }.get(detail, f"interrupted: {detail}")
