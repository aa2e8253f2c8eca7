"""Keys that a command prints: run once, kept, asked for again when refused, and never shown."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.adapters.llm import provider_client as keys
from actors.adapters.llm.provider import Secret
from actors.adapters.llm.provider_client import ApiKeys
from actors.core.errors import ErrorKind
from actors.ports import CancelToken, ModelAbortedError, ModelFailedError
from tests.support.model_requests import RequestThread, Sink, ask, failure, model, provider
from tests.support.scripted_server import ScriptedServer, answer, plain, stream

pytestmark = pytest.mark.usefixtures("no_leaked_fds")

BOUND = 30.0
SAID = plain({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}, "[DONE]")


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


def counting(folder: Path) -> tuple[str, ...]:
    """Prints key-1, key-2, …"""
    return shell(f'echo x >> {folder}/runs; printf "sk-key-%s\\n" $(wc -l < {folder}/runs)')


def keys_of(*command: str) -> ApiKeys:
    return ApiKeys(provider("openai-chat", "http://127.0.0.1:9", api_key=Secret(), api_key_command=command))


def refused(script: str) -> ModelFailedError:
    with pytest.raises(ModelFailedError) as raised:
        keys_of(*shell(script)).with_key(CancelToken())
    assert raised.value.failure.kind is ErrorKind.AUTH
    return raised.value


def test_a_command_runs_at_the_first_request_and_never_again(tmp_path: Path) -> None:
    with ScriptedServer(stream(SAID)) as server:
        asked = model("openai-chat", server.url, "gpt-4o", api_key=Secret(), api_key_command=counting(tmp_path))
        assert not (tmp_path / "runs").exists()
        ask(asked)
        ask(asked)
    assert [request.headers["authorization"] for request in server.received] == ["Bearer sk-key-1"] * 2


def test_a_refused_key_is_asked_for_once_more(tmp_path: Path) -> None:
    with ScriptedServer(answer(401, b"{}"), stream(SAID)) as server:
        sink = Sink()
        ask(model("openai-chat", server.url, "gpt-4o", api_key=Secret(), api_key_command=counting(tmp_path)), sink=sink)
    assert [request.headers["authorization"] for request in server.received] == ["Bearer sk-key-1", "Bearer sk-key-2"]
    assert sink.begun == 1


def test_a_key_that_is_refused_again_ends_the_attempt(tmp_path: Path) -> None:
    body = b'{"error":{"message":"Incorrect API key provided: key-of-mine-2"}}'
    command = shell(f"echo x >> {tmp_path}/runs; printf key-of-mine-; wc -l < {tmp_path}/runs")
    with ScriptedServer(answer(401, body)) as server:
        told = failure(model("openai-chat", server.url, "gpt-4o", api_key=Secret(), api_key_command=command))
    assert len(server.received) == 2
    assert told.failure.kind is ErrorKind.AUTH
    assert "api_key_command of provider fake" in told.failure.message
    assert "key-of-mine" not in told.failure.message


def test_the_same_key_is_not_tried_twice(tmp_path: Path) -> None:
    command = shell(f"echo x >> {tmp_path}/runs; echo same")
    with ScriptedServer(answer(401, b"{}")) as server:
        failure(model("openai-chat", server.url, "gpt-4o", api_key=Secret(), api_key_command=command))
    assert len(server.received) == 1
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def test_a_command_that_fails_later_leaves_the_refusal(tmp_path: Path) -> None:
    command = shell(f"mkdir {tmp_path}/once && echo key")
    with ScriptedServer(answer(401, b'{"error":{"message":"expired"}}')) as server:
        told = failure(model("openai-chat", server.url, "gpt-4o", api_key=Secret(), api_key_command=command))
    assert "expired" in told.failure.message


def test_a_key_that_is_no_commands_is_not_tried_twice() -> None:
    with ScriptedServer(answer(401, b"{}")) as server:
        failure(model("openai-chat", server.url, "gpt-4o"))
    assert len(server.received) == 1


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo secret-words; exit 3", "exit code 3"),
        ("true", "printed nothing"),
        ("echo '   '", "printed nothing"),
        ("echo secret-words; echo more", "printed a key that contains whitespace or non"),
        ("head -c 20000 /dev/zero | tr '\\0' x", "more than 16 KiB, which is too long for a key"),
        ("kill -9 $$", "exit code -9"),
    ],
)
def test_a_command_that_gives_no_key_is_reported_without_its_output(
    script: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        told = refused(script)
    assert told.failure.message.startswith("Authentication failed at fake: its api_key_command ")
    assert said in told.failure.message
    assert "secret-words" not in told.failure.message + caplog.text


def test_a_missing_program_is_reported() -> None:
    with pytest.raises(ModelFailedError, match="cannot be started"):
        keys_of("/nowhere/program").with_key(CancelToken())


def test_a_command_that_hangs_is_ended_with_all_it_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(keys, "COMMAND_SECONDS", 0.5)
    fifo = tmp_path / "alive"
    fifo.touch()
    told = refused(f"sleep 600 & echo $! > {fifo}; wait")
    assert "took longer than 0.5 s" in told.failure.message
    assert _is_gone(int(fifo.read_text()))


def test_what_a_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    left = tmp_path / "left"
    armed = keys_of(*shell(f"sleep 600 >/dev/null & echo $! > {left}; echo key")).with_key(CancelToken())
    assert armed.api_key == Secret("key")
    assert _is_gone(int(left.read_text()))


@pytest.mark.parametrize(("then", "key"), [("echo key", "key"), ("sleep 600", "")])
def test_what_has_left_the_session_of_a_command_holds_up_no_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: str, key: str
) -> None:
    """It is not ended with the command, and keeps the pipe open on which the key comes."""
    left = tmp_path / "left"
    script = f"setsid sleep 600 & echo $! > {left}; {then}"
    try:
        if key:
            assert keys_of(*shell(script)).with_key(CancelToken()).api_key == Secret(key)
        else:
            monkeypatch.setattr(keys, "COMMAND_SECONDS", 0.5)
            assert "took longer than 0.5 s" in refused(script).failure.message
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


def test_a_cancel_ends_the_command_and_shows_as_a_cancel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pipe = tmp_path / "pipe"
    command = shell(f"mkfifo {pipe}; echo $$ > {pipe}; exec sleep 600")
    asking = RequestThread(
        model("openai-chat", "http://127.0.0.1:9", "gpt-4o", api_key=Secret(), api_key_command=command)
    )
    assert _until(pipe.exists)
    pid = int(pipe.read_text())
    assert asking.cancelled(), asking.outcome
    assert _is_gone(pid)
    assert not caplog.records


class Watched(CancelToken):
    """A token that counts what a cancel would wake or end."""

    listeners = 0

    def on_cancel(self, callback: Callable[[], None]) -> None:
        super().on_cancel(callback)
        self.listeners += 1


def test_those_who_wait_for_a_command_share_its_key_or_its_failure(tmp_path: Path) -> None:
    for ending, outcome in (("echo key", Secret("key")), ("exit 3", None)):
        runs, gate = tmp_path / ending[-1] / "runs", tmp_path / ending[-1] / "gate"
        runs.parent.mkdir()
        shared = keys_of(*shell(f"echo x >> {runs}; until [ -e {gate} ]; do sleep 0.01; done; {ending}"))
        cancels = [Watched() for _ in range(6)]
        found: list[Secret | None] = []
        threads = [threading.Thread(target=_take, args=(shared, cancel, found), daemon=True) for cancel in cancels]
        for thread in threads:
            thread.start()
        assert _until(runs.exists)
        assert _until(lambda: all(cancel.listeners for cancel in cancels))  # noqa: B023
        gate.touch()
        for thread in threads:
            thread.join(BOUND)
        assert found == [outcome] * 6
        assert runs.read_text() == "x\n"


def test_who_is_cancelled_while_waiting_leaves_and_the_others_get_the_key(tmp_path: Path) -> None:
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    shared = keys_of(*shell(f"echo x >> {runs}; until [ -e {gate} ]; do sleep 0.01; done; echo key"))
    first, second, third = CancelToken(), CancelToken(), CancelToken()
    found: list[Secret | None] = []
    threads = []
    for cancel in (first, second, third):
        threads.append(threading.Thread(target=_take, args=(shared, cancel, found), daemon=True))
        threads[-1].start()
        assert _until(runs.exists)
    second.cancel()
    threads[1].join(BOUND)
    assert not threads[1].is_alive()
    first.cancel()  # the one that runs it: the third takes over
    threads[0].join(BOUND)
    gate.touch()
    threads[2].join(BOUND)
    assert found == [None, None, Secret("key")]
    assert runs.read_text() == "x\nx\n"


def _take(shared: ApiKeys, cancel: CancelToken, found: list[Secret | None]) -> None:
    try:
        found.append(shared.with_key(cancel).api_key)
    except (ModelFailedError, ModelAbortedError):
        found.append(None)


def _until(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    for _ in range(int(BOUND / 0.005)):
        if condition():
            return True
        pause.wait(0.005)
    return False


def _is_gone(pid: int) -> bool:
    """Dead, or a zombie that its reaper has not seen yet."""

    def gone() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        return state in "ZX"

    assert sys.platform == "linux"
    return _until(gone)
