"""An independent gRPC client, buf curl, knows nothing of this project but its .proto files.

docs/api/ shows how to use it; every recipe there is run, in order, as a reader of the pages would.
"""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.rpc.error_details_pb2 import ErrorInfo

from tests.documents.pages import API_GUIDE, fenced
from tests.support.fake_provider import FakeProvider, says, stalls
from tests.support.patience import PATIENCE, only, within
from tests.support.server_process import ROOT, ServerProcess, Servers, clean_environment

SERVICE = "bedrock.v1.ConversationService"
GUIDE = "\n".join(page.read_text(encoding="utf-8") for page in API_GUIDE)
RECIPES = {
    "connect": ["version", "maxRequestBytes"],
    "health, of a server with reflection": ['"SERVING"'],
    "create": ["STATE_KIND_IDLE", '"slug": "first-steps"'],
    "own": ["tools/read_file", '"slug": "reviewer"'],
    "generation": ["REASONING_EFFORT_NONE"],
    "auto-continue": ['"autoContinue": true'],
    "send": ["DISPOSITION_DIRECT"],
    "subscribe": ["snapshot", "caughtUp", "STATE_KIND_AWAITING_TOOL_APPROVAL"],
    "approve": ["APPROVAL_DECISION_APPROVE", "it works", "STOP_REASON_COMPLETED"],
    "rules": ['"commandPrefix": "git push"', "ORIGIN_CONVERSATION", "approvalRules/"],
    "steer and follow up": ["DISPOSITION_DIRECT", "DISPOSITION_STEER_QUEUED", "DISPOSITION_FOLLOW_UP_QUEUED"],
    "cancel": ["STATE_KIND_IDLE", "returnedSteers", "discardedFollowUps"],
    "list cycles": ["steps", "rounds", "STOP_REASON_INTERRUPTED", "not_run"],
    "find": ['"slug": "first-steps"'],
    "fork": ['"slug": "second-try"', "forkedFrom", "forkedAt"],
    "spawn sub-agents": ["subAgents", "run"],
}
"""What each recipe of the guide prints, among other things."""


class Curl:
    """Calls methods with buf curl, each in a process of its own."""

    def __init__(self, server: ServerProcess, home: Path) -> None:
        self._server = server
        self._home = home

    def arguments(self, method: str, request: dict[str, Any]) -> list[str]:
        buf = Path(sys.executable).with_name("buf")
        return [
            str(buf), "curl", "--protocol", "grpc", "--http2-prior-knowledge", "--schema", str(ROOT / "protos"),
            "--header", f"authorization: Bearer {self._server.token}", "--data", json.dumps(request),
            f"http://{self._server.address}/{SERVICE}/{method}",
        ]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self._home), "PATH": ""}

    def call(self, method: str, **request: Any) -> Any:
        """The answers of a call; of a unary one there is one."""
        done = self._run(self.arguments(method, request))
        assert done.returncode == 0, done.stderr
        return _objects(done.stdout)

    def refusal(self, method: str, *, token: str = "", **request: Any) -> Any:
        """What a refused call is told; `token`: another one than the right one."""
        arguments = self.arguments(method, request)
        if token:
            arguments = [each.replace(self._server.token, token) for each in arguments]
        done = self._run(arguments)
        assert done.returncode != 0
        return json.loads(done.stderr)

    def _run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, env=self.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )


def _objects(text: str) -> list[Any]:
    """JSON objects, one after the other."""
    decoder, found, rest = json.JSONDecoder(), [], text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:].lstrip()
    return found


def _read_until(text: str, process: subprocess.Popen[str]) -> str:
    """What a process says up to the line with this text."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without {text}: {said}")


@pytest.fixture
def curl(server: ServerProcess, tmp_path: Path) -> Curl:
    return Curl(server, tmp_path)


@pytest.fixture
def open_stream(curl: Curl) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Subscribes, and leaves when the test ends."""
    opened: list[subprocess.Popen[str]] = []

    def subscribe(**request: Any) -> subprocess.Popen[str]:
        opened.append(
            subprocess.Popen(
                curl.arguments("Subscribe", request), env=curl.environment, stdout=subprocess.PIPE, text=True
            )
        )
        return opened[-1]

    yield subscribe
    for process in opened:
        process.kill()
        process.communicate()


