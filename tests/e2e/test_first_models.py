"""The first run of a person with several models behind OPENAI_BASE_URL: none has to be known by its name."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scripted_server import STREAM_HEAD, ScriptedServer, ServedConnection, chunked, plain, whole
from tests.support.server_process import ServerProcess, Servers, bedrock, clean_environment
from tests.support.terminals import Terminal

pytestmark = pytest.mark.one_server("the command starts its own server")

SEVERAL = ("llama3:latest", "qwen3:8b")


class Ollama(ScriptedServer):
    """Lists its models and those in memory, and says over Chat Completions which one answers."""

    def __init__(self, models: tuple[str, ...], loaded: tuple[str, ...] = ()) -> None:
        lists = {
            "/v1/models": {"object": "list", "data": [{"id": name, "owned_by": "library"} for name in models]},
            "/api/ps": {"models": [{"name": name} for name in loaded]},
        }

        def play(connection: ServedConnection) -> None:
            asked = connection.read_request()
            if asked.path in lists:
                connection.send(whole(200, json.dumps(lists[asked.path]).encode(), "application/json"))
                return
            said = {"choices": [{"delta": {"content": f"I am {asked.json['model']}."}, "finish_reason": "stop"}]}
            connection.send(STREAM_HEAD + b"".join(map(chunked, plain(said, "[DONE]"))) + b"0\r\n\r\n")

        super().__init__(play)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The settings of a newcomer: no server, an empty data directory."""
    return clean_environment(
        tmp_path, BEDROCK_DATA_DIR=str(tmp_path / "data"), BEDROCK_TITLES="false", OPENAI_API_KEY="none"
    )


@pytest.fixture
def ollama() -> Iterator[Ollama]:
    with Ollama(SEVERAL) as served:
        yield served


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return bedrock(Path(environ["HOME"]), *arguments, **environ)


def chat(environ: dict[str, str], served: Ollama) -> Terminal:
    url = f"{served.url}/v1"
    return Terminal(environ={**environ, "OPENAI_BASE_URL": url}, cwd=Path(environ["HOME"]), inherit=False)


def shows(terminal: Terminal, words: str) -> None:
    terminal.until(lambda screen: any(words in row for row in screen))


def test_at_a_terminal_the_models_are_listed_and_one_is_asked_for(environ: dict[str, str], ollama: Ollama) -> None:
    with chat(environ, ollama) as terminal:
        shows(terminal, "Which one (number or name)")
        assert [row.strip() for row in terminal.rows if row.startswith("   ")] == [
            "1  llama3:latest (openai)",
            "2  qwen3:8b (openai)",
            "3  demo (demo)",
        ]
        terminal.keys("9\r")
        terminal.until(lambda screen: sum("Which one" in row for row in screen) == 2)
        shows(terminal, "Unknown model '9'.")
        terminal.keys("2\r")
        shows(terminal, "To skip this question, pass -m qwen3:8b, or set default_model")
        shows(terminal, "idle · ")
        terminal.keys("Who are you?\r")
        shows(terminal, "I am qwen3:8b.")


def test_keys_typed_before_the_question_are_no_answer_to_it(environ: dict[str, str], ollama: Ollama) -> None:
    with chat(environ, ollama) as terminal:
        shows(terminal, "starting a server")
        terminal.keys("1\r")
        shows(terminal, "Which one (number or name)")
        terminal.keys("qwen3:8b\r")
        shows(terminal, "idle · ")
        terminal.keys("Who are you?\r")
        shows(terminal, "I am qwen3:8b.")


@pytest.mark.parametrize(("models", "loaded", "taken"), [
    (SEVERAL, ("qwen3:8b",), "qwen3:8b"),
    (("llama3:latest",), (), "llama3:latest"),
])  # fmt: skip
def test_the_only_model_or_the_only_one_in_memory_is_taken(
    environ: dict[str, str], models: tuple[str, ...], loaded: tuple[str, ...], taken: str
) -> None:
    with Ollama(models, loaded) as served, chat(environ, served) as terminal:
        shows(terminal, "idle · ")
        terminal.keys("Who are you?\r")
        shows(terminal, f"I am {taken}.")
        assert "Which one" not in "\n".join(terminal.rows)


def test_without_a_terminal_the_error_says_how_to_name_one(
    environ: dict[str, str], ollama: Ollama, tmp_path: Path
) -> None:
    servers = Servers(ServerProcess)
    try:
        server = servers(tmp_path, OPENAI_BASE_URL=f"{ollama.url}/v1")
        environ |= {"BEDROCK_ADDRESS": server.address, "BEDROCK_TOKEN": server.token}
        asked = run(environ, "ask", "Who are you?")
        named = run(environ, "ask", "-m", "qwen3:8b", "Who are you?")
    finally:
        servers.close()
    assert (asked.returncode, asked.stdout) == (2, "")
    for words in (
        "no default model is configured",
        "OPENAI_MODEL",
        "llama3:latest, qwen3:8b",
        "-m",
        "`bedrock models`",
    ):
        assert words in asked.stderr
    assert (named.returncode, named.stdout) == (0, "I am qwen3:8b.\n")


def test_models_are_listed_without_a_server(environ: dict[str, str], ollama: Ollama, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[providers.mine]\nprotocol = "openai-chat"\nbase_url = "http://127.0.0.1:9"\n'
                                          'models = ["my-own"]\n')  # fmt: skip
    environ |= {"OPENAI_BASE_URL": f"{ollama.url}/v1", "BEDROCK_CONFIG": str(tmp_path / "config.toml")}
    listed = run(environ, "models")
    assert listed.returncode == 0, listed.stderr
    rows = [row.split()[:2] for row in listed.stdout.splitlines()]
    assert rows == [["demo", "demo"], ["llama3:latest", "openai"], ["my-own", "mine"], ["qwen3:8b", "openai"]]
    assert "No server is running; starting one" in listed.stderr
    assert run(environ, "models", "qwen3:8b").returncode == 0
    environ["BEDROCK_ADDRESS"] = "127.0.0.1:1"
    assert run(environ, "models").returncode == 4
    assert not (tmp_path / "data" / "address").exists()
    assert os.listdir(tmp_path / "data")
