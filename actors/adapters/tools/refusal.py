"""The error by which a tool refuses a call, with an error name that models can recognise."""

from __future__ import annotations

import json
from typing import Any

from actors.ports import ToolOutput


class ToolRefusedError(Exception):
    """The call was refused and nothing was done.

    The text says what to do instead; `details` are displayed to users.
    """

    def __init__(self, error: str, text: str, **details: Any) -> None:
        super().__init__(f"{error}: {text}")
        self.error = error
        self.details = details

    def output(self) -> ToolOutput:
        """Return the refusal as the result of the call."""
        display = json.dumps({"status": "refused", "error": self.error, **self.details})
        return ToolOutput(str(self), is_error=True, display=display)
