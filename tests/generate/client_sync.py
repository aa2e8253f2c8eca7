"""Write the blocking client, clients/bedrock/_sync, from the one for asyncio: `python -m tests.generate.client_sync`.

The text is translated word by word, documentation and examples in it too, which is why this is not left to `unasync`:
that replaces tokens of the code, and the blocking client's documentation would go on to say `await`. What really
differs between the two is not generated, and named in `BY_HAND`.
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENTS = Path(__file__).parents[2] / "clients" / "bedrock"
SOURCE, TARGET = CLIENTS / "_async", CLIENTS / "_sync"
BY_HAND = {"transport.py", "sending.py", "one_shot.py", "__init__.py"}

HEAD = "# Generated from {source} by `make client-sync`; edit that file.\n"

WORDS = (
    (r"\basync (?=def|for|with)", ""),
    (r"\bawait ", ""),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\b(Abstract)?Async(?=[A-Z])", r"\1"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\b_async\b", "_sync"),
    (r"Belongs to the event loop that runs when it is created\.", "May be used from several threads."),
    (r"; it is sent when the run is awaited or iterated\.", ", which is sent now."),
    (r"by a cancelled task\b", "by Ctrl-C"),
)


def translate(text: str) -> str:
    """Return the blocking counterpart of a module for asyncio, not yet formatted."""
    for word, replacement in WORDS:
        text = re.sub(word, replacement, text)
    return text


def formatted(text: str, path: Path) -> str:
    """Return the text of a module as ruff formats it at a path."""
    for command in ("check --select F401,I,UP028 --fix --unsafe-fixes --exit-zero", "format"):
        arguments = [sys.executable, "-m", "ruff", *command.split(), "--quiet", "--stdin-filename", str(path), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True).stdout
    return text


def generated() -> dict[Path, str]:
    """Return the text of each generated module."""
    sources = sorted(path for path in SOURCE.rglob("*.py") if path.name not in BY_HAND)
    texts: dict[Path, str] = {}
    for path in sources:
        head = HEAD.format(source=path.relative_to(CLIENTS.parents[1]))
        target = TARGET / path.relative_to(SOURCE)
        texts[target] = formatted(head + translate(path.read_text()), target)
    return texts


def main() -> int:
    """Write the modules or, with --check, say which are out of date."""
    texts = generated()
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    left = [path for path in TARGET.rglob("*.py") if path not in texts and path.name not in BY_HAND]
    if "--check" in sys.argv:
        for path in stale + left:
            print(f"{path.relative_to(CLIENTS.parents[1])} is out of date: make client-sync")
        return 1 if stale or left else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts[path])
    for path in left:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
