"""`node chat.js` as a process, and modules that use the library, as the tests of the Node client start them."""

import json
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from tests.peers import installed
from tests.peers.conftest import Node
from tests.support.patience import PATIENCE

CHAT = installed.NODE_CLIENT / "chat.js"
LIBRARY = installed.NODE_CLIENT / "bedrock.js"


class Output:
    """What a process writes to one of its pipes, as it comes."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe = pipe
        self._more = threading.Condition()
        self._text = ""
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        with self._more:
            return self._text

    def until(self, pattern: str) -> re.Match[str]:
        """Wait for a text that matches."""

        def seen() -> bool:
            return self._ended or re.search(pattern, self._text) is not None

        with self._more:
            assert self._more.wait_for(seen, PATIENCE), f"no {pattern!r} in {self._text!r}"
            found = re.search(pattern, self._text)
            assert found, f"it ended without {pattern!r}: {self._text!r}"
            return found

    def join(self) -> None:
        """Wait for the end of the pipe."""
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive()
        self._pipe.close()

    def _read(self) -> None:
        while piece := self._pipe.read(1):
            with self._more:
                self._text += piece
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()


class NodeChat:
    """`node chat.js` as a process that somebody types to."""

    def __init__(self, node: Node, folder: Path, environment: dict[str, str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [node.program, CHAT, "-C", folder, *arguments],
            env={**installed.node_environment(node.program), "HOME": str(folder), **environment},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.said = Output(self._process.stdout)
        self.noted = Output(self._process.stderr)

    @property
    def name(self) -> str:
        """The conversation."""
        return self.noted.until(r"\[(conversations/\w+)\]")[1]

    @property
    def events(self) -> list[dict[str, Any]]:
        """What was printed with --json so far."""
        return [json.loads(line) for line in self.said.text.splitlines(keepends=True) if line.endswith("\n")]

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def leave(self) -> int:
        """End the input, as Ctrl-D does, and wait for the exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(PATIENCE)
        self.said.join()
        self.noted.join()
        return code

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.leave()


def run_module(node: Node, folder: Path, source: str, **environment: str) -> str:
    """Run a module that imports from './bedrock.js', and return what it prints."""
    script = folder / "script.mjs"
    script.write_text(source.replace("'./bedrock.js'", json.dumps(LIBRARY.as_uri())), encoding="utf-8")
    done = node.run(script, folder=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_script(node: Node, folder: Path, body: str, **environment: str) -> Any:
    """Run statements that know `Bedrock` and `ToolAnswer`, and return what they print as JSON."""
    return json.loads(
        run_module(node, folder, f"import {{ Bedrock, ToolAnswer }} from './bedrock.js';\n{body}\n", **environment)
    )
