"""A call that a tool will not do, under a name that a model can learn."""

from __future__ import annotations

import json
from typing import Any

from actors.ports import ToolOutput


class Refused(Exception):
    """Nothing was done. The text says what to do instead; `details` are for people's display."""

    def __init__(self, error: str, text: str, **details: Any) -> None:
        super().__init__(f"{error}: {text}")
        self.error = error
        self.details = details

    def output(self) -> ToolOutput:
        """What the model and people read of it."""
        display = json.dumps({"status": "refused", "error": self.error, **self.details})
        return ToolOutput(str(self), is_error=True, display=display)
