"""aimock, a provider by others that plays scripted agent loops over all three protocols, as a process of its own."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.peers import installed
from tests.support.patience import PATIENCE, eventually, only

PROGRAM = installed.NODE_PACKAGES / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"


class Aimock:
    """A running aimock for the `with` block; it needs a fixture from the start. What none fits is refused."""

    def __init__(self, node: Path, folder: Path, *fixtures: Mapping[str, Any]) -> None:
        self._log = folder / "aimock.log"
        script = folder / "fixtures.json"
        script.write_text(json.dumps({"fixtures": fixtures}))
        # Pieces with time between them: a cut stream arrives as one.
        options = ["--port", "0", "--fixtures", str(script), "--strict", "--latency", "1", "--chunk-size", "8"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [node, PROGRAM, *options, "--journal-max", "0"],
                env=installed.node_environment(node) | {"HOME": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.url = ""

    def __enter__(self) -> Self:
        def found() -> list[str]:
            return re.findall(r"listening on (http://127\.0\.0\.1:\d+)", self.log_text())

        eventually(lambda: bool(found()) or self._process.poll() is not None, "aimock listens")
        assert found(), self.log_text()
        self.url = only(found())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)

    def play(self, *fixtures: Mapping[str, Any]) -> None:
        """Add fixtures behind those that are there; the first that fits a request answers it."""
        assert self._call("POST", "fixtures", {"fixtures": fixtures})["added"] == len(fixtures)

    def forget(self) -> None:
        """Forget the faults, and the requests so far."""
        self._call("POST", "reset/journal")
        self.chaos()

    def chaos(self, **rates: float) -> None:
        """From now on, answer with faults: the share of requests by kind, e.g. dropRate=0.1; without any, none."""
        self._call("POST", "chaos", rates)

    def journal(self) -> list[dict[str, Any]]:
        """Requests since it forgot, oldest first, each with the status of its answer. Whatever the protocol was, a
        body is shown with "messages" as those of Chat Completions."""
        return [each for each in self._call("GET", "journal") if each["path"].startswith("/v1/")]

    def log_text(self) -> str:
        return self._log.read_text()

    def assert_content(self, *, faults: bool = False) -> None:
        """It complained of no request, and in each every call has its result right behind it.

        `faults`: it was told to answer with errors, and may have.
        """
        injected = {429, 500} if faults else set()
        for entry in self.journal():
            told = entry["response"]
            assert told["status"] in {200, *injected} or "chaosAction" in told, entry
            assert_answered(entry["path"], entry["body"]["messages"])

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/__aimock/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())


def assert_answered(path: str, messages: list[dict[str, Any]]) -> None:
    """Calls are followed by their results, in order, before anybody says anything else."""
    waiting: list[str] = []
    for message in messages:
        match message["role"]:
            case "tool":
                assert waiting, "a result without a call"
                assert message["tool_call_id"] == waiting.pop(0), "results are out of order"
            case "assistant":  # one for each call, if the protocol was Responses
                waiting += [call["id"] for call in message.get("tool_calls") or ()]
            case _:  # aimock shows what is said behind the results of a Messages request before them
                assert not waiting or path == "/v1/messages", "a call without a result"
    assert not waiting, "a call without a result"
