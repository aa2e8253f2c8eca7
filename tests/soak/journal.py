"""What clients were told, in files of their own: the server never sees them, and no check trusts anything else."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

Entry: TypeAlias = "dict[str, Any]"


class Journal:
    """One client's file; any thread of it. A line for each thing that it tried, and for each that it was told."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields})
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_all(folder: Path) -> Iterator[tuple[str, list[Entry]]]:
    """Every client's name and entries, of earlier rounds too."""
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8").splitlines()
        yield path.stem, [json.loads(line) for line in lines]
