"""Production's faults: none."""

from __future__ import annotations


class NoFaults:
    """Nothing fails on purpose."""

    def hit(self, point: str) -> None:
        """Pass `point`."""
