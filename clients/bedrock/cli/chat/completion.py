"""Helps with typing in a chat: input history, and completion of commands and paths."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory

from bedrock.cli.chat.session import ChatSession, message_of
from bedrock.cli.chat.slash_commands import COMMANDS, EFFORTS, POLICIES
from bedrock.cli.display.labels import MODES
from bedrock.cli.text.safe_text import for_terminal
from bedrock.cli.text.style import one_line
from bedrock.local_server import NotPrivateError, check_private, open_believed

# The size in bytes to which the history file is cut once it is more than twice as large.
HISTORY_BYTES = 256 * 1024

_SECRET = re.compile(
    r"\b(sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abposr]|AKIA|ASIA|AIza|hf|npm|pypi)[-_]?[A-Za-z0-9_-]{16,}"
    r"|-----BEGIN|\bBearer\s+\S{12,}|\beyJ[\w-]{8,}\.[\w-]{8,}"
    r"|(?i:\b(\w*(password|passwd|secret|token|api[_-]?key))\s*[:=]\s*\S{6,})"
    r"|://[^\s/:@]+:[^\s/@]+@"
)


class ChatHistory(FileHistory):
    """The input history, in a private file. Entries that look like secrets or begin with a space stay in memory."""

    def __init__(self, path: Path) -> None:
        """Create the file if it is missing.

        If other users may have written it or can enter its directory, keep no history.
        """
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            check_private(path.parent)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            os.close(open_believed(path))
        except (NotPrivateError, OSError):
            super().__init__(os.devnull)  # without `chmod`, which would change the null device if run as root
            return
        with contextlib.suppress(OSError):
            path.chmod(0o600)
            _cut_back(path)
        super().__init__(path)

    def load_history_strings(self) -> Iterable[str]:
        """The entries, latest first; none if the file cannot be read."""
        try:
            return list(super().load_history_strings())
        except OSError:
            return []

    def store_string(self, string: str) -> None:
        """Append an entry to the file, unless it begins with a space, may be a secret, or is not valid Unicode."""
        if not string.startswith(" ") and not _SECRET.search(string):
            with contextlib.suppress(OSError, UnicodeEncodeError):
                super().store_string(string)


def _cut_back(path: Path) -> None:
    kept = path.read_bytes()
    if len(kept) > 2 * HISTORY_BYTES:
        _, entry, rest = kept[-HISTORY_BYTES:].partition(b"\n# ")
        path.write_bytes(entry + rest)


class ChatCompleter(Completer):
    """Completes slash commands and their arguments. On request, also completes paths in a message."""

    def __init__(self, session: ChatSession) -> None:
        self._session = session
        self._paths = PathCompleter(expanduser=True)
        self._project = PathCompleter(get_paths=lambda: [session.view.info.working_directory or "."], expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if message_of(text) is not None or "\n" in text:
            word = text.split("\n")[-1].rpartition(" ")[2]
            if complete_event.completion_requested and word:
                yield from self._project.get_completions(Document(word, len(word)), complete_event)
            return
        name, blank, argument = text[1:].partition(" ")
        if not blank:
            for command in COMMANDS:
                if command.name.startswith(name):
                    ending = " " if command.argument and not command.argument.startswith("[") else ""
                    yield Completion(
                        f"/{command.name}{ending}", -len(text), display=f"/{command.name}", display_meta=command.about
                    )
        elif name == "image":
            yield from self._paths.get_completions(Document(argument, len(argument)), complete_event)
        else:
            for value, about in self._arguments(name):
                if value.startswith(argument):
                    yield Completion(value, -len(argument), display_meta=about)

    def _arguments(self, name: str) -> Iterable[tuple[str, str]]:
        match name:
            case "mode":
                return list(MODES.items())
            case "effort":
                return [(effort, "") for effort in EFFORTS]
            case "approvals":
                return [(policy, "") for policy in POLICIES]
            case "model":
                return [(model, "") for model in self._session.model_names if for_terminal(model) == model]
            case "withdraw":
                waiting = self._session.view.queue
                named = ((message.name.rpartition("/")[2], message.text) for message in waiting)
                return [(name, one_line(text, 40)) for name, text in named if for_terminal(name) == name]
            case _:
                return []
