"""The result of a keyword search, which the worker prints as JSON and its tool reads."""

from __future__ import annotations

from typing import NamedTuple


class Findings(NamedTuple):
    """The result of the search, for the tool that shows it to the model."""

    text: str
    remarks: list[str]
    """Sentences about what was omitted, and why."""
    root: str
    """The directory that paths are relative to; "" for the working directory."""