def test_a_foreign_client_creates_sends_subscribes_and_cancels(
    curl: Curl, open_stream: Callable[..., subprocess.Popen[str]], fake_provider: FakeProvider, tmp_path: Path
) -> None:
    part = fake_provider.part(says("Hello, ", "stranger."), stalls)
    created = only(curl.call("CreateConversation", conversation={"workingDirectory": str(tmp_path)}))["conversation"]
    name = created["name"]
    assert created["state"]["kind"] == "STATE_KIND_IDLE"

    sent = only(curl.call("SendMessage", name=name, text=f"Hi. {part.key}"))
    assert sent["disposition"] == "DISPOSITION_DIRECT"
    responses = curl.call("Subscribe", name=name, afterRevision=sent.get("revision", "0"), untilSettled=True)
    events = [event for response in responses for event in response["events"]]
    assert "snapshot" in events[0]
    revisions = [int(event["revision"]) for event in events if "revision" in event]
    assert revisions == list(range(revisions[0], revisions[0] + len(revisions)))
    said = [event["messageAdded"] for event in events if "messageAdded" in event]
    assert [message["role"] for message in said] == ["ROLE_USER", "ROLE_AGENT"]
    assert said[1]["content"] == [{"text": "Hello, stranger."}]
    assert only([event for event in events if "runStopped" in event])["runStopped"]["reason"] == "STOP_REASON_COMPLETED"

    stream = open_stream(name=name)
    curl.call("SendMessage", name=name, text="Never end.")
    part.next_reached(stalls)
    busy = curl.refusal("SendMessage", name=name, text="Are you there?")
    assert (busy["code"], "agent is busy" in busy["message"]) == ("failed_precondition", True)
    info = only([each for each in busy["details"] if each["type"] == "google.rpc.ErrorInfo"])
    assert ErrorInfo.FromString(base64.b64decode(info["value"] + "==")).reason == "AGENT_BUSY"
    receipt = only(curl.call("CancelConversation", name=name))
    assert receipt["state"]["kind"] == "STATE_KIND_IDLE"
    assert "noOp" not in receipt
    assert "word " in within(lambda: _read_until("STOP_REASON_INTERRUPTED", stream))
    listed = only(curl.call("ListMessages", parent=name))["messages"]
    assert [message["role"] for message in listed] == ["ROLE_USER", "ROLE_AGENT", "ROLE_USER"]


def test_a_foreign_client_without_the_token_is_refused(curl: Curl) -> None:
    assert curl.refusal("ListConversations", token="wrong")["code"] == "unauthenticated"


@pytest.mark.one_server("it reaches the server by its socket")
def test_the_recipes_of_the_guide_do_what_they_say(start_server: Servers, tmp_path: Path) -> None:
    server = start_server(tmp_path, "--reflection")
    found = re.findall(r"<!-- recipe: (.+?) -->", GUIDE)
    assert found == list(RECIPES)
    assert GUIDE.count("```bash") == len(found)
    script = "\n".join(f"echo '# {name}'\n{fenced(GUIDE, f'recipe: {name}')}" for name in found)
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=ROOT,
        env={"HOME": str(tmp_path), "PATH": programs, "BEDROCK_DATA_DIR": str(server.data)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,  # a process for each recipe
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, *printed = re.split(r"^# .+$", done.stdout, flags=re.MULTILINE)
    for (name, wanted), answer in zip(RECIPES.items(), printed, strict=True):
        assert [text for text in wanted if text not in answer] == [], f"{name}: {answer}"


@pytest.mark.one_server("it reaches the server by its socket")
@pytest.mark.parametrize("variable", ["BEDROCK_DATA_DIR", "XDG_STATE_HOME"])
def test_the_socket_is_reached_from_python_as_the_guide_says(
    variable: str, server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "bedrock").symlink_to(server.data)
    places = {"BEDROCK_DATA_DIR": server.data, "XDG_STATE_HOME": tmp_path / "state"}
    done = subprocess.run(
        [sys.executable, "-c", fenced(GUIDE, "socket: Python")],
        env=clean_environment(tmp_path, **{variable: str(places[variable])}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, bool(done.stdout.strip())) == (0, True), done.stderr
