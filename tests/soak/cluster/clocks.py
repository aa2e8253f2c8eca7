"""A clock of its own for a node, which can be set while it runs: libfaketime. The monotonic clock goes on as it is."""

from pathlib import Path

from tests.peers.installed import FAKETIME

LIBRARY = FAKETIME / "libfaketime" / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"


class SetClock:
    """The clock of one node, over its restarts."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)

    @property
    def env(self) -> dict[str, str]:
        """Variables of the environment of whoever has this clock."""
        return {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }

    def set(self, seconds: float) -> None:
        """Let it be ahead of the machine's clock by so many seconds, or behind; a process sees it a second later."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+.0f}\n")
        fresh.replace(self._file)


def hindrance() -> str:
    """Why no clock can be set here; empty if one can."""
    return "" if LIBRARY.is_file() else "the package libfaketime is not installed"
